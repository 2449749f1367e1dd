#include "processes/labels.h"

#include <bit>

#include "processes/group.h"

namespace fastreduce {

// Each word is released after the odd version: so a reader that has seen a new word sees another version at the end.
// The last store and the first load of read() are sequentially consistent, for Labels::hand_over.
void LabelSlot::write(const Label& label) {
  const uint64_t version = version_.load(std::memory_order_relaxed);
  const auto words = std::bit_cast<Words>(label);
  version_.store(version + 1, std::memory_order_relaxed);
  for (size_t i = 0; i < words.size(); ++i) label_[i].store(words[i], std::memory_order_release);
  version_.store(version + 2, std::memory_order_seq_cst);
}

std::optional<Label> LabelSlot::read() const {
  const uint64_t version = version_.load(std::memory_order_seq_cst);
  Words words;
  for (size_t i = 0; i < words.size(); ++i) words[i] = label_[i].load(std::memory_order_acquire);
  const bool whole = version % 2 == 0 && version == version_.load(std::memory_order_relaxed);
  if (version == 0 || !whole) return std::nullopt;
  return std::bit_cast<Label>(words);
}

// Peers have neighbouring stretches of a table, and calls of one peer neighbouring slots: what comes later overwrites
// what is oldest.
LabelSlot& Labels::slot(int rank, bool sends, int peer, int tag, uint64_t number) const {
  LabelTables& tables = group_.labels(rank);
  const uint64_t begin = static_cast<uint64_t>(peer) * LabelTables::kSlots / static_cast<uint64_t>(group_.size());
  return (sends ? tables.sent : tables.received)[(begin + static_cast<uint64_t>(tag) + number) % LabelTables::kSlots];
}

void Labels::hand_over(const Message& call, const std::function<void()>& begin) {
  const std::lock_guard lock(mutex_);
  if (call.any_rank) unordered_.insert(call.tag);
  // Once a receive from any rank has had this tag, it is unknown which message other receives with this tag get.
  if (!call.peer || (!call.sends && unordered_.count(call.tag))) return begin();
  uint64_t& number = numbers_[{call.sends, *call.peer, call.tag}];
  compare(call, number);
  begin();
  ++number;
}

// Both ranks first write and then look, so at least one of them sees the other's label, and Gloo never has both calls.
void Labels::compare(const Message& call, uint64_t number) {
  const int me = group_.rank(), peer = *call.peer;
  Label mine{number, std::hash<std::string>()(call.words), peer, call.tag};
  call.words.copy(mine.words.data(), mine.words.size() - 1);
  slot(me, call.sends, peer, call.tag, number).write(mine);
  const std::optional<Label> theirs = slot(peer, !call.sends, me, call.tag, number).read();
  if (!theirs || theirs->peer != me || theirs->tag != call.tag || theirs->number != number) return;
  if (theirs->fingerprint == mine.fingerprint) return;
  const Label& sent = call.sends ? mine : *theirs;
  const Label& received = call.sends ? *theirs : mine;
  const std::string words = "rank " + group_.name(call.sends ? me : peer) + " sends " + sent.words.data() +
                            " to rank " + group_.name(call.sends ? peer : me) + ", which receives " +
                            received.words.data() + ", tag " + std::to_string(call.tag) +
                            "; want the same dtype and sizes on both";
  group_.give_up(words);
  throw GroupError(words);
}

}  // namespace fastreduce
