#include "snapshot.h"

#include <algorithm>

namespace virtual_cuda {
namespace {

bool declared(const Work& work, uintptr_t address) {
  return std::any_of(work.accesses.begin(), work.accesses.end(), [&](const Access& access) {
    return access.writes && access.begin <= address && address < access.end;
  });
}

}  // namespace

Snapshot::Snapshot(Memory& memory) {
  for (const auto& [begin, allocation] : memory.all()) {
    if (allocation.freed) continue;
    const auto* bytes = reinterpret_cast<const unsigned char*>(begin);
    pieces_.push_back({begin, {bytes, bytes + (allocation.end - begin)}});
  }
}

void Snapshot::compare(const Work& work, Memory& memory, Checker& checker) const {
  for (const Piece& piece : pieces_) {
    const auto* now = reinterpret_cast<const unsigned char*>(piece.begin);
    for (size_t i = 0; i < piece.bytes.size(); ++i) {
      if (now[i] == piece.bytes[i] || declared(work, piece.begin + i)) continue;
      checker.report("undeclared write: " + work.name + " writes " +
                     memory.describe(piece.begin + i, piece.begin + i + 1));
      break;
    }
  }
}

}  // namespace virtual_cuda
