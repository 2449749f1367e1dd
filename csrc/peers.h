#pragma once

namespace fastreduce {

// Whether kernels on `device` may read and write the memory of `other` directly. Asked of the
// driver, enabled, and then proven with data, once for each ordered pair in a process: some IOMMU
// set-ups say yes and drop the writes. The first "no" for a pair is warned of, with the reason.
bool can_reach(int device, int other);

// Forget what was proven (the tests change the machine under the engine).
void forget_peers();

}  // namespace fastreduce
