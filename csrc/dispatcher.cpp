#include "dispatcher.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/library.h>

#include "check.h"
#include "programs.h"

namespace fastreduce {
namespace {

constexpr const char* kSchema =
    "collective_(str collective, Tensor(a!)[] outputs, Tensor[] inputs, int ranks, str op, int root, "
    "str algorithm, str engine=\"auto\") -> ()";

using Operator = void(std::string_view collective, at::TensorList outputs, at::TensorList inputs, int64_t ranks,
                      std::string_view op, int64_t root, std::string_view algorithm, std::string_view engine);

Call make_call(std::string_view collective, at::TensorList outputs, at::TensorList inputs, int64_t ranks,
               std::string_view op, int64_t root, std::string_view algorithm, std::string_view engine) {
  TORCH_CHECK_VALUE(ranks > 0 && outputs.size() % ranks == 0 && inputs.size() % ranks == 0, outputs.size(),
                    " tensors cannot belong to ", ranks, " ranks");
  const Collective kind = parse_collective(std::string(collective));
  const auto per_rank = [&](at::TensorList list) { return static_cast<int64_t>(list.size()) / ranks; };
  // Not in the list below: if it throws there, behind the tensors, g++ 12 destroys them twice.
  const Op parsed = parse_op(std::string(op));
  return {kind,
          {inputs.empty() ? "tensors" : "outputs", outputs.vec(), ranks, per_rank(outputs)},
          {"tensors", inputs.vec(), inputs.empty() ? 0 : ranks, per_rank(inputs)},
          parsed,
          root,
          std::string(algorithm),
          std::string(engine)};
}

void on_dense(std::string_view collective, at::TensorList outputs, at::TensorList inputs, int64_t ranks,
              std::string_view op, int64_t root, std::string_view algorithm, std::string_view engine) {
  const Call call = make_call(collective, outputs, inputs, ranks, op, root, algorithm, engine);
  check(call);
  execute(call, *schedule_of(question_of(call)));
}

void on_meta(std::string_view, at::TensorList, at::TensorList, int64_t, std::string_view, int64_t, std::string_view,
             std::string_view) {}

// Whether a tensor is a subclass or wrapped, or a mode wants to see every operation.
bool needs_dispatcher(const Call& call) {
  constexpr c10::DispatchKeySet beyond_us({c10::DispatchKey::Python, c10::DispatchKey::Functionalize,
                                           c10::DispatchKey::FuncTorchGradWrapper, c10::DispatchKey::FuncTorchBatched});
  for (const TensorLists* lists : {&call.outputs, &call.inputs})
    for (const at::Tensor& tensor : lists->flat)
      if (tensor.unsafeGetTensorImpl()->key_set().has_any(beyond_us)) return true;
  return c10::impl::TorchDispatchModeTLS::any_modes_set();
}

void dispatch(const Call& call) {
  static const auto handle =
      c10::Dispatcher::singleton().findSchemaOrThrow("fastreduce::collective_", "").typed<Operator>();
  handle.call(name_of(call.collective), call.outputs.flat, call.inputs.flat, call.ranks(), name_of(call.op), call.root,
              call.algorithm, call.engine_name);
}

// Tensors may be fake here, without sizes or devices, so "auto" cannot choose. Any choice writes all outputs, as
// leader does.
std::vector<bool> written_by(Call call) {
  check_arguments(call);
  if (call.algorithm == "auto") call.algorithm = "leader";
  return written_outputs(call, *schedule_of(question_of(call)));
}

void under_autograd(std::string_view collective, at::TensorList outputs, at::TensorList inputs, int64_t ranks,
                    std::string_view op, int64_t root, std::string_view algorithm, std::string_view engine) {
  const Call call = make_call(collective, outputs, inputs, ranks, op, root, algorithm, engine);
  check_autograd(call.outputs, written_by(call));
  const at::AutoDispatchBelowAutograd below;
  dispatch(call);
}

void in_place_or_view(std::string_view collective, at::TensorList outputs, at::TensorList inputs, int64_t ranks,
                      std::string_view op, int64_t root, std::string_view algorithm, std::string_view engine) {
  const Call call = make_call(collective, outputs, inputs, ranks, op, root, algorithm, engine);
  const std::vector<bool> written = written_by(call);
  check_inference(call.outputs, written);
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    dispatch(call);
  }
  bump_versions(call.outputs, written);
}

}  // namespace

void run_for_torch(const Call& call) {
  RECORD_FUNCTION(std::string("fastreduce::") + name_of(call.collective), std::vector<c10::IValue>());
  needs_dispatcher(call) && !call.outputs.flat.empty() ? dispatch(call) : run(call);
}

TORCH_LIBRARY(fastreduce, library) { library.def(kSchema); }
TORCH_LIBRARY_IMPL(fastreduce, CPU, library) { library.impl("collective_", on_dense); }
TORCH_LIBRARY_IMPL(fastreduce, CUDA, library) { library.impl("collective_", on_dense); }
TORCH_LIBRARY_IMPL(fastreduce, Meta, library) { library.impl("collective_", on_meta); }
TORCH_LIBRARY_IMPL(fastreduce, Autograd, library) { library.impl("collective_", under_autograd); }
TORCH_LIBRARY_IMPL(fastreduce, ADInplaceOrView, library) { library.impl("collective_", in_place_or_view); }

}  // namespace fastreduce
