# SPDX-License-Identifier: Apache-2.0
"""`trireme` and `python -m trireme`: help, version, and the way to a subcommand."""

import difflib
import io
import sys
from importlib.metadata import version

import typer

from trireme.commands import COMMANDS, EXIT_USAGE, run_command
from trireme.init_process import leave_process_1


def main() -> int:
    """Run the command line, and return the exit code where no subcommand ran."""
    _write_whatever_the_terminal_cannot()
    match sys.argv[1:]:
        case [] | ["--help" | "-h" | "help"]:
            typer.echo(_help())
        case ["--version"]:
            typer.echo(f"trireme {version('trireme')}")
        case [name, *args] if name in COMMANDS:
            leave_process_1()
            run_command(name, args)
        case [name, *_]:
            typer.echo(_unknown(name), err=True)
            return EXIT_USAGE
    return 0


def _write_whatever_the_terminal_cannot() -> None:
    """Write `?` for a character that standard output's encoding lacks; Python by itself would end with a traceback."""
    stream = sys.stdout
    if isinstance(stream, io.TextIOWrapper) and stream.errors in {"strict", "surrogateescape"}:
        stream.reconfigure(errors="replace")


def _help() -> str:
    width = max(map(len, COMMANDS))
    return "\n".join(
        [
            "Usage: trireme COMMAND [OPTIONS]",
            "",
            "Serves large language models on NVIDIA Triton.",
            "",
            "Commands:",
            *(f"  {name:{width}}  {command.help}" for name, command in COMMANDS.items()),
            "",
            "Options:",
            "  --version  Print the version.",
            "  --help     Print this; after a command, print its options and examples.",
            "",
            "Examples:",
            "  trireme serve",
            '  trireme generate "Once upon a time" --max-tokens 64',
        ]
    )


def _unknown(name: str) -> str:
    close = difflib.get_close_matches(name, COMMANDS, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(COMMANDS)}"
    return f"trireme: no command {name!r}; {hint}"


if __name__ == "__main__":
    sys.exit(main())
