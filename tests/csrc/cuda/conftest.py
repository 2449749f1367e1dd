"""What modules of tests share: object files of their SOURCES, unchanged, and all programs."""

from functools import cache

import pytest
from builds import Build
from program_files import write_programs
from virtual_builds import HERE, compile_all


@pytest.fixture(scope="module")
def objects_of(request, object_files):
    """By sanitizer, and by source: mutants are linked with most of them."""
    sources = request.module.SOURCES
    return cache(lambda sanitizer: compile_all(Build(sanitizer, object_files), sources))


@pytest.fixture(scope="module")
def objects(objects_of):
    """Without a sanitizer."""
    return objects_of("plain")


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """The file, and an NVML beside it."""
    folder = tmp_path_factory.mktemp("programs")
    Build("plain", folder).library(HERE / "virtual_nvml.cpp", folder, "libnvidia-ml.so.1")
    return write_programs(folder / "programs.txt")
