#include "dtypes.h"

#include <c10/util/StringUtil.h>

namespace fastreduce {
namespace {

struct IsDefined {
  template <class T, class O>
  bool make() const {
    return true;
  }
};

bool is_bitwise(Op op) {
  bool bitwise = false;
  for_each(Operations{}, [&]<class O>(O) {
    if (O::op == op) bitwise = O::bitwise;
  });
  return bitwise;
}

// For booleans torch's sum is "or" and its product is "and". torch stores them as 0 and 1, but takes every other byte
// for true, and views of other memory hold any. So "and" is the smallest, and not band: 1 & 2 would be false.
std::optional<Arithmetic> of_booleans(Op op) {
  switch (op) {
    case Op::sum:
    case Op::max: return Arithmetic{DType::u8, Op::bor, 1};
    case Op::prod:
    case Op::band:
    case Op::min: return Arithmetic{DType::u8, Op::min, 1};
    default: return is_bitwise(op) ? std::optional(Arithmetic{DType::u8, op, 1}) : std::nullopt;
  }
}

std::optional<DType> element_of(c10::ScalarType type) {
  std::optional<DType> found;
  for_each(Elements{}, [&]<class E>(E) {
    if (c10::CppTypeToScalarType<typename E::Type>::value == type) found = E::dtype;
  });
  return found;
}

}  // namespace

std::optional<Arithmetic> find_arithmetic(c10::ScalarType type, Op op) {
  if (type == c10::ScalarType::Bool) return of_booleans(op);
  if (c10::isIntegralType(type, /*includeBool=*/false) && is_bitwise(op))
    return Arithmetic{DType::u8, op, static_cast<int64_t>(c10::elementSize(type))};
  // Complex numbers are summed part by part. They cannot be multiplied or compared part by part. The
  // newest, bcomplex32, is left out: torch 2.15 has the dtype, but cannot view its parts either.
  const bool is_complex = type == c10::ScalarType::ComplexHalf || type == c10::ScalarType::ComplexFloat ||
                          type == c10::ScalarType::ComplexDouble;
  if (is_complex && op != Op::sum && op != Op::avg) return std::nullopt;
  const auto dtype = element_of(is_complex ? c10::toRealValueType(type) : type);
  if (!dtype || !dispatch<bool>(*dtype, op, IsDefined{})) return std::nullopt;
  return Arithmetic{*dtype, op, is_complex ? 2 : 1};
}

Arithmetic moved(c10::ScalarType type) { return {DType::u8, Op::sum, static_cast<int64_t>(c10::elementSize(type))}; }

const char* name_of(Op op) {
  const char* name = "";
  for_each(Operations{}, [&]<class O>(O) {
    if (O::op == op) name = O::name;
  });
  return name;
}

const std::vector<Op>& every_op() {
  static const std::vector<Op> all = [] {
    std::vector<Op> ops;
    for_each(Operations{}, [&]<class O>(O) { ops.push_back(O::op); });
    return ops;
  }();
  return all;
}

std::string not_defined(c10::ScalarType type, Op op, const std::string& which) {
  std::string defined;
  for (Op other : every_op())
    if (find_arithmetic(type, other)) defined += std::string(defined.empty() ? "" : ", ") + name_of(other);
  if (defined.empty())
    return c10::str(name_of(type), which, " is a dtype that cannot be reduced; keep a converted copy and reduce that");
  const bool is_count = op == Op::avg && c10::isIntegralType(type, /*includeBool=*/true);
  return c10::str("op '", name_of(op), "' is not defined for ", name_of(type), which, ", which takes ", defined,
                  is_count ? "; a counter among buffers, as BatchNorm's num_batches_tracked, is the same on all ranks: "
                             "broadcast the buffers instead"
                           : "");
}

}  // namespace fastreduce
