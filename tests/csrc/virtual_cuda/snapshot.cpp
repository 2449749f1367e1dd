#include "snapshot.h"

#include <algorithm>
#include <cstring>

namespace virtual_cuda {

Snapshot::Snapshot(Memory& memory) {
  for (const auto& [begin, allocation] : memory.all()) {
    if (allocation.freed) continue;
    const auto* bytes = reinterpret_cast<const unsigned char*>(begin);
    pieces_.push_back({begin, {bytes, bytes + (allocation.end - begin)}});
  }
}

// What the work declares it may write: there, memory is as it is now.
void Snapshot::take_over(const Access& access) {
  auto piece = std::upper_bound(pieces_.begin(), pieces_.end(), access.begin,
                                [](uintptr_t address, const Piece& later) { return address < later.begin; });
  if (piece == pieces_.begin()) return;
  const size_t at = access.begin - (--piece)->begin;
  if (at >= piece->bytes.size()) return;
  const size_t bytes = std::min<size_t>(access.end - access.begin, piece->bytes.size() - at);
  std::memcpy(piece->bytes.data() + at, reinterpret_cast<const void*>(access.begin), bytes);
}

void Snapshot::compare(const Work& work, Memory& memory, Checker& checker) {
  for (const Access& access : work.accesses)
    if (access.writes) take_over(access);
  for (const Piece& piece : pieces_) {
    const auto* now = reinterpret_cast<const unsigned char*>(piece.begin);
    if (std::memcmp(now, piece.bytes.data(), piece.bytes.size()) == 0) continue;
    const uintptr_t first = piece.begin + (std::mismatch(piece.bytes.begin(), piece.bytes.end(), now).second - now);
    checker.report("undeclared write: " + work.name + " writes " + memory.describe(first, first + 1));
  }
}

}  // namespace virtual_cuda
