#include "cpu/reduce_range.h"

namespace fastreduce {

// On x86-64 it serves only CPUs older than AVX2 (2013), which are not worth the time to compile for.
Reduce select_baseline(DType dtype, Op op, int num_srcs) {
  return dispatch<Reduce>(Elements{}, dtype, op, CpuKernel<kBaselineIsTheBest>{num_srcs});
}

}  // namespace fastreduce
