"""The CUDA engines with one thing wrong, and what the modes of test_engines.py say of each."""

from graph_mutants import GRAPH_MUTANTS
from peer_mutants import PEER_MUTANTS
from virtual_builds import Mutant

MUTANTS = {
    **PEER_MUTANTS,
    **GRAPH_MUTANTS,
    "one wait dropped": Mutant(
        "cuda/enqueue.cpp",
        "if (known_[lane][other] >= behind[other]) continue;",
        "if (true) continue;",
        "orders",
        "unordered",
    ),
    "lanes do not wait for torch's streams": Mutant(
        "cuda/events.cpp",
        "    wait(call.hub().stream.get(), ready.get());",
        "    (void)ready;",
        "orders",
        "",
    ),
    "torch's streams do not wait for the lanes": Mutant(
        "cuda/events.cpp",
        "    wait(current.stream, call.hub().joined.get());",
        "",
        "orders",
        "",
    ),
    "the default stream of one device taken for another's": Mutant(
        "cuda/events.cpp",
        "const DeviceGuard there(current.device);",
        "",
        "orders",
        "unordered",
    ),
    "of a capture over several GPUs only one stream is part": Mutant(
        "cuda/events.cpp",
        "if (capture_of_rank[rank] == call.capture &&",
        "if (capture_of_rank[rank] == call.capture && (rank == 0 || !call.capture) &&",
        "capture",
        "unordered",
    ),
    "the default stream of another device is asked about": Mutant(
        "cuda/events.cpp",
        "capture_of(placement.device_of_rank[rank], ",
        "capture_of(placement.device_of_rank[0], ",
        "capture",
        "cudaErrorStreamCaptureImplicit",
    ),
    "the default stream of another device is asked about before": Mutant(
        "cuda/peers.cpp",
        "capture_of(devices[rank], ",
        "capture_of(devices.back(), ",
        "capture",
        "cudaErrorStreamCaptureImplicit",
    ),
    "an error in a capture breaks what was captured before": Mutant(
        "cuda/events.cpp",
        "    if (!call.capture)\n      for (Lane*",
        "    for (Lane*",
        "capture",
        "cudaErrorStreamCaptureInvalidated",
    ),
    "launches in threads without a context": Mutant(
        "cuda/line.cpp", "need_context();", "", "new threads", "cuLaunchKernel failed"
    ),
    "one lane is not joined": Mutant(
        "cuda/events.cpp",
        "    wait(call.hub().stream.get(), lane->joined.get());",
        "",
        "orders",
        "",
    ),
    "a replay does not wait for the lanes' memory": Mutant(
        "cuda/events.cpp", "if (graph.uses_host) join(call);", "", "beside", "unordered"
    ),
    "lanes do not wait for a replay that uses their memory": Mutant(
        "cuda/events.cpp", "if (graph.uses_host) fork(call);", "", "beside", "unordered"
    ),
    "a node waits for another twice": Mutant(
        "cuda/line.cpp",
        "if (std::find(last_.begin(), last_.end(), node) == last_.end()) last_.push_back(node);",
        "last_.push_back(node);",
        "orders",
        "not replayed",
    ),
    "nodes wait for their own line only": Mutant(
        "cuda/line.cpp", "last_.push_back(node);", "break;", "orders", "unordered"
    ),
    "nodes of the device that happens to be current": Mutant(
        "cuda/line.cpp",
        "void Line::launch(const KernelLaunch& launch) {\n  const DeviceGuard guard(device_);",
        "void Line::launch(const KernelLaunch& launch) {\n"
        "  std::optional<DeviceGuard> guard;\n  if (!graph_) guard.emplace(device_);",
        "no peers",
        "no peer access",
    ),
    "the host's memory filled before its turn": Mutant(
        "cuda/lanes.cpp", "made.wait(begun_);", "", "no peers", "unordered"
    ),
    "a copy on one device left to the copy engine": Mutant(
        "cuda/enqueue.cpp",
        "device_of(src) != device_of(dst)",
        "true",
        "copies",
        "on one device",
    ),
    "vectors at addresses that do not allow them": Mutant(
        "cuda/launch.cpp",
        "differing % kVectorBytes == 0",
        "differing % kVectorBytes < kVectorBytes",
        "orders",
        "a row in vectors",
    ),
    "a copy that cannot be captured": Mutant(
        "cuda/line.cpp",
        "cuda_check(cudaMemcpyAsync(dst, src, bytes, kind, stream_)",
        """
    cudaPointerAttributes to, from;
    cuda_check(cudaPointerGetAttributes(&to, dst), "");
    cuda_check(cudaPointerGetAttributes(&from, src), "");
    cuda_check(kind == cudaMemcpyDeviceToDevice
                   ? cudaMemcpyPeerAsync(dst, to.device, src, from.device, bytes, stream_)
                   : cudaMemcpyAsync(dst, src, bytes, kind, stream_)""",
        "capture",
        "cudaErrorStreamCaptureUnsupported",
    ),
    "one wrong source": Mutant(
        "cuda/launch.cpp",
        "for (int src : x->srcs) pointers_",
        "for (int src : x->srcs) src ^= 1, pointers_",
        "orders",
        "",
    ),
    "one element too far": Mutant(
        "cuda/reduce_rows.cuh",
        ".elements(edge_elems);",
        ".elements(edge_elems + 1);",
        "orders",
        "",
    ),
    "a launch that does not fit found out behind others": Mutant(
        "cuda/tiles.cpp",
        "expect_fits(instructions);",
        "static_cast<void>(instructions);",
        "limits",
        "launched all the same",
    ),
    "a launch on several GPUs that does not fit found out behind others": Mutant(
        "cuda/enqueue.cpp",
        "expect_fits({&instruction});",
        "",
        "limits",
        "launched all the same",
    ),
    "half a page of the host used too early": Mutant(
        "cuda/lanes.cpp",
        "if (emptied[half]) down.wait",
        "if (false) down.wait",
        "no peers",
        "unordered",
    ),
    "an error that does not wait for copies through the host": Mutant(
        "cuda/lanes.cpp", "  stage.synchronize();\n", "", "failures, no peers", "unordered"
    ),
    "an error that waits for one lane only": Mutant(
        "cuda/events.cpp",
        "for (Lane* lane : call.lanes) lane->synchronize();",
        "call.hub().synchronize();",
        "failures",
        "unordered",
    ),
    "one pointer more than fits": Mutant(
        "cuda/launch.cpp",
        "return bytes <= sizeof(LaunchArgs::table)",
        "return bytes <= sizeof(LaunchArgs::table) + 8",
        "limits",
        "",
    ),
    "a divisor of 8 bits": Mutant(
        "cuda/launch.cpp",
        "static_cast<uint16_t>(parameter)}",
        "static_cast<uint8_t>(parameter)}",
        "limits",
        "an average over 300 ranks",
    ),
    "a row's instructions taken from the launch before": Mutant(
        "cuda/launch.cpp",
        "  last_instructions_ = nullptr;\n}",
        "}",
        "limits",
        "a row in vectors",
    ),
    "a pointer's number of 8 bits": Mutant(
        "cuda/launch.cpp",
        "static_cast<uint16_t>(first_pointer)",
        "static_cast<uint8_t>(first_pointer)",
        "limits",
        "",
    ),
    "what is staged taken for in place": Mutant(
        "cuda/enqueue.cpp",
        "staged.dsts.push_back(schedule.buffers);",
        "",
        "limits, no peers",
        "out of memory",  # scratch for each source, before the error
    ),
    "a pool that cannot be opened leaves an error": Mutant(
        "cuda/closed_memory.cpp",
        "  cudaGetLastError();  // a pool",
        "  // a pool",
        "closed memory",
        "the last error is",
    ),
}
