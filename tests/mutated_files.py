"""What mutation.py mutates: by source, the tests that belong to it, those that find most first."""

PYTHON = {
    "fastreduce/program/program.py": (
        "test_rank_order.py", "program/test_program.py", "program/test_printing.py",
        "program/test_proof.py",
    ),
    **{f"fastreduce/program/{name}.py": tuple(f"program/test_{test}.py" for test in tests)
       for name, tests in {
           "check": ("program", "proof"),
           "export": ("export",),
           "export_mscclpp": ("export_mscclpp",),
           "files": ("program_files",),
           "proof": ("proof", "program"),
       }.items()},
    "fastreduce/program/picture.py": ("test_drawing.py",),
    "fastreduce/topology/calibration_files.py": (
        "topology/test_calibration.py", "cli/test_calibrate_command.py",
    ),
    "fastreduce/collectives.py": ("collectives",),
    "fastreduce/plan/build.py": ("plan/test_build.py", "collectives/test_lists.py"),
    "fastreduce/plan/candidates.py": ("plan/test_explain.py", "plan/test_calibrate.py"),
    "fastreduce/plan/choose.py": ("plan/test_choose.py", "plan/test_build.py"),
    "fastreduce/plan/table.py": ("plan/test_table.py", "plan/test_table_files.py"),
    "fastreduce/topology/calibration.py": (
        "topology/test_calibration.py", "plan/test_calibrate.py",
    ),
    **{f"fastreduce/plan/{name}.py": tuple(f"{test}.py" for test in tests)
       for name, tests in {
           "bounds": ("plan/test_bounds",),
           "calibrate": ("plan/test_calibrate",),
           "copies": ("plan/test_copies",),
           "costs": ("plan/test_costs",),
           "defaults": ("plan/test_choose", "test_rank_order", "plan/test_table"),
           "explain": ("plan/test_explain", "plan/test_bounds", "plan/test_table"),
           "html_table": ("plan/test_page", "plan/test_plan_pictures"),
           "machine": ("plan/test_tune", "plan/test_table_files", "plan/test_choose"),
           "models": ("plan/test_models", "plan/test_step"),
           "nccl_tests": ("plan/test_runs",),
           "notes": ("plan/test_calibrate", "plan/test_step"),
           "noise": ("plan/test_noise", "plan/test_tune"),
           "parameters": ("plan/test_parameters", "plan/test_calibrate"),
           "pictures": ("plan/test_plan_pictures", "plan/test_page"),
           "plan": ("plan/test_explain", "plan/test_bounds", "plan/test_page"),
           "report": ("plan/test_page",),
           "runs": ("plan/test_runs", "plan/test_calibrate"),
           "scaling": ("plan/test_step", "plan/test_page", "plan/test_plan_pictures"),
           "sizes": ("plan/test_sizes",),
           "step": ("plan/test_step",),
           "table_files": ("plan/test_table_files", "plan/test_choose"),
           "tune": ("plan/test_tune", "plan/test_noise"),
       }.items()},
}  # fmt: skip

# Of the extension for the CPU.
EXTENSION = {
    "csrc/overlap.cpp": ("collectives/test_exact_overlap.py", "collectives/test_errors.py"),
    "csrc/check.cpp": ("collectives/test_errors.py", "collectives/test_errors_of_settings.py",
                       "collectives/test_autograd.py"),
    "csrc/tables.cpp": ("collectives/test_lists.py", "collectives/test_lazy_views.py",
                        "collectives/test_autograd.py", "collectives/test_layouts.py",
                        "collectives/test_collectives.py"),
    **{f"csrc/{name}.cpp": tuple(f"{test}.py" for test in tests)
       for name, tests in {
           "call": ("collectives/test_errors", "collectives/test_collectives",
                    "collectives/test_lists", "collectives/test_errors_of_settings",
                    "collectives/test_layouts", "collectives/test_autograd",
                    "collectives/test_compile", "collectives/test_fake_tensors"),
           "dispatcher": ("collectives/test_autograd", "collectives/test_collectives",
                          "collectives/test_compile", "collectives/test_fake_tensors",
                          "collectives/test_lists"),
           "dtypes": ("collectives/test_bits", "collectives/test_collectives",
                      "collectives/test_layouts", "collectives/test_lists",
                      "collectives/test_errors"),
           "engine": ("collectives/test_collectives", "collectives/test_errors_of_settings"),
           "replicas": ("parallel/test_sums_of_replicas", "parallel/test_like_the_bare_module",
                        "parallel/test_reproducible", "parallel/test_derivatives",
                        "parallel/test_parallel_errors"),
           "cpu/engine": ("collectives/test_collectives", "collectives/test_errors_of_settings"),
           "cpu/kernels": ("collectives/test_bits", "collectives/test_errors_of_settings"),
       }.items()},
    "csrc/programs.cpp": ("collectives/test_lists.py", "plan/test_choose.py",
                          "distributed/test_backend_values.py",
                          "collectives/test_threads.py"),
    "csrc/cpu/tiles.cpp": ("collectives/test_collectives.py", "collectives/test_allreduce.py",
                           "collectives/test_threads.py"),
    **{f"csrc/simulation/{name}.cpp": tuple(f"{test}.py" for test in tests)
       for name, tests in {
           "proof": ("program/test_proof", "collectives/test_collectives"),
           "dependencies": ("program/test_program", "simulation/test_simulate"),
           "stages": ("simulation/test_simulate", "simulation/test_random_programs"),
           "tasks": ("simulation/test_simulate", "simulation/test_random_programs"),
           "play": ("simulation/test_simulate", "simulation/test_random_programs",
                    "simulation/test_overheads", "simulation/test_predict"),
           "simulation": ("simulation/test_simulate", "simulation/test_predict",
                          "simulation/test_run"),
           "paths": ("simulation/test_simulate", "simulation/test_overheads",
                     "simulation/test_predict"),
           "network": ("simulation/test_flows", "simulation/test_simulate"),
           "max_min": ("simulation/test_flows", "simulation/test_simulate"),
           "routes": ("topology/test_graph", "simulation/test_simulate"),
           "idle": ("program/test_program", "plan/test_slices"),
       }.items()},
}  # fmt: skip

# The same for the CUDA engines, by modes: what each file is for, then everything,
# the short ones first.
EVERYTHING = ("pools", "closed memory", "copies", "capture", "graphs", "graphs, no peers",
              "beside", "same addresses", "lost writes", "few peers", "pairs of peers", "no peers",
              "limits", "orders", "failures, no peers", "failures")  # fmt: skip
# What the kernels' object file is made from.
KERNELS = ("csrc/reduce.h", "csrc/cuda/reduce_rows.cuh", "csrc/cuda/signals.cuh")
# Long modes are tried with a few programs first, in a quarter of the time.
LONG, FEW = {"flags", "orders"}, {"leader", "ring", "scrambled", "sharded"}
MODES = {
    "csrc/cuda/closed_memory.cpp": ("pools", "closed memory", "failures"),
    "csrc/cuda/trial.cpp": ("kernels hang", "copies hang", "nvlinks", "lost writes", "wrong reads",
                            "lost copies", "orders", "failures"),
    "csrc/cuda/peers.cpp": ("kernels hang", "copies hang", "nvlinks", "nvlinks without NVML",
                            "kept proofs", *EVERYTHING),
    "csrc/cuda/proofs.cpp": ("kept proofs", "kept failures"),
    "csrc/cuda/nvml.cpp": ("nvlinks", "nvlinks without NVML"),
    **{f"csrc/cuda/{name}.cpp": (*EVERYTHING, "pieces") for name in ("enqueue", "lanes")},
    **{f"csrc/cuda/{name}.cpp": EVERYTHING
       for name in ("call_graph", "graph_cache", "lane_sets", "line", "tiles")},
    "csrc/cuda/events.cpp": (*EVERYTHING, "flags"),
    "csrc/cuda/launch.cpp": ("copies", "capture", "graphs", "no peers", "limits", "orders",
                             "flags"),
    "csrc/cuda/flags.cpp": ("flags",),
    "csrc/cuda/signals.cuh": ("flags",),
    "csrc/cuda/reduce_rows.cuh": ("copies", "limits", "orders", "flags"),
    "csrc/reduce.h": ("limits", "orders"),
}  # fmt: skip


# The same for the backend of torch.distributed. Of the files that test_flags.py, test_heap.py,
# test_labels.py or test_watch.py compiles, its tests with threads follow.
PROCESSES = {
    f"csrc/processes/{name}.cpp": tuple(f"distributed/test_{test}.py" for test in tests)
    for name, tests in {
        "flags": ("backend_values", "backend_groups"),
        "group": ("backend_values", "backend_invitations", "backend_errors", "backend_groups",
                  "backend_failures"),
        "invitations": ("backend_invitations", "rendezvous"),
        "across": ("across",),
        "machines": ("across",),
        "machine_sums": ("across",),
        "machine_failures": ("across",),
        "gloo": ("backend_gloo", "across"),
        "rank_schedule": ("backend_values", "backend_errors"),
        "failures": ("backend_failures", "backend_errors"),
        "heap": ("empty", "backend_values"),
        "memory": ("backend_invitations", "empty", "backend_errors", "backend_groups"),
        "checks": ("backend_errors", "backend_values"),
        "items": ("backend_values", "backend_groups"),
        "collectives": ("backend_values", "backend_errors", "backend_groups", "programs"),
        "queue": ("backend_errors", "backend_failures", "backend_groups", "programs"),
        "bell": ("backend_values",),
        "labels": ("backend_errors", "backend_failures", "send_recv"),
        "watch": ("send_recv", "backend_failures", "backend_errors"),
        "chaos": ("chaos", "torchrun"),
        "delegated": ("backend_values", "backend_errors", "backend_groups", "backend_gloo",
                      "across"),
        "point_to_point": ("send_recv", "backend_errors", "backend_failures"),
        "backend": ("backend_errors", "backend_groups", "backend_values", "empty"),
    }.items()
}  # fmt: skip
