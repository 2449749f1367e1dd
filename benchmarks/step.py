"""Runs a command with a time limit, and reports how it ended."""

from __future__ import annotations

import datetime
import os
import re
import shlex
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
TAIL_LINES = 20
SAVE_S = 20.0  # for an interrupted command to save its results
NO_TIME, INTERRUPTED = "failed: no time left for it", "failed: interrupted"


@dataclass(frozen=True)
class Step:
    """A command, and what is to be kept of it."""

    name: str
    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    needs: str | None = None  # what is missing here, if anything
    result: Path | None = None  # the JSON that it writes
    picture: Path | None = None
    quotes: str | None = None  # lines of its output; without one of them it has not passed
    denied: str | None = None  # a line of its output that says that it may not run here


def run(step: Step, limit_s: float) -> tuple[dict[str, Any], str]:
    """What became of it, for a report, and all that it printed."""
    print(f"== {step.name}: {shlex.join(step.command)}", flush=True)
    begin = time.monotonic()
    output = ""
    if step.needs:
        status = f"left out: {step.needs}"
    elif limit_s <= 0:
        status = NO_TIME
    else:
        status, output = outcome(step, limit_s)
    tail = output.splitlines()[-TAIL_LINES:]
    seconds = time.monotonic() - begin
    print("\n".join([*tail[-5:], f"   {status}, {seconds:.0f} s"]), flush=True)
    record = {
        "date": datetime.date.today().isoformat(),
        "command": shlex.join(step.command),
        "status": status,
        "seconds": round(seconds, 1),
        "tail": tail,
    }
    return record, output


def outcome(step: Step, limit_s: float) -> tuple[str, str]:
    """Its status and what it printed. The process has always ended when this returns."""
    try:
        process = subprocess.Popen(
            step.command,
            cwd=ROOT,
            env={**os.environ, **step.environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        return f"failed: {error}", ""
    try:
        output, _ = process.communicate(timeout=limit_s)
        return judge(step, process.returncode, output), output
    except subprocess.TimeoutExpired:
        return f"failed: not done after {limit_s:.0f} s", stop(process)
    except KeyboardInterrupt:
        return INTERRUPTED, stop(process)
    finally:
        signal_all(process, signal.SIGKILL)


def stop(process: subprocess.Popen[str]) -> str:
    """Interrupt before killing, because a benchmark that is interrupted saves what it has."""
    signal_all(process, signal.SIGINT)
    try:
        return process.communicate(timeout=SAVE_S)[0]
    except subprocess.TimeoutExpired:
        signal_all(process, signal.SIGKILL)
        return process.communicate()[0]


def signal_all(process: subprocess.Popen[str], number: signal.Signals) -> None:
    """Signal the process and all that it started, if any still runs."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def judge(step: Step, code: int, output: str) -> str:
    if step.denied and (line := re.search(step.denied, output, re.MULTILINE)):
        return f"left out: {line[0].strip()}"
    if code != 0:
        return f"failed: exit status {code}"
    if step.quotes and not re.search(step.quotes, output, re.MULTILINE):
        return f"failed: it printed no line like {step.quotes}"
    return "passed"
