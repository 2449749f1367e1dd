#include "cpu/reduce_range.h"

namespace fastreduce {

// On x86-64 only CPUs without AVX2 (before 2013) use it, which do not justify the time to compile unrolled code.
Reduce select_baseline(DType dtype, Op op, int num_srcs) {
  return dispatch<Reduce>(Elements{}, dtype, op, CpuKernel<kBaselineIsTheBest>{num_srcs});
}

}  // namespace fastreduce
