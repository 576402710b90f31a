"""The command `ptn`.

Exit codes: 0, done and nothing is wrong; 1, done and something is wrong (a damaged or refused program, numbers that
differ, a broken engine); 2, it could not be done (wrong usage, a file that cannot be read, an engine that fails).
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from ptn_format.errors import FormatError

from ptn_runtime._version import __version__
from ptn_runtime.errors import PtnRuntimeError

__all__ = ["main"]

TRACEBACK_VARIABLE = "PTN_TRACEBACK"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code.

    Args:
        argv: the arguments; None takes the process's own.
    """
    parser = _parser()
    arguments = _parse(parser, argv)
    if arguments.command is None:
        parser.print_help()
        return 2
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of a pipe, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (PtnRuntimeError, FormatError, OSError, MemoryError) as error:
        print(f"ptn: error: {_text(error)}", file=sys.stderr)
        return 2
    except Exception as error:  # a fault of ours or of a plugin: one paragraph for users, the traceback on demand
        if os.environ.get(TRACEBACK_VARIABLE):
            raise
        print(
            f"ptn: internal error: {type(error).__name__}: {error}. This is a bug, please report it with the output of "
            f"'ptn doctor'; {TRACEBACK_VARIABLE}=1 shows where it happened.",
            file=sys.stderr,
        )
        return 2
    except KeyboardInterrupt:
        print("ptn: interrupted", file=sys.stderr)
        return 130
    return code


def _parse(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """As `parse_args`, with input files also after options: argparse takes a list of positionals only in one piece."""
    arguments, rest = parser.parse_known_args(argv)
    if rest:
        if not hasattr(arguments, "inputs") or any(text.startswith("-") for text in rest):
            parser.error(f"unrecognized arguments: {' '.join(rest)}")
        arguments.inputs = [*arguments.inputs, *rest]
    return arguments


def _text(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, MemoryError):
        return f"out of memory: {error}".rstrip(": ")
    return str(error)


def _parser() -> argparse.ArgumentParser:
    from ptn_runtime.cli import bench, check, doctor, engines, run, show, verify

    parser = argparse.ArgumentParser(
        prog="ptn",
        description="Look into .ptn packages and run them.",
        epilog="Exit codes: 0 all is well; 1 something is wrong with what was looked at; 2 it could not be done.",
    )
    parser.add_argument("--version", action="version", version=f"ptn {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for module in (show, run, bench, check, verify, engines, doctor):
        module.add_command(commands)
    return parser
