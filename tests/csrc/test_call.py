"""A call of which not all is said."""

import pytest
from builds import CSRC, Build, needs_compiler, run

PROGRAM = """
#include "call.h"

int main() {
  fastreduce::Call call;
  return call.collective == fastreduce::Collective::allreduce && call.inputs.ranks == 0 ? 0 : 1;
}
"""

pytestmark = [needs_compiler, pytest.mark.sweep("compiles csrc")]


def test_what_is_left_out_does_not_depend_on_what_lay_in_memory(tmp_path):
    """Or g++ does not compile this."""
    source = tmp_path / "call_test.cpp"
    source.write_text(PROGRAM)
    build = Build("plain", tmp_path)
    program = build.link([build.compile(source)], tmp_path)
    assert run(program).returncode == 0


def test_a_build_for_a_debugger_has_no_warning(tmp_path):
    """Or g++ does not compile this. Some warnings come only where nothing is optimized."""
    Build("plain", tmp_path).compile(CSRC / "call.cpp", "-O0")
