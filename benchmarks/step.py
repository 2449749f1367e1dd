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
TAIL_LINES = 80
SAVE_S = 20.0  # for an interrupted command to save its results
NO_TIME, INTERRUPTED = "failed: no time left for it", "failed: interrupted"


@dataclass(frozen=True)
class Step:
    name: str
    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    needs: str | None = None  # what is missing here, if anything
    note: str | None = None  # a remark for the report, whether it passes or fails


def run(step: Step, limit_s: float) -> dict[str, Any]:
    print(f"== {step.name}: {shlex.join(step.command)}", flush=True)
    if step.note:
        print(f"   {step.note}", flush=True)
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
    return {
        "name": step.name,
        "date": datetime.date.today().isoformat(),
        "command": shlex.join(step.command),
        **({"note": step.note} if step.note else {}),
        "status": status,
        "seconds": round(seconds, 1),
        "tail": tail,
    }


def outcome(step: Step, limit_s: float) -> tuple[str, str]:
    """Its status and what it printed. The process has always ended when this returns."""
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
    if code != 0:
        return f"failed: exit status {code}"
    if "pytest" in step.command and not re.search(r"\b[1-9]\d* passed", output):
        return "failed: no test ran"
    return "passed"
