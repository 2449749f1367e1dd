// Calls with torch's tensors in the memory of virtual GPUs: tensors_test PROGRAMS FOLDER
#include <ATen/ops/from_blob.h>
#include <c10/cuda/CUDAStream.h>

#include "cases.h"
#include "programs.h"

using namespace engines_test;
using c10::cuda::current_streams;

namespace {

constexpr int64_t kElems = 100;

// One tensor for each rank, of ones, twos, ..., of which every so manieth element of its memory belongs to the tensor.
class Ranks {
 public:
  Ranks(const std::vector<int>& devices, int64_t stride) : values_(kElems * stride) {
    for (int index : devices) {
      const c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(index));
      memory_.push_back(allocate_device(index, bytes()));
      std::fill(values_.begin(), values_.end(), static_cast<float>(memory_.size()));
      cuda_check(cudaMemcpy(memory_.back().get(), values_.data(), bytes(), cudaMemcpyHostToDevice), "cudaMemcpy");
      tensors_.push_back(at::for_blob(memory_.back().get(), {kElems})
                             .strides({stride})
                             .target_device(device)
                             .options(at::TensorOptions(at::kFloat).device(device))
                             .make_tensor());
    }
    synchronize(2);
  }

  Call call() const {
    const auto count = static_cast<int64_t>(tensors_.size());
    return {Collective::allreduce, {"tensors", tensors_, count, 1}, {}, Op::sum, 0, "leader"};
  }

  void expect(const std::vector<float>& wanted, const std::string& where) {
    synchronize(2);
    for (size_t rank = 0; rank < wanted.size(); ++rank) {
      cuda_check(cudaMemcpy(values_.data(), memory_[rank].get(), bytes(), cudaMemcpyDeviceToHost), "cudaMemcpy");
      if (std::count(values_.begin(), values_.end(), wanted[rank]) != static_cast<int64_t>(values_.size()))
        fail(where + ": rank " + std::to_string(rank) + " holds " + std::to_string(values_[0]));
    }
    expect_clean(where);
    ++cases;
  }

 private:
  int64_t bytes() const { return static_cast<int64_t>(values_.size() * sizeof values_[0]); }

  std::vector<float> values_;
  std::vector<DeviceMemory> memory_;
  std::vector<at::Tensor> tensors_;
};

// "" if the call was made, or what it was refused with.
std::string said(const Ranks& ranks) {
  try {
    run(ranks.call());
    return "";
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
}

std::string said_while_captured(const Ranks& ranks) {
  std::string words;
  const Captured graph(current_streams[0], cudaStreamCaptureModeThreadLocal, [&] { words = said(ranks); });
  if (words.empty()) graph.launch(current_streams[0]), synchronize(2);
  return words;
}

void expect_said(const std::string& found, const std::string& wanted, const std::string& where) {
  if (wanted.empty() ? !found.empty() : found.find(wanted) == std::string::npos)
    fail(where + ": it says '" + found + "', not '" + wanted + "'");
}

constexpr const char* kRefused =
    "rank 0, tensor 0 needs a contiguous copy, which a capture over several GPUs does not keep; pass contiguous "
    "tensors, "
    "without lazy conjugates and negatives, and for bxor uint8 tensors in place of booleans";
// This torch is one for the CPU: that it is asked for a copy is all that there is to see.
constexpr const char* kAskedForACopy = "with arguments from the 'CUDA' backend";

void expect_copy(const std::vector<int>& devices, bool captured, const std::string& wanted, const std::string& where) {
  Ranks ranks(devices, 2);
  expect_said(captured ? said_while_captured(ranks) : said(ranks), wanted, where);
  ranks.expect({1, 2}, where);
}

void expect_sums(const std::vector<int>& devices, const std::string& where) {
  Ranks ranks(devices, 1);
  expect_said(said(ranks), "", where);
  ranks.expect({3, 3}, where);
  expect_said(said_while_captured(ranks), "", where);
  ranks.expect({6, 6}, where + ", captured");
}

}  // namespace

int main(int, char** argv) {
  programs = read_programs(argv[1]);
  cache_folder = [argv] { return std::string(argv[2]); };
  algorithm_of_environment = [] { return std::string(); };
  build_schedule = [](const Question&) {
    return std::make_shared<const Schedule>(copy_of(program_of("leader", 2).program));
  };
  virtual_cuda::reset({.devices = 2, .max_delay_us = 20});
  const Stream stream = make_stream();
  current_streams[0] = stream.get();
  expect_sums({0, 1}, "two GPUs");
  expect_sums({0, 0}, "one GPU");
  expect_copy({0, 1}, true, kRefused, "strided tensors on two GPUs, captured");
  expect_copy({0, 1}, false, kAskedForACopy, "strided tensors on two GPUs");
  expect_copy({0, 0}, true, kAskedForACopy, "strided tensors on one GPU, captured");
  std::printf("%d cases right\n", cases);
}
