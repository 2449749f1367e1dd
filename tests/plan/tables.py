"""Tables to test with, whole ones and spoiled ones."""

import math

from hypothesis import strategies as st

from fastreduce.algorithms import built_in
from fastreduce.plan.defaults import DEFAULTS
from fastreduce.plan.machine import device, versions
from fastreduce.plan.noise import NoisyMeasurement
from fastreduce.plan.table import Table
from fastreduce.plan.tune import measure

BUILT_IN = built_in()
KS, SIZES = (2, 4, 8), (1 << 10, 1 << 14, 1 << 18)
PLACES = ("cpu", "nvlink")
SECONDS = st.floats(1e-7, 1e2)


def times(value=1e-6, places=PLACES, **faster):
    """A full grid, in which the algorithms named (with _ for -) take other times."""
    slow = {name: value for name in BUILT_IN}
    chosen = slow | {name.replace("_", "-"): seconds for name, seconds in faster.items()}
    return {
        place: {name: {k: dict.fromkeys(SIZES, s) for k in KS} for name, s in chosen.items()}
        for place in places
    }


def table(times_s=None, **changes):
    about = dict(zip(("device", "fastreduce", "torch"), (device(), *versions()), strict=True))
    return Table(**{**about, "date": "2026-11-21", "times_s": times_s or times(), **changes})


def grids():
    """Tables of one place with any times."""
    cells = st.fixed_dictionaries(dict.fromkeys(SIZES, SECONDS))
    by_k = st.fixed_dictionaries(dict.fromkeys(KS, cells))
    return st.sampled_from(sorted(DEFAULTS)).flatmap(
        lambda place: st.fixed_dictionaries(
            {place: st.fixed_dictionaries(dict.fromkeys(BUILT_IN, by_k))}
        )
    )


def quick(**changes):
    """A table measured here in a moment; that other work may disturb it does not matter."""
    few = {"budget_s": 1e-6, "_ks": (2, 3), "_sizes_bytes": (1 << 10, 1 << 12)}
    try:
        return measure(**few | changes)
    except NoisyMeasurement as noisy:
        return noisy.table


def without(found, *keys):
    *way, last = keys
    for key in way:
        found = found[key]
    del found[last]


def put(found, value, *keys):
    *way, last = keys
    for key in way:
        found = found[key]
    found[last] = value


WRONG_TIMES = [
    (lambda t: without(t, "cpu", "ring"), r"cpu, ring, k = 2, 1024 bytes: no time"),
    (lambda t: without(t, "cpu", "ring", 4), r"cpu, ring, k = 4, 1024 bytes: no time"),
    (lambda t: without(t, "cpu", "tree", 8, 1 << 14), r"cpu, tree, k = 8, 16384 bytes: no time"),
    (lambda t: put(t, 1e-6, "cpu", "tree", 8, 77), r"k = 2, 77 bytes: no time"),
    *(
        (
            lambda t, bad=bad: put(t, bad, "nvlink", "host", 2, 1 << 18),
            r"nvlink, host, k = 2, 262144 bytes: found .*, want seconds above zero",
        )
        for bad in (math.nan, math.inf, -math.inf, 0.0, -1e-6, "1e-6", True, [])
    ),
    (lambda t: put(t, {}, "moon"), r"place 'moon' is not known, want cpu, gpu"),
    (lambda t: put(t, t["cpu"]["ring"], "cpu", "rnig"), r"cpu: algorithm 'rnig' is not known"),
    (lambda t: t.clear(), "no place was measured"),
    (lambda t: put(t, {}, "cpu"), r"cpu: ranks \[\], sizes \[\]: want some"),
]
