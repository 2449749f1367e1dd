"""Object files of what a module of tests names in its SOURCES, unchanged."""

from functools import cache

import pytest
from builds import Build
from virtual_builds import compile_all


@pytest.fixture(scope="module")
def objects_of(request, object_files):
    """By sanitizer, and by source: mutants are linked with most of them."""
    sources = request.module.SOURCES
    return cache(lambda sanitizer: compile_all(Build(sanitizer, object_files), sources))


@pytest.fixture(scope="module")
def objects(objects_of):
    """Without a sanitizer."""
    return objects_of("plain")
