#pragma once

#include <cuda_runtime.h>

#include <string>
#include <vector>

namespace fastreduce {

// Whether kernels on `device` can read and write the memory of `other` directly. For each ordered pair the driver is
// asked, access is enabled, and then tried out with data, because with some IOMMU settings the driver says yes but
// writes are lost, or never end. The first "no" for a pair in a process gives a warning with the reason.
bool can_reach(int device, int other);

// Whether the two can reach each other, over NVLink. Where NVML does not answer, it is asked whether atomics work,
// which they do over NVLink, but also over PCIe of newer parts.
bool has_nvlink(int device, int other);

// Whether the stream of a rank, on its device, is part of a capture.
bool any_captured(const std::vector<int>& devices, const std::vector<cudaStream_t>& streams);

// Finds out `can_reach` for all pairs of the devices. While one of the streams is captured, nothing can be tried out,
// so a pair that is not known yet is an error, before anything is captured.
void prove_peers(const std::vector<int>& devices, const std::vector<cudaStream_t>& streams);

// `hook` is called once for each ordered pair that can reach, before anything uses the pair.
void when_reached(void (*hook)(int device, int other));

// Results are also kept in this file for later processes; "" (the default) keeps none. They are valid for these
// devices (by UUID), this driver and this boot, because the IOMMU is set up when the machine starts.
void keep_proofs_in(const std::string& path);

// Forget what was proven in this process (the tests change the machine under the engine).
void forget_peers();

}  // namespace fastreduce
