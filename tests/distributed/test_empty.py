"""Tensors in memory that peers can reach."""

from pathlib import Path

import failure_scenarios
import pytest
import torch
import torch.distributed as dist
from processes import in_a_group
from subprocesses import output_of

from fastreduce.distributed import empty


@pytest.mark.parametrize("sizes", [(), (0,), (3, 0), (5,), (2, 3, 4), (1_500_000,)], ids=str)
@pytest.mark.parametrize("dtype", [None, torch.bool, torch.bfloat16, torch.complex128])
def test_like_torch_empty(sizes, dtype):
    found, wanted = empty(*sizes, dtype=dtype), torch.empty(sizes, dtype=dtype)
    assert (found.shape, found.dtype, found.device) == (wanted.shape, wanted.dtype, wanted.device)
    assert found.is_contiguous() and found.fill_(1).eq(1).all()


@pytest.mark.parametrize("shape", [(), (5,), (2, 3), [2, 3], torch.Size((2, 3))])
def test_of_a_tuple(shape):
    assert empty(shape).shape == torch.empty(shape).shape


@pytest.mark.parametrize("before", [0, 3, 5])
def test_its_length_may_change(before):
    """As in torch's batched_powerSGD_hook, which pads the bucket that it is given."""
    x = empty(before, dtype=torch.float64).fill_(1)
    x.resize_(1000)[before:].fill_(2)
    assert torch.equal(x, torch.cat([torch.ones(before), torch.full((1000 - before,), 2.0)]))
    assert torch.equal(x.resize_(before), torch.ones(before))


def test_a_negative_size_is_refused():
    with pytest.raises(ValueError, match=r"sizes are \[2, -1\]; want none below 0"):
        empty(2, -1)


@pytest.mark.parametrize("sizes", [(2**61,), (2**31, 2**31), (2**62, 4), (2**63 - 1,)], ids=str)
def test_bytes_that_no_number_holds_are_refused(sizes):
    """2^61 elements of 8 bytes would be none."""
    with pytest.raises(ValueError, match=r"of float64 with them would have 2\^63 bytes or more"):
        empty(*sizes, dtype=torch.float64)


def test_memory_of_a_failed_call_is_not_given_again(tmp_path):
    scenario = failure_scenarios.memory_of_a_failed_call_is_not_given_again
    in_a_group(scenario, (2,), 2, tmp_path, 1, "fastreduce", 300)


def mapped(size_bytes=0):
    """How much shared memory this process has mapped: regions of so many bytes, or more."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    ends = [line.split()[0].split("-") for line in lines if "memfd:" in line]
    return sum(int(end, 16) - int(begin, 16) >= size_bytes for begin, end in ends)


def only_what_is_read_is_mapped(rank):
    """Others may have gone on, and given up their memory, by then."""
    x = empty(1_000_000).fill_(rank)
    before = mapped(4_000_000)
    dist.broadcast(x, 1)
    assert x.eq(1).all()
    assert mapped(4_000_000) - before == (rank != 1)
    dist.all_reduce(x)  # the control: by this, all are read
    assert mapped(4_000_000) - before == 2


def test_a_broadcast_maps_the_memory_of_its_root_only(tmp_path):
    in_a_group(only_what_is_read_is_mapped, (), 3, tmp_path, backend="fastreduce")


def ever_other_sizes(rank, calls):
    for i in range(calls):
        x = empty((1 << 21) + 4096 * i, dtype=torch.uint8).fill_(1)  # larger than all before
        dist.all_reduce(x)
    assert x.eq(2).all()
    assert mapped(1 << 21) < 600


def test_memory_of_peers_does_not_stay_mapped_for_ever(tmp_path):
    in_a_group(ever_other_sizes, (800,), 2, tmp_path, backend="fastreduce")


@pytest.mark.sweep("processes")
def test_a_forked_process_has_memory_of_its_own():
    """What its parent has given back would be the next tensor of both."""
    said = output_of("""
        import os
        from fastreduce.distributed import empty

        kept, freed = empty(1000).fill_(1), empty(1000).fill_(2)
        place = freed.data_ptr()
        del freed
        child = os.fork()
        if child == 0:
            own = empty(1000).fill_(3)
            del kept
            os._exit(own.data_ptr() == place)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        again = empty(1000)
        print(again.data_ptr() == place, again[0].item(), kept[0].item())
    """)
    assert said.split() == ["0", "True", "2.0", "1.0"]


def test_what_a_forked_process_writes_is_its_own():
    said = output_of("""
        import os, torch
        from fastreduce.distributed import empty

        torch.set_num_threads(1)  # a fork has none of OpenMP's threads
        x = empty(3_000_000).fill_(1)
        child = os.fork()
        if child == 0:
            x[::2] = 2
            os._exit(int(x.sum()) != 4_500_000)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), x.unique().tolist())
    """)
    assert said.strip() == "0 [1.0]"


@pytest.mark.parametrize("sizes", ["3", (1.5,), (None,), ((2, "3"),)], ids=str)
def test_what_is_no_size_is_refused(sizes):
    with pytest.raises(TypeError, match=r"empty: found sizes .*, wanted whole numbers"):
        empty(*sizes)


def test_what_is_no_dtype_is_refused():
    with pytest.raises(TypeError, match="dtype 'float32', wanted whole numbers and a torch dtype"):
        empty(3, dtype="float32")


def test_more_than_the_machine_has_is_refused():
    """Where it is not, the limit on files keeps the kernel from ending other processes."""
    said = output_of("""
        import resource, signal
        from fastreduce.distributed import empty
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        for elems in (1 << 19, 1 << 50):
            try:
                empty(elems)
            except RuntimeError as error:
                print(error)
    """)
    control, refused = said.splitlines()
    assert "cannot get shared memory of 2097152 bytes: File too large" in control
    assert "cannot get shared memory of 4503599627370496 bytes, of " in refused
    assert "that the machine has available: Cannot allocate memory" in refused


def output_where_memory_is_counted(code: str) -> str:
    """Of a process that has taken none before."""
    return output_of(
        """
        import os, re
        import torch
        from fastreduce.distributed import empty

        LINE = re.compile(r"^(\\w+)-(\\w+) .* (\\d+) +/memfd:fastreduce", re.MULTILINE)

        def mapped():
            with open("/proc/self/maps") as file:
                return LINE.findall(file.read())

        def mapped_bytes():
            return sum(int(end, 16) - int(begin, 16) for begin, end, _ in mapped())
        """
        + code
    )


def test_where_tensors_are():
    said = output_where_memory_is_counted("""
        SEGMENT, PAGE = 4 << 20, 4096  # small tensors share the first, others have whole pages

        def made(nbytes):
            before = mapped_bytes()
            tensor = empty(nbytes, dtype=torch.uint8)
            return tensor, mapped_bytes() - before

        def grown_by(*sizes):
            tensors.extend(map(made, sizes))
            return [grown for _, grown in tensors[-len(sizes):]]

        tensors = []
        LARGE = SEGMENT // 2
        print(grown_by(LARGE, LARGE + 1, LARGE + PAGE - 1, LARGE + PAGE, LARGE + PAGE + 1)
              == [LARGE, *[LARGE + PAGE] * 3, LARGE + 2 * PAGE])
        # Four times a quarter, or a little less of it, fill a segment.
        print(grown_by(1 << 20, (1 << 20) - 1, 600_000, 1 << 20, 1) == [SEGMENT, 0, 0, 0, SEGMENT])
        print(sum(grown_by(*range(2, 200))) == 0)
        tensors = [tensor for tensor, _ in tensors]
        print(all(tensor.data_ptr() % 64 == 0 for tensor in tensors))
        for number, tensor in enumerate(tensors):
            tensor.fill_(number % 251)
        print(all(tensor.eq(number % 251).all() for number, tensor in enumerate(tensors)))

        # What is given back serves tensors that are not much smaller.
        place = tensors.pop(1).data_ptr()
        for nbytes, same in ((LARGE // 2 - PAGE, False), (LARGE // 2 + 2 * PAGE, True)):
            print((empty(nbytes, dtype=torch.uint8).data_ptr() == place) == same)
    """)
    assert said.split() == ["True"] * 7


def test_memory_of_a_tensor_that_grows_goes_back():
    said = output_where_memory_is_counted("""
        MB = 10**6

        def take_in_turn(*sizes):
            for n in sizes:
                empty(n * MB, dtype=torch.uint8)

        def descriptors():
            return len(os.listdir("/proc/self/fd"))

        def of_50_mb():
            return [x for x in mapped() if int(x[1], 16) - int(x[0], 16) > 49 * MB]

        before, kept = descriptors(), empty(3 * MB, dtype=torch.uint8).fill_(1)
        take_in_turn(*range(10, 40))
        print(39 * MB < mapped_bytes() < 2 * (39 + 4) * MB, 0 < descriptors() - before < 8)
        # Those that take turns have the memory that they have had, the large ones too.
        take_in_turn(50)
        large = of_50_mb()
        take_in_turn(5, 15)
        files = mapped()
        take_in_turn(50, 5, 15)
        print(len(large) == 1 and of_50_mb() == large)
        print(mapped() == files, kept.eq(1).all().item())
    """)
    assert said.split() == ["True"] * 5
