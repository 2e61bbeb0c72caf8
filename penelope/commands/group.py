"""The click group behind `penelope`: subcommands are imported when they are called."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

import click

from penelope.cli import INTERRUPTED, SUBCOMMANDS, USER_ERROR, complain, load


class LazyGroup(click.Group):
    """A group over the table of subcommands in `penelope.cli`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in SUBCOMMANDS:
            return None
        found = load(SUBCOMMANDS[cmd_name].target)
        assert isinstance(found, click.Command)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in SUBCOMMANDS and not name.startswith("-"):
            near = difflib.get_close_matches(name, SUBCOMMANDS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(SUBCOMMANDS)}"
            raise click.UsageError(f"no command {name!r}; {hint}", ctx)
        return super().resolve_command(ctx, args)


penelope = LazyGroup(
    "penelope",
    help="KV-cache eviction for LLM serving under coding-agent traffic.",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def invoke(arguments: Sequence[str]) -> int:
    """Run the group; usage errors become one line that ends in the remedy."""
    try:
        status = penelope.main(list(arguments), prog_name="penelope", standalone_mode=False)
    except click.UsageError as error:
        who = error.ctx.command_path if error.ctx else "penelope"
        complain(who, f"{_sentence(error)} (see `{who} --help`)")
        return USER_ERROR
    except click.ClickException as error:
        complain("penelope", _sentence(error))
        return USER_ERROR
    except click.Abort:
        complain("penelope", "interrupted")
        return INTERRUPTED
    return status if isinstance(status, int) else 0


def _sentence(error: click.ClickException) -> str:
    return error.format_message().rstrip().removesuffix(".")
