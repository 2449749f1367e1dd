#pragma once

#include <cuda_runtime.h>

#include <string>
#include <vector>

namespace fastreduce {

// Whether kernels on `device` may read and write the memory of `other` directly. Asked of the
// driver, enabled, and then proven with data, for each ordered pair: some IOMMU set-ups say yes and
// drop the writes. The first "no" for a pair in a process is warned of, with the reason.
bool can_reach(int device, int other);

// Whether the two are linked by NVLink: whether atomics pass the link, which those of PCIe do not.
bool has_nvlink(int device, int other);

// Finds out for all pairs of the devices. While one of the streams is captured nothing can be tried
// out: a pair that is not known yet is an error then, before anything is captured.
void prove_peers(const std::vector<int>& devices, const std::vector<cudaStream_t>& streams);

// Called once for each ordered pair that is found to reach, before anything uses it.
void when_reached(void (*hook)(int device, int other));

// Proofs are kept in this file too, for processes to come; "" (the default) keeps none. They hold for
// these devices (by UUID), this driver and this boot: the IOMMU is set up when the machine starts.
void keep_proofs_in(const std::string& path);

// Forget what was proven in this process (the tests change the machine under the engine).
void forget_peers();

}  // namespace fastreduce
