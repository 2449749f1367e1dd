"""The README's examples run as they stand, in order, in one namespace."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)


def test_there_are_examples():
    assert len(EXAMPLES) >= 4


def test_examples_run(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # some write pictures
    namespace: dict = {}
    for number, example in enumerate(EXAMPLES):
        exec(compile(example, f"README.md, example {number}", "exec"), namespace)


def test_a_wrong_example_would_be_noticed():
    broken = EXAMPLES[-1].replace("1111.0", "1112.0")
    assert broken != EXAMPLES[-1]
    with pytest.raises(AssertionError):
        exec(broken, {"torch": __import__("torch"), "fastreduce": __import__("fastreduce")})
