"""The click group behind `penelope`: subcommands are imported when they are called."""

from __future__ import annotations

import difflib
import importlib.metadata
from collections.abc import Sequence

import click

from penelope.cli import (
    INTERRUPTED,
    SUBCOMMANDS,
    USER_ERROR,
    complain,
    load,
)


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

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """From the table, so that `--help` imports no subcommand."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in SUBCOMMANDS.items()])


def _print_version(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        try:
            version = importlib.metadata.version("penelope-kv")
        except importlib.metadata.PackageNotFoundError:
            version = "from a checkout that is not installed"
        click.echo(f"penelope {version}")
        ctx.exit()


penelope = LazyGroup(
    "penelope",
    help="KV-cache eviction for LLM serving under coding-agent traffic.",
    params=[
        click.Option(
            ["--version"],
            is_flag=True,
            expose_value=False,
            is_eager=True,
            callback=_print_version,
            help="Print the version.",
        )
    ],
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
