"""The command ``fastreduce``. It is no part of the package, whose import takes torch's seconds, so
that Ctrl-C during them is no traceback."""

import sys


def main() -> int:
    try:
        from fastreduce.cli import main

        return main()
    except KeyboardInterrupt:
        print("fastreduce: interrupted", file=sys.stderr)
        return 130  # fastreduce.cli.status.INTERRUPTED
