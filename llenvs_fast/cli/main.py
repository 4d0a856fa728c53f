"""The `llenvs-fast` command. Loads a subcommand's module only when that subcommand runs."""

from __future__ import annotations

import importlib
import io
import os
import sys

import click

from llenvs_fast import __version__
from llenvs_fast.core.errors import LLEnvsError

_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class LazyGroup(click.Group):
    """A group whose commands are `name: (module:attribute, one line of help)`."""

    def __init__(self, *args: object, lazy: dict[str, tuple[str, str]], **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *self.lazy])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.lazy:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = self.lazy[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, self.lazy[name][1]) for name in self.list_commands(ctx) if name in self.lazy]
        rows += [(name, command.get_short_help_str()) for name, command in self.commands.items()]
        with formatter.section("Commands"):
            formatter.write_dl(sorted(rows))


@click.group(context_settings=_CONTEXT)
@click.version_option(__version__, prog_name="llenvs-fast")
def cli() -> None:
    """Evaluate language models on one-turn and multi-turn tasks, at the speed of the engine underneath."""


cli.add_command(
    LazyGroup(
        name="eval",
        context_settings=_CONTEXT,
        help="Run evaluations.",
        lazy={"run": ("llenvs_fast.cli.eval_run:run", "Evaluate a model on an environment.")},
    )
)
cli.add_command(
    LazyGroup(
        name="env",
        context_settings=_CONTEXT,
        help="Look at environments, and check them.",
        lazy={
            "check": ("llenvs_fast.cli.env_check:check", "Check that an environment keeps the contract."),
            "list": ("llenvs_fast.cli.env_list:list_environments", "List environments and their warnings."),
        },
    )
)


def main() -> None:
    """Run the command; an error of ours or of the system is one line on stderr and exit status 1."""
    _make_streams_safe()
    try:
        cli()
    except KeyboardInterrupt:
        sys.exit(130)
    except (LLEnvsError, OSError) as error:  # OSError: a full disk, a directory that can't be written
        click.echo(f"Error: {error}", err=True)
        sys.exit(1)


def _make_streams_safe() -> None:
    """Standard streams that are closed go nowhere, and take what their encoding can't say as a question mark."""
    while (opened := os.open(os.devnull, os.O_RDWR)) < 3:
        pass  # a descriptor below 3 was closed: without this the next file to be opened would get what is printed
    os.close(opened)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - as long as the process
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


if __name__ == "__main__":
    main()
