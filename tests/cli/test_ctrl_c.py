"""``fastreduce train`` and Ctrl-C: it ends at once, and says what was reached and what to do."""

import json
import shlex
import signal
import subprocess
import sys

import pytest
from subprocesses import run_python

from fastreduce.cli import main
from fastreduce.training import Trainer
from fastreduce.training.data import SAMPLE

PNG = b"\x89PNG"
QUICK = ["train", "--data", str(SAMPLE), "--model", "mlp", "--devices", "cpu"]


def test_it_ends_cleanly_with_what_was_reached(tmp_path):
    flags = ["--steps", "1", "--epochs", "100000", "--out", tmp_path]
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [sys.executable, "-m", "fastreduce", *QUICK, *flags], stdout=pipe, stderr=pipe, text=True
    )
    _, _, first = (process.stdout.readline() for _ in range(3))
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert first.startswith("epoch 1/100000:")
    *epochs, closing, written, then = [first, *out.splitlines()]
    assert closing.startswith("test acc: 0.")
    names = ("metrics.jsonl", "learning_curve.png", "checkpoints")
    assert written == f"written: {' '.join(str(tmp_path / name) for name in names)}"
    assert then == f"to go on from there: fastreduce train --resume {shlex.quote(str(tmp_path))}"
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line).get("epoch") for line in lines] == [None, *range(1, len(epochs) + 1)]
    assert (tmp_path / "learning_curve.png").read_bytes().startswith(PNG)
    assert "interrupted in epoch" in err
    assert "Traceback" not in err


def test_in_the_first_epoch_it_says_that_nothing_was_reached(monkeypatch, capsys, tmp_path):
    step = Trainer._step

    def and_then_ctrl_c(*arguments):
        step(*arguments)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Trainer, "_step", and_then_ctrl_c)
    assert main([*QUICK, "--out", str(tmp_path)]) == 130
    out, err = capsys.readouterr()
    assert out.splitlines()[2:] == [
        "no epoch ended: no accuracy, no learning curve",
        f"written: {tmp_path / 'metrics.jsonl'}",
    ]
    assert err == "fastreduce: interrupted in epoch 1\n"


@pytest.mark.parametrize("module", ["torch", "fastreduce.cli"])
def test_while_it_is_imported_it_is_no_traceback(module):
    code = f"""
        import sys

        class CtrlC:
            def find_spec(name, *_):
                if name == {module!r}:
                    raise KeyboardInterrupt

        sys.meta_path.insert(0, CtrlC)
        from _fastreduce_command import main
        sys.exit(main())
    """
    done = run_python(code)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "fastreduce: interrupted\n")
