"""Measured times as files hold them: what is read, and what is refused with the line."""

import json
import sys

import pytest

from fastreduce.plan.runs import Point, read

HEAD = """# nThread 1 nGpus 1 minBytes 1024 maxBytes 8589934592 step: 2(factor)
#  Rank  0 Group  0 Pid  29262 on node0 device  0 [0000:19:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid  29263 on node0 device  1 [0000:3b:00] NVIDIA H100 80GB HBM3
#       size         count      type   redop    root     time   algbw   busbw #wrong     time
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)
"""
ROW = "   1048576        262144     float     sum      -1    71.93   14.58   14.58      0"
NEW = HEAD + ROW + "    65.54   16.00   16.00      0\n"
OLD = (
    HEAD
    + "   1048576   262144   float   sum    71.93   14.58   14.58  2e-07    65.54   16.00   16.00"
)


def write(folder, text):
    path = folder / "two_h100.txt"
    path.write_text(text)
    return path


class TestNcclTests:
    @pytest.mark.parametrize(
        "text",
        [
            *(NEW, OLD, NEW.replace("   1048576", "node0: 0:   1048576")),
            "".join(f"[1,0]<stdout>:{line}\n" for line in NEW.splitlines()),  # mpirun --tag-output
            "".join(f"[0] {line}\n" for line in NEW.splitlines()),  # mpiexec -l
            "".join(f"[pod/nccl-0/nccl] {line}\n" for line in NEW.splitlines()),  # kubectl --prefix
        ],
        ids=["new", "old", "names", "tags", "ranks", "pods"],
    )
    def test_takes_the_time_in_place_of_each_row(self, tmp_path, text):
        (run,) = read(write(tmp_path, text))
        assert run.points == (Point(1 << 20, pytest.approx(65.54e-6)),)
        assert (run.ranks, run.engine, run.medium) == (2, "NCCL", "two_h100")

    def test_takes_the_only_time_where_there_is_one(self, tmp_path):
        (run,) = read(write(tmp_path, HEAD + ROW))
        assert run.points[0].time_s == pytest.approx(71.93e-6)

    @pytest.mark.parametrize("end", [None, -9])
    @pytest.mark.parametrize("first", [True, False])
    def test_a_row_that_ends_behind_the_first_of_two_times_is_cut_short(self, tmp_path, first, end):
        again = NEW.splitlines()[-1].replace("1048576", "1048580")
        read(write(tmp_path, NEW + again))  # the control
        cut = again[: len(ROW)][:end] if end else again[: len(ROW)]
        text = HEAD + cut + "\n" + again if first else NEW + cut
        with pytest.raises(
            ValueError,
            match=rf"line {6 if first else 7}: .* was cut short; want a whole row of nccl-tests",
        ):
            read(write(tmp_path, text))

    @pytest.mark.parametrize("end", ["", "  2026-11-30 10:00:00"])
    def test_columns_of_single_iterations(self, tmp_path, end):
        """Which a header of newer versions names: i_min, i_max, i_p99 and i_cv%, of each time."""
        more, figures = " i_min i_max i_p99 i_cv%", " 60.11 82.30 81.95 3.21"
        head = HEAD.replace("#wrong     time", f"#wrong{more} time algbw busbw #wrong{more}")
        row = f"{ROW}{figures}    65.54   16.00   16.00      0{figures}{end}\n"
        (run,) = read(write(tmp_path, head + row))
        assert run.points == (Point(1 << 20, pytest.approx(65.54e-6)),)
        with pytest.raises(ValueError, match=r"line 6: 5 results are wrong \(#wrong\)"):
            read(write(tmp_path, head + row.replace(f"0{figures}{end}\n", f"5{figures}{end}")))

    @pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig"])
    def test_text_that_begins_with_a_mark(self, tmp_path, encoding):
        """PowerShell writes so what is redirected to a file."""
        path = tmp_path / "two_h100.txt"
        for text in (NEW, json.dumps({"rows": [ROW_OF_JSON]})):
            expected = read(write(tmp_path, text))
            path.write_text(text, encoding=encoding)
            assert read(path) == expected

    def test_rows_without_bytes_are_passed_over(self, tmp_path):
        """nccl-tests prints them for sizes below an element's."""
        none = "           0      0     float     sum      -1     5.10    0.00    0.00      0\n"
        assert read(write(tmp_path, HEAD + none + ROW)) == read(write(tmp_path, HEAD + ROW))

    def test_an_output_that_is_there_twice_counts_once(self, tmp_path):
        """Else a point that is held out would be fitted to, or none would be left to fit."""
        (run,) = read(write(tmp_path, NEW + NEW))
        assert len(run.points) == 1

    def test_runs_in_one_file_keep_their_own_numbers_of_ranks(self, tmp_path):
        more = "".join(f"#  Rank  {rank} Group 0 on node0 device {rank}\n" for rank in range(4))
        four = more + ROW.replace("14.58      0", "21.87      0") + "\n"
        for text in (NEW + four, four + NEW):  # the number grows, or becomes less
            by_ranks = {run.ranks: run.points[0].time_s for run in read(write(tmp_path, text))}
            assert by_ranks == {2: pytest.approx(65.54e-6), 4: pytest.approx(71.93e-6)}

    def test_files_of_one_name_in_two_folders_are_two_machines(self, tmp_path):
        for folder in ("a", "b"):
            (tmp_path / folder).mkdir()
            write(tmp_path / folder, NEW)
        one, again, other = (read(tmp_path / x / "two_h100.txt")[0] for x in ("a", "./a", "b"))
        assert one == again and one.machine != other.machine and one.source != other.source

    @pytest.mark.parametrize("kind", ["half", "uint8", "f8e4m3", "f8e5m2", "fp8_e4m3"])
    def test_knows_the_types(self, tmp_path, kind):
        assert len(read(write(tmp_path, NEW.replace("float", kind)))[0].points) == 1

    @pytest.mark.parametrize(
        "line",
        [
            "",
            "# 1048576 262144 float sum -1 0.00 0.00 0.00 0",
            "NCCL version 2.21.5+cuda12.4",
            "node0:29262:29301 [0] NCCL INFO Channel 00/24 : 0 1 2 3 4 5 6 7",
            "2026-11-23 10:00:00 starting",
            "WARNING: 2 GPUs share a switch",
        ],
    )
    def test_headers_comments_and_logs_are_no_rows(self, tmp_path, line):
        found = read(write(tmp_path, HEAD + line + "\n" + ROW))
        assert found == read(write(tmp_path, HEAD + ROW))

    def test_the_medium_can_be_named(self, tmp_path):
        assert read(write(tmp_path, NEW), "NVLink")[0].medium == "NVLink"

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("", "the file is empty, want times of allreduce"),
            (HEAD, "no row of nccl-tests"),
            (HEAD + ROW.replace("71.93", " nine"), "line 6: .* has no time, algbw and busbw"),
            (HEAD + ROW.replace("71.93", " 0.00"), "line 6: the time is 0.0 us, want one above"),
            (HEAD + ROW.replace("14.58      0", "29.16      0"), "line 6: .* is it an allreduce"),
            (NEW + ROW.replace("float", "flooat"), "line 7: .* is no row of nccl-tests: want size"),
            (NEW + ROW.replace("1048576", "10x8576"), "line 7: .* is no row of nccl-tests"),
            (NEW + "0: " + ROW[:12], "line 7: '1048576' is no row of nccl-tests"),
            (HEAD + ROW.replace("  1048576", " -1048576"), "line 6: the size is -1048576, want"),
            (HEAD + ROW[:-14], "line 6: .*71.93   14.58' has no time, algbw and busbw, or was cut"),
            (NEW[:-20], "line 6: .* has no time, algbw and busbw, or was cut short"),
            (ROW, "line 1: a time before 2 ranks are named"),
            (NEW[:-2] + "7\n", r"line 6: 7 results are wrong \(#wrong\)"),
            (HEAD + ROW[:-1] + "12", r"line 6: 12 results are wrong"),
            (HEAD + ROW[:-1] + "2.68435e+08", r"line 6: 2.68435e\+08 results are wrong"),
            (HEAD.replace("   time", "cputime") + ROW, "line 4: the times are the CPU's"),
            (HEAD.replace("#  Rank  1", "#  Rank  0") + ROW, "line 6: .* run on 2 GPUs or more"),
            (HEAD + "nccl-1  | " + ROW, r"no row .*line 6 has one behind 'nccl-1  \|': take that"),
            (NEW + "# Out of bounds values : 24 FAILED", "line 7: 'Out of bounds values : 24 FAI"),
            (NEW + "a: Test NCCL failure common.cu:961 'error'", 'line 7: "a: Test NCCL failure'),
            (HEAD + "a: Test CUDA failure b.cu:9", "line 6: .* a run without a failure"),
            (NEW + ".. a pid 7: Test failure common.cu:9", "line 7: .* a run without a failure"),
            (HEAD + "9" * 400 + ROW[10:], "line 6: the size is 9+, want a whole number"),
            ("# Collective test starting: broadcast_perf\n" + NEW, "this is no allreduce, but"),
            (NEW.replace(" sum ", "none "), r"line 6: .* reduces nothing \(none\), want an allr"),
            ("{not json", "this is not JSON: Expecting property name"),
            ("{}", "neither a table of `fastreduce tune`"),
            ('{"rows": []}', "no times of allreduce in it"),
            ('{"rows": [{"k": 2, "nbytes": 4, "time_s": 0}]}', "row 0: the time is 0"),
        ],
    )
    def test_wrong_files_are_refused_in_words(self, tmp_path, text, words):
        path = write(tmp_path, text)
        with pytest.raises(ValueError, match=words) as refused:
            read(path)
        assert str(path) in str(refused.value)


ROW_OF_JSON = {"k": 2, "nbytes": 4096, "time_s": 1e-5}
TABLE = {"format": "fastreduce table", "device": "4 x T4"}
PUBLISHED = {"format": "fastreduce published"}
RUN = {"machine": "a", "medium": "b", "engine": "NCCL", "source": "c", "ranks": 8, "points": []}


class TestJson:
    def test_a_table_of_tune_has_a_run_for_each_algorithm_and_number_of_ranks(self, tmp_path):
        times = {"pcie": {"ring": {"2": {"1024": 2e-6, "4096": 3e-6}, "4": {"1024": 5e-6}}}}
        table = {"format": "fastreduce table", "device": "4 x T4", "times_s": times}
        two, four = read(write(tmp_path, json.dumps(table)))
        assert (two.medium, two.engine, two.ranks) == ("pcie", "fastreduce ring", 2)
        assert two.points == (Point(1024, 2e-6), Point(4096, 3e-6))
        assert four.ranks == 4

    def test_rows_of_a_benchmark_are_grouped_by_contender(self, tmp_path):
        rows = [
            {"k": 2, "collective": "all_reduce", "contender": x, "nbytes": n, "time_s": n / 1e9}
            for n in (4096, 1024)
            for x in ("gloo", "fastreduce")
        ]
        rows.append({**rows[0], "collective": "broadcast"})
        found = read(write(tmp_path, json.dumps({"machine": {"cpu": "Zen"}, "rows": rows})))
        assert [(x.machine, x.engine, len(x.points)) for x in found] == [
            ("Zen", "gloo", 2),
            ("Zen", "fastreduce", 2),
        ]
        assert found[0].points[0].nbytes == 1024

    @pytest.mark.parametrize(
        ("engine", "devices", "medium", "name"),
        [
            ("tiles", {}, "gpu", "fastreduce ring"),
            ("events", {}, "gpu", "fastreduce events ring"),
            ("flags", {"devices": 1}, "gpu", "fastreduce flags ring"),
            ("gpus", {"devices": 2}, "two_h100", "fastreduce ring"),
            ("gpus-flags", {"devices": 2}, "two_h100", "fastreduce flags ring"),
            ("torch", {}, "gpu", "torch ring"),
            ("torch", {"devices": 2}, "two_h100", "torch ring"),
        ],
    )
    def test_rows_are_of_links_only_where_each_rank_has_a_gpu(
        self, tmp_path, engine, devices, medium, name
    ):
        """Else a plan would take what several ranks on one GPU took for times of links."""
        row = ROW_OF_JSON | {"engine": engine, "algorithm": "ring"} | devices
        (run,) = read(write(tmp_path, json.dumps({"machine": {"gpu": "H100"}, "rows": [row]})))
        assert (run.medium, run.engine) == (medium, name)

    def test_rows_of_ranks_on_the_cpu_are_of_its_memory(self, tmp_path):
        row = ROW_OF_JSON | {"engine": "tiles", "algorithm": "ring"}
        (run,) = read(write(tmp_path, json.dumps({"machine": {"cpu": "Zen"}, "rows": [row]})))
        assert (run.medium, run.engine) == ("cpu", "fastreduce ring")

    @pytest.mark.parametrize(
        "other",
        [
            {"redop": "max"},
            {"type": "float16"},
            {"tensors": 2},
            {"collective": "broadcast"},
            {"engine": "gpus", "k": 4, "devices": 2},  # two ranks on each GPU
            {"engine": "gpus"},  # on how many GPUs is not said
        ],
    )
    def test_other_rows_are_passed_over(self, tmp_path, other):
        rows = [ROW_OF_JSON, ROW_OF_JSON | {"time_s": 1} | other]
        (run,) = read(write(tmp_path, json.dumps({"rows": rows})))
        assert run.points == (Point(4096, 1e-5),)

    @pytest.mark.parametrize(
        ("found", "words"),
        [
            ({"rows": [1]}, "row 0 is 1, want an object"),
            ({"rows": [{"k": "2", "nbytes": 4, "time_s": 1}]}, "row 0: k is '2', want a whole"),
            ({"rows": [{"k": 1, "nbytes": 4, "time_s": 1}]}, "ranks is 1, want 2 or more"),
            ({"rows": [{"k": 2, "nbytes": 0, "time_s": 1}]}, "row 0: the size is 0, want a whole"),
            ({"rows": [{"k": 2, "nbytes": 4, "time_s": True}]}, "row 0: the time is True"),
            ({"rows": [ROW_OF_JSON | {"wrong_elems": 5}]}, r"row 0: 5 results are wrong \(wrong"),
            ({"format": "fastreduce table"}, "the table is without 'device'"),
            (TABLE | {"times_s": []}, r"the table: times_s is \[\], want an object"),
            (TABLE | {"times_s": {"gpu": 3}}, "gpu: found 3, want an object"),
            (TABLE | {"times_s": {"gpu": {"ring": [1]}}}, r"gpu: ring is \[1\], want an object"),
            (TABLE | {"times_s": {"gpu": {"ring": {"two": {}}}}}, "key is 'two', want a whole"),
            (TABLE | {"times_s": {"gpu": {"ring": {"2": 7}}}}, "2 ranks: found 7, want an object"),
            ({"rows": [ROW_OF_JSON | {"time_s": 10**400}]}, "row 0: the time is 10+.*, want sec"),
            (PUBLISHED | {"runs": [RUN | {"points": [[8, None, 10**400]]}]}, "busbw is 10+.* at 8"),
            (PUBLISHED | {"runs": [RUN | {"points": [[8, None, True]]}]}, "busbw is True at 8"),
            (PUBLISHED, "the file is without 'runs'"),
            (PUBLISHED | {"runs": [1]}, "run 0 is without 'machine'"),
            (PUBLISHED | {"runs": [RUN | {"ranks": "8"}]}, r"run 0 \(a\): ranks is '8', want a"),
            (PUBLISHED | {"runs": [RUN | {"points": [[1, 2]]}]}, r"found \[1, 2\], want bytes"),
            (PUBLISHED | {"runs": [RUN | {"points": [[8, -1, 1]]}]}, "the time is -1, want"),
            (PUBLISHED | {"runs": [RUN | {"points": [[8, None, "x"]]}]}, "busbw is 'x' at 8 bytes"),
        ],
    )
    def test_what_was_edited_and_is_wrong_is_said(self, tmp_path, found, words):
        with pytest.raises(ValueError, match=words):
            read(write(tmp_path, json.dumps(found)))

    def test_so_is_what_is_nested_too_deep(self, tmp_path):
        words = "maximum recursion depth" if sys.version_info < (3, 14) else "Stack overflow"
        with pytest.raises(ValueError, match=f"this is not JSON: {words}"):
            read(write(tmp_path, "[" * 100_000))

    def test_published_runs(self, tmp_path):
        """A time that was not published follows from busbw."""
        run = RUN | {"points": [[1 << 20, 2e-5, 91.75], [1 << 21, None, 100.0]]}
        (found,) = read(write(tmp_path, json.dumps(PUBLISHED | {"runs": [run]})))
        assert found.points == (Point(1 << 20, 2e-5), Point(1 << 21, 1.75 * (1 << 21) / 100e9))
