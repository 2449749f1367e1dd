// The ranks of one machine: each has memory that all see, and says in it how far it has come.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "processes/bell.h"
#include "processes/memory.h"
#include "processes/text.h"

namespace fastreduce {

// A call that cannot be finished: a peer has ended or failed, is late, or calls something else.
struct GroupError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct LabelTables;

// How peers open memory of a rank's GPU; zeros if they cannot. As large as a cudaIpcMemHandle_t.
using DeviceHandle = std::array<std::byte, 64>;

// A rank's GPU, as peers must know it.
struct DeviceAddress {
  DeviceHandle staging{};      // its staging memory there
  std::array<char, 16> gpu{};  // the GPU's PCI address, if kernels can wait there for those of peers
  bool operator==(const DeviceAddress&) const = default;
};

std::string different_lengths(const std::string& from, int64_t sent, const std::string& to, int64_t taken);

using Clock = std::chrono::steady_clock;

// As good as none. Clocks count nanoseconds in 64 bits, which end after 292 years.
constexpr std::chrono::milliseconds kLongestTimeout = std::chrono::hours(100 * 365 * 24);

inline std::chrono::milliseconds limited(std::chrono::milliseconds timeout) {
  return std::min(timeout, kLongestTimeout);
}

// So much memory of peers may stay mapped though a group has not used it for as many rounds: a process may have 65,530
// mappings, and where tensors have ever other sizes, their memory does not come again.
constexpr size_t kMostOpened = 256;

// What a rank is about to do. All ranks must announce the same fingerprint and the same text.
struct Announcement {
  uint64_t fingerprint = 0;
  std::array<char, 160> text{};    // for errors
  SharedMemory::Address memory{};  // which peers may use instead of a copy in this rank's staging memory...
  uint64_t offset = 0;             // ... from here; none if memory.bytes is 0
  DeviceAddress device{};          // this rank's GPU, if the tensors are there
  bool at_once = false;            // kernels there may wait for those of peers in this call
  uint64_t call = 0;               // its number, as torch counts calls: one may take several rounds

  void describe(const std::string& words) { text = text_of<sizeof(text)>(words); }
};

// Rounds are numbered from 1. A rank has two desks, for odd and even rounds: when it opens one again, every peer has
// arrived at the round between, so none still looks at the round before.
struct alignas(64) Desk {
  std::atomic<uint64_t> round{0};   // that the rest is about; published last
  std::atomic<uint64_t> copied{0};  // slices that lie in this rank's staging memory
  std::atomic<uint64_t> done{0};    // instructions that this rank has executed
  std::atomic<uint64_t> answer{0};  // to a question to all: kNo or kYes
  Announcement announcement;
  std::array<char, 96> caller{};  // of the call, in Python, if that is known: for errors
};

class Group {
 public:
  // `names` are the ranks as errors call them, by rank here. `staging_bytes` is this rank's. `own_cores`: no rank waits
  // for a core that another one holds.
  Group(int rank, std::vector<std::string> names, size_t staging_bytes, bool own_cores = false);
  ~Group();

  // What peers need in order to join, and joining them: once, before the first round.
  std::string invitation() const;
  void join(const std::vector<std::string>& invitations);

  int rank() const { return rank_; }
  const std::string& name() const { return names_[rank_]; }
  const std::string& name(int rank) const { return names_[rank]; }
  int size() const { return static_cast<int>(names_.size()); }

  // ---- one round: begin, write to the staging memory, arrive, meet, and then whatever the call does

  void begin(std::chrono::milliseconds timeout);
  void arrive(const Announcement& announcement);
  // Where the calls that follow come from: peers that wait for this rank in vain say so.
  void called_from(const std::string& caller) { caller_ = caller; }
  void meet();  // returns when all have arrived; throws if they have not announced the same
  // The same in two steps: the first rank that has not announced the same as rank 0, or 0.
  void wait_for_all();
  int different() const;
  // Raises if a peer has given up this call: it may use its tensors for something else by now.
  void check_peers();
  GroupError differ(const std::string& rank, const std::string& call, const std::string& other_rank,
                    const std::string& other_call) const;

  // For calls whose ranks pass each other different numbers of elements: what this rank sends to each, and then what it
  // takes from each, told before it arrives; and whether all of these fit, once all have met.
  void tell_lengths(const std::vector<int64_t>& lengths);
  void compare_lengths() const;
  GroupError misfit(const std::string& call, const std::string& lengths) const;

  // A round in which nothing else is done.
  void agree(const Announcement& announcement, std::chrono::milliseconds timeout);

  void advance_copied(uint64_t slices);
  void advance_done(uint64_t instructions);
  void wait_copied(int peer, uint64_t slices);
  void wait_done(int peer, uint64_t instructions);

  // Returns when `done()` is true: for what this rank itself has begun.
  void wait_here(const std::function<bool()>& done);
  // The same for what all ranks have begun and cannot end alone.
  void finish_together(const std::function<bool()>& done);
  // Waits, once all have met, for what another group does for this one: `ends_within` says whether it has ended, or
  // throws. Raises if it fails or cannot end, and names the rank that is the cause, or else what `elsewhere` says. If
  // it is the last step of a call, a peer that has done it may leave; else none may.
  void wait_outside(bool last, const std::function<bool(std::chrono::milliseconds)>& ends_within,
                    const std::function<std::string()>& elsewhere);
  // Whether all ranks say yes; all ask in the same round, and once.
  bool all(bool mine);

  std::byte* staging(int rank) const;  // of this round
  size_t staging_bytes() const { return staging_bytes_; }
  const Announcement& announced(int rank) const { return desk(rank).announcement; }
  // The memory that a peer has announced for this round; nullptr if none.
  std::byte* announced_memory(int rank);

  // From this call on, every call of every rank raises these words. The first reason stays.
  void fail(const std::string& reason) { fail_since(round_, reason); }
  // Runs one call of this rank. An error raised before peers can have heard of the call is passed on to them; otherwise
  // they would take this rank's next call for this one.
  bool do_call(std::chrono::milliseconds timeout, const std::function<bool()>& does);
  // From any thread: this rank's calls that wait raise soon; with a reason, so does every call of every rank.
  void abort(const std::string& reason = "");
  // From any thread: every call of every rank raises these words, also those that have begun.
  void give_up(const std::string& reason) { fail_since(0, reason); }
  // Which rank has done so, and its words; empty if none has.
  std::string given_up() const { return given_up_since(0); }
  // The same of ranks whose calls from some call on raise.
  std::string failed_at_all() const { return given_up_since(std::numeric_limits<uint64_t>::max()); }
  // Raises if this rank can call nothing any more.
  void check_usable() const;
  // Peers that wait for this rank raise.
  void leave();
  // That this peer has left or ended, in words; empty if not.
  std::string lost(int peer) const;
  // The same of a peer that has ended without leaving, or, where these are `all` that may send, of the last one.
  std::string no_sender(bool all) const;
  // Which of these peers has left or ended: words, or none if within a second nothing is known of any.
  std::string lost_soon(const std::vector<int>& peers) const;
  // Goes on after a peer's name: which collective it has called last, and where in the script.
  std::string last_call(int peer) const;
  // What a rank tells its peers of its sends and receives.
  LabelTables& labels(int rank) const;
  // What errors of this rank begin with.
  std::string call(const std::string& text) const;
  bool is_aborted() const { return aborted_; }
  // A process that was forked must not speak for this rank.
  bool forked() const;

 private:
  struct Front;
  enum class State : uint32_t { member, left, failed };
  struct Invitation {
    SharedMemory::Address at{};
    uint64_t token = 0;  // of the memory there
  };

  Invitation watch(int peer, const std::string& invitation);
  void open(int peer, const Invitation& from);
  std::string invitation_of(int peer) const;
  Front& front(int rank) const;
  Desk& desk(int rank) const;
  const Desk& last_desk(int rank) const;  // of the last round that it has begun
  void publish(std::atomic<uint64_t>& counter, uint64_t value);
  void wait(const std::atomic<uint64_t>& counter, uint64_t least, int peer);
  // Words for an error; empty if nothing is wrong.
  std::string trouble_with(int awaited) const;
  bool has_ended(int peer) const;
  int first_ended_soon() const;  // -1 if none has within a second
  std::string gone(int peer) const;
  bool has_left(int peer) const;
  std::string missing(bool last) const;
  std::string unfinished() const;
  std::string chain_from(int peer) const;
  bool has_arrived(int peer) const;
  std::string aborted() const;
  std::string failed_peer() const;
  std::string given_up_since(uint64_t round) const;
  std::string late(const std::string& awaited) const;
  [[noreturn]] void raise(const std::string& what);
  void fail_since(uint64_t round, const std::string& reason);
  std::string who_is_where() const;
  std::string call() const;

  const int rank_;
  const pid_t pid_;
  const std::vector<std::string> names_;
  const size_t staging_bytes_;
  const int spins_;
  std::vector<SharedMemory> memories_;  // by rank
  struct Opened {
    SharedMemory memory;
    uint64_t round = 0;  // that has used it last
  };
  std::map<std::pair<int, uint64_t>, Opened> opened_;  // by rank and inode: announced memory comes again
  std::vector<FileDescriptor> alive_;                  // by rank: readable once the process has ended
  uint64_t round_ = 0, call_ = 0;
  std::optional<std::string> caller_;
  Clock::time_point deadline_;
  std::chrono::milliseconds timeout_{0};
  std::atomic<bool> aborted_{false}, failed_{false};
};

}  // namespace fastreduce
