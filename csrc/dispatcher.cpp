#include "dispatcher.h"

#include <ATen/TracerMode.h>
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

// Whether a tensor is a subclass or wrapped, or every operation of this thread is to be seen.
bool needs_dispatcher(const Call& call) {
  constexpr c10::DispatchKeySet beyond_us({c10::DispatchKey::Python, c10::DispatchKey::Functionalize,
                                           c10::DispatchKey::FuncTorchGradWrapper, c10::DispatchKey::FuncTorchBatched});
  for (const TensorLists* lists : {&call.outputs, &call.inputs})
    for (const at::Tensor& tensor : lists->flat)
      if (tensor.unsafeGetTensorImpl()->key_set().has_any(beyond_us)) return true;
  return is_watched();
}

const c10::TypedOperatorHandle<Operator>& our_operator() {
  static const auto handle =
      c10::Dispatcher::singleton().findSchemaOrThrow("fastreduce::collective_", "").typed<Operator>();
  return handle;
}

void dispatch(const Call& call) {
  our_operator().call(name_of(call.collective), call.outputs.flat, call.inputs.flat, call.ranks(), name_of(call.op),
                      call.root, call.algorithm, call.engine_name);
}

// Conjugates and negatives that torch has not carried out. Of those that are written the tables do it (tables.cpp),
// because torch cannot where they stand in a list; nor can its graphs hold them.
void on_lazy(c10::DispatchKeySet keys, std::string_view collective, at::TensorList outputs, at::TensorList inputs,
             int64_t ranks, std::string_view op, int64_t root, std::string_view algorithm, std::string_view engine) {
  const TensorLists written = make_call(collective, outputs, inputs, ranks, op, root, algorithm, engine).outputs;
  for (int64_t rank = 0; rank < written.ranks; ++rank)
    for (int64_t i = 0; i < written.per_rank; ++i) {
      const at::Tensor& tensor = written.at(rank, i);
      TORCH_CHECK_VALUE(!is_fake(tensor) || !(tensor.is_conj() || tensor.is_neg()), written.where(rank, i),
                        " is a conjugate or negative that torch has not carried out, which its graphs cannot hold; "
                        "pass .resolve_conj().resolve_neg() of it");
    }
  Tensors read = inputs.vec();
  for (at::Tensor& tensor : read) tensor = tensor.resolve_conj().resolve_neg();
  // Conjugate is the lower of the two keys.
  const c10::DispatchKeySet below(c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::Conjugate);
  our_operator().redispatch(keys & below, collective, outputs, read, ranks, op, root, algorithm, engine);
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

// A graph of torch.jit does not know that tensors in a list are written, so it would drop the call and say nothing.
void under_jit_trace(std::string_view collective, at::TensorList, at::TensorList, int64_t, std::string_view, int64_t,
                     std::string_view, std::string_view) {
  TORCH_CHECK(false, collective,
              ": torch.jit.trace would leave it out of the graph; want torch.export or torch.compile");
}

}  // namespace

bool is_watched() {
  return c10::impl::TorchDispatchModeTLS::any_modes_set() || at::tracer::impl::is_dispatch_enabled();
}

void run_for_torch(const Call& call) {
  RECORD_FUNCTION(std::string("fastreduce::") + name_of(call.collective), std::vector<c10::IValue>());
  needs_dispatcher(call) && !call.outputs.flat.empty() ? dispatch(call) : run(call);
}

TORCH_LIBRARY(fastreduce, library) { library.def(kSchema); }
TORCH_LIBRARY_IMPL(fastreduce, CPU, library) { library.impl("collective_", on_dense); }
TORCH_LIBRARY_IMPL(fastreduce, CUDA, library) { library.impl("collective_", on_dense); }
TORCH_LIBRARY_IMPL(fastreduce, Meta, library) { library.impl("collective_", on_meta); }
TORCH_LIBRARY_IMPL(fastreduce, Autograd, library) { library.impl("collective_", under_autograd); }
TORCH_LIBRARY_IMPL(fastreduce, Tracer, library) { library.impl("collective_", under_jit_trace); }
TORCH_LIBRARY_IMPL(fastreduce, Conjugate, library) { library.impl("collective_", on_lazy); }
TORCH_LIBRARY_IMPL(fastreduce, Negative, library) { library.impl("collective_", on_lazy); }
TORCH_LIBRARY_IMPL(fastreduce, ADInplaceOrView, library) { library.impl("collective_", in_place_or_view); }

}  // namespace fastreduce
