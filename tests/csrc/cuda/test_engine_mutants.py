"""Mutants of the CUDA engines that must not get through the modes of test_engines.py."""

import pytest
from builds import needs_compiler, run
from engine_mutants import MUTANTS
from flags_mutants import FLAGS_MUTANTS
from virtual_builds import ENGINES_AND_TESTS

SOURCES = ENGINES_AND_TESTS
ALL_MUTANTS = MUTANTS | FLAGS_MUTANTS

pytestmark = [needs_compiler, pytest.mark.sweep("mutants")]


@pytest.mark.parametrize("name", ALL_MUTANTS)
def test_they_are_found(name, objects_of, programs, tmp_path):
    mutant = ALL_MUTANTS[name]
    done = run(mutant.build(tmp_path, SOURCES, objects_of(mutant.sanitizer)), mutant.mode, programs)
    assert done.returncode != 0
    assert mutant.words in done.stdout + done.stderr
