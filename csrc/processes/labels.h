// What two ranks of one machine send and receive, told in shared memory before Gloo hears of it: Gloo compares nothing,
// and ends the process that receives less than was sent.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <tuple>

namespace fastreduce {

class Group;

struct Label {
  uint64_t number = 0;       // of the rank's calls of this kind with this peer and tag
  uint64_t fingerprint = 0;  // of the words, which are cut here
  int32_t peer = -1;
  int32_t tag = 0;
  std::array<char, 96> words{};  // dtype and sizes
};

// One rank writes, its peers read. A label that is being written, or was overwritten, cannot be read.
class alignas(64) LabelSlot {
 public:
  void write(const Label& label);
  std::optional<Label> read() const;

 private:
  using Words = std::array<uint64_t, sizeof(Label) / sizeof(uint64_t)>;
  std::atomic<uint64_t> version_{0};  // 0 before the first, odd while one is written
  std::array<std::atomic<uint64_t>, std::tuple_size_v<Words>> label_{};
};

// Of one rank, in its shared memory.
struct LabelTables {
  // How many sends of a rank may wait for their peers, and how many receives, and still be compared: 32 KiB in all
  // (predicted to be enough).
  static constexpr size_t kSlots = 128;
  std::array<LabelSlot, kSlots> sent, received;
};

class Labels {
 public:
  struct Message {
    bool sends;
    std::optional<int> peer;  // none: it is on another machine, or any rank
    bool any_rank;
    int tag;
    std::string words;
  };

  explicit Labels(Group& group) : group_(group) {}

  // Compares the call with the peer's, if that is there, and runs `begin`, which gives it to Gloo: in the order of the
  // labels, since Gloo matches the calls of a pair with the same tag in their order. If the calls differ, every call of
  // every rank raises from now on, this one too, and `begin` is not run.
  void hand_over(const Message& call, const std::function<void()>& begin);

 private:
  LabelSlot& slot(int rank, bool sends, int peer, int tag, uint64_t number) const;
  void compare(const Message& call, uint64_t number);

  Group& group_;
  std::mutex mutex_;
  std::map<std::tuple<bool, int, int>, uint64_t> numbers_;  // of the next call, by kind, peer and tag
  std::set<int> unordered_;                                 // tags of which messages came from any rank
};

}  // namespace fastreduce
