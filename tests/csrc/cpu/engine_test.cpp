// Drives the tiles engine and the kernels without torch, under sanitizers, over programs built
// here. Every result is compared with a plain loop, and the bytes around every buffer are looked at.
// Prints "<n> cases right", or what was wrong, and exits with 1.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cpu/kernels.h"
#include "cpu/tiles.h"

namespace {

using namespace fastreduce;

constexpr size_t kGuardBytes = 64;
constexpr std::byte kGuard{0xA5};

// Guard bytes, the elements, guard bytes. AddressSanitizer guards the end by itself, also against
// reading: there the allocation ends with the last element.
#ifdef __SANITIZE_ADDRESS__
constexpr size_t kBackGuardBytes = 0;
#else
constexpr size_t kBackGuardBytes = kGuardBytes;
#endif

class Buffer {
 public:
  Buffer(size_t bytes, size_t offset_bytes)
      : begin_(kGuardBytes + offset_bytes),
        end_(begin_ + bytes),
        size_(end_ + kBackGuardBytes),
        memory_(new std::byte[size_]) {
    std::fill_n(memory_.get(), size_, kGuard);
  }
  std::byte* data() { return memory_.get() + begin_; }
  bool guards_are_whole() const {
    for (size_t i = 0; i < size_; ++i)
      if ((i < begin_ || i >= end_) && memory_[i] != kGuard) return false;
    return true;
  }

 private:
  size_t begin_, end_, size_;
  std::unique_ptr<std::byte[]> memory_;
};

// ---- programs, written once more

Schedule program_of(int ranks, int shards, const std::vector<Instruction>& instructions) {
  return Schedule(ranks, ranks, shards, instructions, std::vector<std::vector<int>>(instructions.size()), {});
}

std::vector<int> all(int ranks) {
  std::vector<int> every(ranks);
  for (int r = 0; r < ranks; ++r) every[r] = r;
  return every;
}

Schedule leader(int k) { return program_of(k, 1, {{0, 0, all(k), all(k), k > 1}}); }

Schedule sharded(int k) {
  std::vector<Instruction> steps;
  for (int r = 0; r < k; ++r) steps.push_back({r, r, all(k), all(k), k > 1});
  return program_of(k, k, steps);
}

Schedule ring(int k) {
  std::vector<Instruction> steps;
  for (int shard = 0; shard < k; ++shard) {
    for (int hop = 1; hop < k; ++hop)
      steps.push_back(
          {(shard + hop) % k, shard, {(shard + hop - 1) % k, (shard + hop) % k}, {(shard + hop) % k}, hop == k - 1});
    for (int hop = 0; hop < k - 1; ++hop)
      steps.push_back({(shard + hop) % k, shard, {(shard + hop + k - 1) % k}, {(shard + hop) % k}, false});
  }
  return program_of(k, k, steps);
}

// ---- one case

struct Case {
  std::string name;
  Schedule program;
  std::vector<int64_t> tensor_elems;  // a list of tensors for each rank
  int64_t offset_elems;               // from a cache line to the first element
};

// Tells its rank and index. Not exact: sums in another order differ in some last bit.
struct AnyOrderShows {
  static double value(int rank, int64_t i) { return (1 + (rank * 31 + i) % 97) * (rank % 2 ? 1e-3 : 1.1); }
};
// Small whole numbers: exact in every dtype here and any order.
struct Exact {
  static double value(int rank, int64_t i) { return (rank + i) % 9 == 0 ? 1 + i % 2 : 0; }
};
// Large ones: integers wrap.
struct Wraps {
  static double value(int rank, int64_t i) { return 30000 + (rank * 31 + i) % 97; }
};

struct SumOf {
  static constexpr Op op = Op::sum;
  template <class A> static A fold(A a, A b) { return a + b; }
  template <class A> static A finish(A a, int) { return a; }
};
struct AvgOf : SumOf {
  static constexpr Op op = Op::avg;
  template <class A> static A finish(A a, int k) { return a / static_cast<A>(k); }
};
struct ProdOf : SumOf {
  static constexpr Op op = Op::prod;
  template <class A> static A fold(A a, A b) { return a * b; }
};
struct MaxOf : SumOf {
  static constexpr Op op = Op::max;
  template <class A> static A fold(A a, A b) { return a > b ? a : b; }
};
struct BXorOf : SumOf {
  static constexpr Op op = Op::bxor;
  template <class A> static A fold(A a, A b) { return a ^ b; }
};

// A is what the loop below computes in: float, double or an unsigned integer, which wraps.
template <class T, class A, class O, class Values>
T expected(int ranks, int64_t i) {
  A total = static_cast<A>(static_cast<T>(Values::value(0, i)));
  for (int r = 1; r < ranks; ++r) total = O::fold(total, static_cast<A>(static_cast<T>(Values::value(r, i))));
  return static_cast<T>(O::finish(total, ranks));
}

void on_three_threads(int64_t tasks, const std::function<void(int64_t, int64_t)>& body) {
  std::vector<std::thread> workers;
  for (int64_t w = 0; w < 3; ++w) workers.emplace_back([&body, tasks, w] { body(tasks * w / 3, tasks * (w + 1) / 3); });
  for (std::thread& worker : workers) worker.join();
}

[[noreturn]] void wrong(const Case& one, const char* what, int rank, int64_t i) {
  std::printf("%s: %s in rank %d, element %ld\n", one.name.c_str(), what, rank, static_cast<long>(i));
  std::exit(1);
}

int cases = 0;

template <class T, class A, class O, class Values>
void run(DType dtype, const Case& one) {
  const int k = one.program.ranks;
  Table table{dtype, O::op, sizeof(T), {}, {}};
  std::vector<std::vector<Buffer>> buffers;  // by tensor, then rank
  for (int64_t elems : one.tensor_elems) {
    std::vector<Buffer>& of_ranks = buffers.emplace_back();
    for (int rank = 0; rank < k; ++rank) {
      of_ranks.emplace_back(elems * sizeof(T), one.offset_elems * sizeof(T));
      for (int64_t i = 0; i < elems; ++i) {
        const T value = static_cast<T>(Values::value(rank, i));
        std::memcpy(of_ranks[rank].data() + i * sizeof(T), &value, sizeof(T));
      }
    }
    const int64_t shard_elems = (elems + one.program.shards - 1) / one.program.shards;
    for (int64_t begin = 0; begin < elems; begin += shard_elems) {
      table.rows.push_back(
          {static_cast<int>(begin / shard_elems), std::min(shard_elems, elems - begin), table.pointers.size()});
      for (Buffer& buffer : of_ranks) table.pointers.push_back(buffer.data() + begin * sizeof(T));
    }
  }
  run_tiles(one.program, table, on_three_threads);
  for (size_t t = 0; t < buffers.size(); ++t)
    for (int rank = 0; rank < k; ++rank) {
      for (int64_t i = 0; i < one.tensor_elems[t]; ++i) {
        const T value = expected<T, A, O, Values>(k, i);
        if (std::memcmp(&value, buffers[t][rank].data() + i * sizeof(T), sizeof(T))) wrong(one, "wrong value", rank, i);
      }
      if (!buffers[t][rank].guards_are_whole()) wrong(one, "bytes changed around a buffer", rank, 0);
    }
  ++cases;
}

template <class Values>
void run_f32_and_i32(const Case& one) {
  run<float, float, SumOf, Values>(DType::f32, one);
  run<int32_t, uint32_t, SumOf, Exact>(DType::i32, one);
}

// Dtypes whose result depends on no order, at least for these values.
void run_others(const Case& one) {
  run<float, float, AvgOf, Exact>(DType::f32, one);
  run<double, double, MaxOf, AnyOrderShows>(DType::f64, one);
  run<c10::Half, float, SumOf, Exact>(DType::f16, one);
  run<c10::BFloat16, float, SumOf, Exact>(DType::bf16, one);
  run<c10::Float8_e5m2, float, SumOf, Exact>(DType::e5m2, one);
  run<int16_t, uint32_t, ProdOf, Wraps>(DType::i16, one);
  run<int64_t, uint64_t, ProdOf, Wraps>(DType::i64, one);
  run<uint8_t, uint8_t, BXorOf, Exact>(DType::u8, one);
}

void run_integers_that_wrap() {
  struct NearTheEnd {
    static double value(int, int64_t) { return 2e9; }
  };
  run<int32_t, uint32_t, SumOf, NearTheEnd>(DType::i32, {"wrapping", leader(4), {100}, 0});
  // Of 16 bits two factors already exceed what an int holds.
  struct Large {
    static double value(int, int64_t) { return 65535; }
  };
  run<uint16_t, uint32_t, ProdOf, Large>(DType::i16, {"wrapping products", leader(4), {100}, 0});
}

}  // namespace

int main(int argc, char**) {
  const bool fewest = argc > 1;
  // About a vector, a tile (16 KiB) and a share for every thread.
  const std::vector<std::vector<int64_t>> lists = {{1}, {7, 1}, {63}, {64}, {65}, {4097}, {3, 40031, 130}};
  for (int k : {1, 2, 3, 4, 8, 9})
    for (const std::vector<int64_t>& elems : lists)
      for (int64_t offset : {0, 1}) {
        const std::string name = std::to_string(k) + " ranks, " + std::to_string(elems.back()) + " elements, offset " +
                                 std::to_string(offset);
        const Case by_leader{"leader, " + name, leader(k), elems, offset};
        const Case by_shards{"sharded, " + name, sharded(k), elems, offset};
        const Case by_ring{"ring, " + name, ring(k), elems, offset};
        run_f32_and_i32<AnyOrderShows>(by_leader);
        run_f32_and_i32<AnyOrderShows>(by_shards);
        run_f32_and_i32<Exact>(by_ring);
        if (fewest) continue;
        for (const Case* one : {&by_leader, &by_shards, &by_ring}) run_others(*one);
      }
  run_integers_that_wrap();
  std::printf("%d cases right\n", cases);
}
