namespace fastreduce {
constexpr int kSimdBytes = 16;
}

#include "cpu/reduce_range.h"

namespace fastreduce {

Reduce select_baseline(DType dtype, Op op) { return dispatch<Reduce>(dtype, op, CpuKernel{}); }

}  // namespace fastreduce
