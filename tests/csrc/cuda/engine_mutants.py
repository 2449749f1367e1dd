"""The CUDA engines with one thing wrong, and what test_engines.py says of each."""

from peer_mutants import PEER_MUTANTS
from virtual_builds import Mutant

MUTANTS = PEER_MUTANTS | {
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
    "an error in a capture breaks what was captured before": Mutant(
        "cuda/events.cpp",
        "    if (!call.capture)\n      for (Lane*",
        "    for (Lane*",
        "capture",
        "cudaErrorStreamCaptureInvalidated",
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
    "a user's capture takes everybody's lanes": Mutant(
        "cuda/lane_sets.cpp", "if (!capture) return", "if (true) return", "beside", ""
    ),
    "a capture takes the lanes of a graph that is alive": Mutant(
        "cuda/lane_sets.cpp",
        "if (!set.in_use.load(std::memory_order_acquire)) return set;",
        "return set;",
        "graphs, no peers",
        "the lanes of another",
    ),
    "the lanes of a graph that is gone are never used again": Mutant(
        "cuda/lane_sets.cpp",
        "->store(false, std::memory_order_release);",
        "->store(true, std::memory_order_release);",
        "graphs",
        "a capture after another is gone",
    ),
    "lanes are lost to a graph that could not take them": Mutant(
        "cuda/lane_sets.cpp",
        "if (status != cudaSuccess) cudaUserObjectRelease(object, 1);",
        "",
        "graphs",
        "after cudaGraphRetainUserObject failed",
    ),
    "each call in a capture has lanes of its own": Mutant(
        "cuda/lane_sets.cpp",
        "set.capture_id == capture->id",
        "false",
        "graphs",
        "calls have different lanes",
    ),
    "CUDA called where it must not be": Mutant(
        "cuda/lane_sets.cpp",
        "void set_unused(void* in_use) {",
        "void set_unused(void* in_use) { cudaFree(nullptr);",
        "graphs",
        "in the destructor of a user object",
    ),
    "graphs are made while a stream is captured": Mutant(
        "cuda/events.cpp",
        "graph.record([&] { enqueue.run(); });",
        """
        const cudaStream_t hub = call.hub().stream.get();
        cuda_check(cudaStreamBeginCapture(hub, cudaStreamCaptureModeThreadLocal), "");
        graph.record([&] { enqueue.run(); });
        cudaGraph_t raw;
        cuda_check(cudaStreamEndCapture(hub, &raw), "");
        const Graph captured(raw);""",
        "interruptions",
        "a synchronization before",
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
    "a graph keeps its addresses when tensors move": Mutant(
        "cuda/call_graph.cpp", "update(nodes_[next_]);", "(void)update;", "orders", ""
    ),
    "nodes that are gone when they are updated": Mutant(
        "cuda/call_graph.cpp",
        "exec_ = GraphExec(exec);",
        "exec_ = GraphExec(exec), graph_ = Graph();",
        "orders",
        "not replayed",
    ),
    "a graph replayed for other tensors": Mutant(
        "cuda/graph_cache.cpp",
        "(call.addresses == addresses || call.given_up)",
        "true",
        "graphs",
        "",
    ),
    "a graph replayed for another operation": Mutant(
        "cuda/events.cpp",
        "<< 32 | static_cast<uint64_t>(table.op)",
        "<< 32",
        "graphs",
        "operation",
    ),
    "a graph used that could not be made": Mutant(
        "cuda/graph_cache.cpp",
        "    give_up(error.what());",
        "    latest().graph = std::move(graph), (void)error;",
        "failures",
        "",
    ),
    "a graph that cannot be made is tried again for ever": Mutant(
        "cuda/graph_cache.cpp",
        "if (latest().graph || latest().given_up)",
        "if (latest().graph)",
        "graphs",
        "after a graph that could not be made",
    ),
    "a graph's arguments take no room": Mutant(
        "cuda/call_graph.cpp",
        " + static_cast<int64_t>(launch.args_bytes)",
        "",
        "graphs",
        "more than 2 graphs",
    ),
    "graphs of any size are kept": Mutant(
        "cuda/graph_cache.cpp", "bytes <= max_bytes_", "true", "graphs", "more than 5 graphs"
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
        "cuda/reduce_rows.cuh", ".elements(edge_elems);", ".elements(edge_elems + 1);", "orders", ""
    ),
    "a graph replayed for memory that is closed elsewhere": Mutant(
        "cuda/events.cpp",
        "for (const auto& [device, buffer] : layout.closed)",
        "for (const auto& [device, buffer] : ClosedBuffers())",
        "closed memory",
        "not each has a graph",
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
    "a row's instructions taken from the launch before": Mutant(
        "cuda/launch.cpp", "  last_instructions_ = nullptr;\n}", "}", "limits", "a row in vectors"
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
    "a graph replayed for another program": Mutant(
        "cuda/events.cpp", "key{schedule.id,", "key{schedule.id * 0,", "same addresses", ""
    ),
    "a graph replayed for another dtype": Mutant(
        "cuda/events.cpp",
        "static_cast<uint64_t>(table.dtype) << 32 | ",
        "",
        "same addresses",
        "another dtype",
    ),
    "a graph replayed for another length": Mutant(
        "cuda/events.cpp",
        "static_cast<uint64_t>(row.elems)}",
        "0}",
        "same addresses",
        "one element more",
    ),
}
