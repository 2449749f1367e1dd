"""benchmarks/claims.py, gpu_page.py and predict.py: predictions beside measurements."""

import json

import claims
import predict
import pytest
from gpu_page import page
from kept_results import text_of

H100 = {"gpu": "NVIDIA H100 80GB HBM3", "torch": "2", "date": "2026-11-22"}


def measured(time_s, size_bytes=1024, k=2, from_memory=False, **speed):
    found = {
        "time_s": time_s,
        "over_best": 1.0,
        "of_limit": None,
        "moved_gb_per_s": 2680.0,
        **speed,
    }
    where = {"size_bytes": size_bytes, "k": k, "type": "float32", "tensors": 1, "model": None}
    where["from_memory"] = from_memory
    return {**where, "engine": "tiles", "algorithm": "auto", "called": found, "captured": found}


def lines(machine, *rows):
    head, *found = claims.claims(machine, {"kernels": {"rows": rows}})
    assert head == ("claim", "predicted", "measured", "verdict")
    return {line[0]: line[1:] for line in found}


class TestTimes:
    @pytest.mark.parametrize(
        ("time_s", "verdict"),
        [
            (10e-6, "holds"),
            (12.4e-6, "holds"),
            (20e-6, "2.0 times slower"),
            (5e-6, "2.0 times faster"),
        ],
    )
    def test_near_slower_and_faster(self, time_s, verdict):
        found = lines(H100, measured(time_s))["allreduce, 2 ranks of 1,024 bytes, called"]
        assert found == ("10.0 us", f"{time_s * 1e6:.1f} us", verdict)

    @pytest.mark.parametrize(("from_memory", "predicted"), [(False, "4.7 us"), (True, "7.3 us")])
    def test_of_data_from_a_cache_and_from_memory(self, from_memory, predicted):
        found = lines(H100, measured(8e-6, 1 << 22, from_memory=from_memory))
        assert found["allreduce, 2 ranks of 4,194,304 bytes, captured"][0] == predicted

    def test_only_what_was_measured(self):
        assert not any("8 ranks" in what for what in lines(H100, measured(8e-6)))

    def test_of_a_gpu_that_nothing_was_predicted_for(self):
        found = lines({"gpu": "Tesla T4"}, measured(8e-6))
        assert found and not any("bytes, called" in what for what in found)


class TestEightGPUs:
    def test_what_the_readme_says_of_them_is_not_decided_by_one(self):
        found = lines(H100)
        undecided = [what for what, line in found.items() if "eight GPUs" in line[2]]
        assert len(undecided) == 2
        for predicted, measured, _ in map(found.get, undecided):
            assert predicted in text_of("README.md") and measured == "-"


class TestBounds:
    @pytest.mark.parametrize(("ratio", "verdict"), [(1.1, "holds"), (1.11, "does not hold")])
    def test_of_the_default_program(self, ratio, verdict):
        found = lines(H100, measured(8e-6), measured(8e-6, k=8, over_best=ratio))
        [line] = (x for what, x in found.items() if "fastest program" in what)
        assert line == ("at most 1.1", f"{ratio:.2f}", verdict)

    @pytest.mark.parametrize(("share", "verdict"), [(0.9, "holds"), (0.89, "does not hold")])
    def test_of_the_limit_is_about_large_data(self, share, verdict):
        small = measured(8e-6, of_limit=0.1)
        [line] = (
            x
            for what, x in lines(H100, small, measured(1, 1 << 28, of_limit=share)).items()
            if "loads in flight" in what
        )
        assert line == ("at least 0.9", f"{share:.2f}", verdict)


class TestPage:
    def test_of_nothing(self):
        assert page({"machine": {}, "steps": {}, "results": {}}).startswith(
            "# fastreduce on an unk"
        )

    def test_shares_of_the_limit_and_of_the_data_sheet(self):
        rows = [measured(4e-4, 1 << 28, of_limit=0.95), measured(2e-6)]
        text = page({"machine": H100, "steps": {}, "results": {"kernels": {"rows": rows}}})
        assert "| float32 | 256 MiB | 400.00 (400.0): 0.95, 0.80 |" in text
        assert "| float32 | 1 KiB | 2.00 (2.0): in cache |" in text

    def test_others_beside_ours(self):
        ours = measured(2e-6)
        slower = {**measured(3e-6), "engine": "triton", "algorithm": "kernel"}
        uncaptured = {**slower, "engine": "cupy", "captured": None}
        results = {"peers": {"rows": [ours, slower, uncaptured]}}
        text = page({"machine": H100, "steps": {}, "results": results})
        assert "| 1 KiB | 2 | 2.00 (2.0) | 1.50 (1.50) | - (1.50) |" in text

    def test_names_of_failed_tests_and_of_contenders(self):
        step = {"status": "failed: exit status 1", "seconds": 3.0, "tail": ["1 failed in 3 s"]}
        failure = {"engine": "cupy", "algorithm": "elementwise", "error": "MemoryError: no room"}
        results = {
            "tests": ["FAILED tests/gpu/test_x.py::test_y", "1 failed, 2 passed"],
            "kernels": {"rows": [], "failures": [failure]},
        }
        text = page({"machine": H100, "steps": {"tests": step}, "results": results})
        assert "    FAILED tests/gpu/test_x.py::test_y" in text
        assert "kernels: cupy elementwise: MemoryError: no room" in text


def test_the_predictions_are_those_of_the_script():
    assert json.loads(predict.OUT.read_text()) == json.loads(json.dumps(predict.predicted()))


def test_public_figures_have_sources():
    assert all(x["figure"] and "/" in x["source"] for x in predict.predicted()["public"])
