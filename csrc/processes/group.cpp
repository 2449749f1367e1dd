#include "processes/front.h"

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <thread>

namespace fastreduce {
namespace {

// A look at a counter takes 22 ns (AMD EPYC, family 26 model 2, 2026-11-27), 40 ns where a peer's core has it (2 Xeon
// cores, 2026-11-22), so a rank spins for 200 to 400 us. With a quarter of that, in 4 of 17 runs of
// benchmarks/processes.py on that EPYC some size of 256 or 512 KiB took ten times as long as in the others; with this
// in 1 of 18. The price: while other work keeps one of two ranks' cores busy, calls of 1 KiB take 42 us (mean; a
// quarter of the spinning: 33 us, Gloo: 1.1 ms) and of 512 KiB 205 us (160 us, 1.1 ms; the same EPYC, 2026-11-30).
// Where ranks share cores, spinning would keep the awaited peer from running.
constexpr int kSpins = 10'000, kSpinsOnSharedCores = 50;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// While a GPU works, a look at it costs about as much as these last (predicted), and no bell rings when it is done.
constexpr std::chrono::microseconds kSpinHere{200};
constexpr std::chrono::microseconds kNap{20};

constexpr const char* kOwnDevice = "its own device, which has not finished what was enqueued before the call or in it";
constexpr const char* kAllDevices =
    "the devices of all ranks, of which one has not finished what was enqueued before the call or in it";

template <class Done, class Look>
void nap_until(const Done& done, const Look& look) {
  const Clock::time_point spun = Clock::now() + kSpinHere;
  while (!done()) {
    if (Clock::now() < spun) continue;
    look();
    std::this_thread::sleep_for(kNap);
  }
}

constexpr uint64_t kNo = 1, kYes = 2;

uint64_t random_token() {
  uint64_t token = 0;
  if (getrandom(&token, sizeof(token), 0) != sizeof(token))
    throw std::system_error(errno, std::generic_category(), "no random number");
  return token;
}

}  // namespace

Group::Group(int rank, std::vector<std::string> names, size_t staging_bytes, bool own_cores)
    : rank_(rank),
      pid_(getpid()),
      names_(std::move(names)),
      staging_bytes_(staging_bytes / 4096 * 4096),
      spins_(own_cores ? kSpins : kSpinsOnSharedCores),
      memories_(names_.size()),
      alive_(names_.size()) {
  memories_[rank] = SharedMemory::create(sizeof(Front) + 2 * staging_bytes_);
  Front& mine = *new (memories_[rank].data()) Front();
  mine.magic = kMagic;
  mine.token = random_token();
  mine.staging_bytes = staging_bytes_;
  mine.rank = rank;
  mine.size = size();
}

Group::~Group() { leave(); }

Group::Front& Group::front(int rank) const { return *reinterpret_cast<Front*>(memories_[rank].data()); }

LabelTables& Group::labels(int rank) const { return front(rank).labels; }

Desk& Group::desk(int rank) const { return front(rank).desks[round_ % 2]; }

std::byte* Group::staging(int rank) const {
  return memories_[rank].data() + sizeof(Front) + round_ % 2 * staging_bytes_;
}

std::byte* Group::announced_memory(int rank) {
  const Announcement& peer = announced(rank);
  if (peer.memory.bytes == 0) return nullptr;
  auto& [memory, used] = opened_[{rank, peer.memory.inode}];
  used = round_;
  try {
    if (!memory.data()) memory = SharedMemory::open(peer.memory);
  } catch (const std::runtime_error& error) {
    raise(call() + ": the tensor of rank " + names_[rank] + " cannot be reached: " + error.what());
  }
  return memory.data() + peer.offset;
}

// ---- rounds

void Group::begin(std::chrono::milliseconds timeout) {
  check_usable();
  ++round_;
  if (opened_.size() > kMostOpened)
    std::erase_if(opened_, [this](const auto& one) { return one.second.round + kMostOpened < round_; });
  timeout_ = limited(timeout);
  deadline_ = Clock::now() + timeout_;
  desk(rank_).copied.store(0, std::memory_order_relaxed);
  desk(rank_).done.store(0, std::memory_order_relaxed);
  desk(rank_).answer.store(0, std::memory_order_relaxed);
}

void Group::check_usable() const {
  if (forked()) throw GroupError("this group was made before a fork; make another in the new process");
  if (front(rank_).state.load(std::memory_order_acquire) == State::failed)
    throw GroupError("this group cannot be used any more: " + std::string(front(rank_).reason.data()));
}

void Group::arrive(const Announcement& announcement) {
  desk(rank_).announcement = announcement;
  desk(rank_).announcement.call = call_;
  if (caller_) desk(rank_).caller = text_of<sizeof(Desk::caller)>(*caller_);
  publish(desk(rank_).round, round_);
}

void Group::wait_for_all() {
  for (int peer = 0; peer < size(); ++peer)
    if (peer != rank_) wait(desk(peer).round, round_, peer);
  check_peers();
}

void Group::check_peers() {
  if (const std::string trouble = failed_peer(); !trouble.empty()) raise(trouble);
}

int Group::different() const {
  for (int peer = 1; peer < size(); ++peer)
    if (announced(peer).fingerprint != announced(0).fingerprint) return peer;
  return 0;
}

GroupError Group::differ(const std::string& rank, const std::string& call, const std::string& other_rank,
                         const std::string& other_call) const {
  return GroupError("call " + std::to_string(call_) + " is " + call + " on rank " + rank + " but " + other_call +
                    " on rank " + other_rank + "; want the same call on all ranks");
}

void Group::meet() {
  wait_for_all();
  // All compare all, so that all raise if any two differ.
  if (const int peer = different())
    throw differ(names_[0], announced(0).text.data(), names_[peer], announced(peer).text.data());
}

void Group::tell_lengths(const std::vector<int64_t>& lengths) {
  const size_t bytes = lengths.size() * sizeof(int64_t);
  if (bytes > staging_bytes_)
    throw GroupError("shared_bytes is too little for the lengths of a call of " + std::to_string(size()) + " ranks");
  std::memcpy(staging(rank_), lengths.data(), bytes);
}

void Group::compare_lengths() const {
  const auto length = [this](int rank, int index) {
    int64_t elems = 0;
    std::memcpy(&elems, staging(rank) + index * sizeof(elems), sizeof(elems));
    return elems;
  };
  for (int from = 0; from < size(); ++from)
    for (int to = 0; to < size(); ++to)
      if (const int64_t sent = length(from, to), taken = length(to, size() + from); sent != taken)
        throw misfit(announced(0).text.data(), different_lengths(names_[from], sent, names_[to], taken));
}

std::string different_lengths(const std::string& from, int64_t sent, const std::string& to, int64_t taken) {
  return "rank " + from + " sends " + std::to_string(sent) + " elements to rank " + to + ", which takes " +
         std::to_string(taken) + " from it";
}

GroupError Group::misfit(const std::string& call, const std::string& lengths) const {
  return GroupError("call " + std::to_string(call_) + ", " + call + ": " + lengths + "; want the same number on both");
}

void Group::agree(const Announcement& announcement, std::chrono::milliseconds timeout) {
  begin(timeout);
  arrive(announcement);
  meet();
}

void Group::advance_copied(uint64_t slices) { publish(desk(rank_).copied, slices); }
void Group::advance_done(uint64_t instructions) { publish(desk(rank_).done, instructions); }
void Group::wait_copied(int peer, uint64_t slices) { wait(desk(peer).copied, slices, peer); }
void Group::wait_done(int peer, uint64_t instructions) { wait(desk(peer).done, instructions, peer); }

void Group::publish(std::atomic<uint64_t>& counter, uint64_t value) {
  counter.store(value, std::memory_order_seq_cst);
  front(rank_).bell.ring();
}

void Group::wait(const std::atomic<uint64_t>& counter, uint64_t least, int peer) {
  const auto moved = [&] { return counter.load(std::memory_order_seq_cst) >= least; };
  for (int i = 0; i < spins_; ++i) {
    if (moved()) return;
    pause();
  }
  front(rank_).awaited.store(peer, std::memory_order_relaxed);
  while (!moved()) {
    // What the peer did before it left or ended counts, even if it came between the two looks.
    if (const std::string trouble = trouble_with(peer); !trouble.empty() && !moved()) raise(trouble);
    front(peer).bell.sleep(moved, kLook);
  }
  front(rank_).awaited.store(kNobody, std::memory_order_relaxed);
}

void Group::wait_here(const std::function<bool()>& done) {
  nap_until(done, [this] {
    for (const std::string& trouble : {aborted(), failed_peer(), late(kOwnDevice)})
      if (!trouble.empty()) raise(trouble);
  });
}

void Group::finish_together(const std::function<bool()>& done) {
  nap_until(done, [&] {
    for (const std::string& trouble : {aborted(), failed_peer(), missing(true), late(kAllDevices)})
      if (!trouble.empty() && !done()) raise(trouble);
  });
  advance_done(1);
  for (int peer = 0; peer < size(); ++peer)
    if (peer != rank_) wait_done(peer, 1);
}

bool Group::all(bool mine) {
  publish(desk(rank_).answer, mine ? kYes : kNo);
  bool agreed = true;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank_) wait(desk(peer).answer, kNo, peer);
    agreed = agreed && desk(peer).answer.load(std::memory_order_acquire) == kYes;
  }
  return agreed;
}

}  // namespace fastreduce
