"""Graphs of calls and the lanes of captures with one thing wrong, and what the modes of
test_engines.py say of each."""

from virtual_builds import Mutant

GRAPH_MUTANTS = {
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
    "a capture takes the lanes of one that began later": Mutant(
        "cuda/lane_sets.cpp",
        "set.capture_id == capture->id",
        "set.capture_id >= capture->id",
        "beside",
        "capture",
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
        "call.addresses == addresses && call.key",
        "call.key",
        "graphs",
        "",
    ),
    "a graph replayed for another operation": Mutant(
        "cuda/events.cpp",
        "static_cast<uint64_t>(table.op), table.rows",
        "table.rows",
        "graphs",
        "operation",
    ),
    "a graph used that could not be made": Mutant(
        "cuda/graph_cache.cpp",
        "    give_up(call.key, error.what());\n    return nullptr;",
        "    (void)error;",
        "failures",
        "",
    ),
    "a graph that cannot be made is tried again for ever": Mutant(
        "cuda/graph_cache.cpp",
        "if (given_up_.has(name.value())) return nullptr;",
        "",
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
        "cuda/graph_cache.cpp",
        "(bytes += call->bytes()) <= max_bytes_",
        "(bytes += call->bytes()) > 0",
        "graphs",
        "more than 5 graphs",
    ),
    "a graph replayed for memory that is closed elsewhere": Mutant(
        "cuda/events.cpp",
        "for (const auto& [device, buffer] : layout.closed)",
        "for (const auto& [device, buffer] : ClosedBuffers())",
        "closed memory",
        "not each has a graph",
    ),
    "a graph replayed for another program": Mutant(
        "cuda/events.cpp", "key{schedule.id,", "key{schedule.id * 0,", "same addresses", ""
    ),
    "a graph replayed for other lanes": Mutant(
        "cuda/events.cpp",
        "                      placement.lane_per_rank,\n",
        "",
        "same addresses",
        "a lane per rank: no more waits than with a lane per device",
    ),
    "a graph replayed for another dtype": Mutant(
        "cuda/events.cpp",
        "static_cast<uint64_t>(table.dtype), ",
        "",
        "same addresses",
        "another dtype",
    ),
    "a graph replayed for another length of the second dtype": Mutant(
        "cuda/events.cpp",
        "  for (const Table& table : tables) {\n    key.insert",
        "  for (const Table& table : std::span(tables).first(1)) {\n    key.insert",
        "same addresses",
        "a longer second table",
    ),
    "a graph replayed for other tensors of the second dtype": Mutant(
        "cuda/events.cpp",
        "for (const Table& table : tables) addresses.insert(",
        "for (const Table& table : std::span(tables).first(1)) addresses.insert(",
        "same addresses",
        "of table 1 moved",
    ),
    "a graph replayed for another tensor of the last rank": Mutant(
        "cuda/events.cpp",
        "table.pointers.begin(), table.pointers.end());",
        "table.pointers.begin(), table.pointers.end() - 1);",
        "same addresses",
        "tensor 3 of table 0 moved",
    ),
    "a graph replayed for another length": Mutant(
        "cuda/events.cpp",
        "static_cast<uint64_t>(row.elems)}",
        "0}",
        "same addresses",
        "one element more",
    ),
    "a graph replayed that cannot be launched": Mutant(
        "cuda/events.cpp",
        "    graphs_.give_up(graph, error.what());",
        "    static_cast<void>(error);",
        "graphs",
        "after a graph that could not be launched",
    ),
}
