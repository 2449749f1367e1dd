"""The command ``fastreduce``: one file for each of its subcommands."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import fastreduce
from fastreduce.cli import calibrate, diff, doctor, plan, synthesize, train, tune
from fastreduce.cli.status import FAILED, INTERRUPTED, NO_READER
from fastreduce.files import in_words

__all__ = ["main"]

COMMANDS = (train, plan, synthesize, tune, calibrate, diff, doctor)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that ``argv`` (default: the process's) names, and return its exit status.

    0 is success, 1 an error while it runs (2 in ``diff``), 130 Ctrl-C, 141 that whoever read the
    output has stopped, as ``head`` does. Wrong arguments raise SystemExit(2), after a line that
    says which and why, as argparse does.

    >>> main(["train", "--data", "/no/such/folder"])
    1
    """
    _write_whatever_is_said()
    status_of_errors = FAILED
    try:
        args = _parser().parse_args(argv)  # in here, because help may need what is missing
        status_of_errors = args.status_of_errors
        status: int = args.run(args)
        print(end="", flush=True)  # here, where an error of it can still be handled
        return status
    except KeyboardInterrupt:
        print("fastreduce: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more
        return NO_READER
    except ImportError as error:
        print(f"fastreduce: error: {error}; see `fastreduce doctor`", file=sys.stderr)
        return status_of_errors
    except (OSError, RuntimeError, ValueError) as error:
        print(f"fastreduce: error: {in_words(error)}", file=sys.stderr)
        return status_of_errors


def _write_whatever_is_said() -> None:
    """A name that the terminal cannot show is written as Python's stderr writes it, and is no
    error: a run may have begun by then."""
    if reconfigure := getattr(sys.stdout, "reconfigure", None):  # it may be any object, or None
        reconfigure(errors="backslashreplace")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("fastreduce", description="Allreduce for PyTorch.")
    version = f"fastreduce {fastreduce.__version__}"
    parser.add_argument("--version", action="version", version=version)
    parser.set_defaults(status_of_errors=FAILED)
    commands = parser.add_subparsers(required=True, metavar="command")
    for command in COMMANDS:
        command.add(commands)
    return parser
