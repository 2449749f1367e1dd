"""Settings of the whole run."""

from collections.abc import Iterator

import pytest
from reference import threads

try:
    from hypothesis import settings
except ImportError:
    pass  # tests/gpu needs pytest alone
else:
    # No deadline: the machine may be busy, and no test here is about time.
    settings.register_profile("fastreduce", deadline=None, print_blob=True)
    settings.load_profile("fastreduce")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tests that are about threads ask for them: elsewhere, on a busy machine, they only wait."""
    with threads(1):
        yield
