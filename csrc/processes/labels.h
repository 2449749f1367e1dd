// Sends and receives between two ranks of one machine are compared in shared memory before Gloo gets them: Gloo
// compares nothing, and ends the process of a rank that receives less than was sent.
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
  uint64_t number = 0;       // counts the rank's calls of this kind with this peer and tag
  uint64_t fingerprint = 0;  // of all words: only their beginning is kept here
  int32_t peer = -1;
  int32_t tag = 0;
  std::array<char, 96> words{};  // dtype and sizes
};

// Written by one rank and read by its peers, who get nothing while the label is being written.
class alignas(64) LabelSlot {
 public:
  void write(const Label& label);
  std::optional<Label> read() const;

 private:
  using Words = std::array<uint64_t, sizeof(Label) / sizeof(uint64_t)>;
  std::atomic<uint64_t> version_{0};  // 0 before the first, odd while one is written
  std::array<std::atomic<uint64_t>, std::tuple_size_v<Words>> label_{};
};

// The labels of one rank, in its shared memory.
struct LabelTables {
  // So many sends and so many receives of a rank can be waiting for their peers and still be compared. They take 32 KiB
  // in all (predicted to be enough).
  static constexpr size_t kSlots = 128;
  std::array<LabelSlot, kSlots> sent, received;
};

class Labels {
 public:
  struct Message {
    bool sends;
    std::optional<int> peer;  // none if it is on another machine, or may be any rank
    bool any_rank;
    int tag;
    std::string words;
  };

  explicit Labels(Group& group) : group_(group) {}

  // Compares the call with the peer's, if that has been made, and runs `begin`, which gives it to Gloo. Labels and
  // calls to Gloo are in the same order, since Gloo matches calls of two ranks with the same tag in their order. If the
  // calls differ, `begin` is not run, and this call and all later ones raise, on every rank.
  void hand_over(const Message& call, const std::function<void()>& begin);

 private:
  LabelSlot& slot(int rank, bool sends, int peer, int tag, uint64_t number) const;
  void compare(const Message& call, uint64_t number);

  Group& group_;
  std::mutex mutex_;
  std::map<std::tuple<bool, int, int>, uint64_t> numbers_;  // of the next call, by kind, peer and tag
  std::set<int> unordered_;                                 // tags with which a message from any rank was received
};

}  // namespace fastreduce
