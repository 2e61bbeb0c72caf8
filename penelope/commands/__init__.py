"""The command line's subcommands that have no better home; `penelope.cli` has the table of all."""
