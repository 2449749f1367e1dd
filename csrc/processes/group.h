// The ranks of one machine. Each has shared memory, in which it writes how far it has come and which all others read.
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

// Peers' memory stays mapped, since most calls use the same tensors again. Where there are more mappings than this,
// those that no call has used for this many rounds are undone: a process may have 65,530 mappings, and tensors whose
// sizes change all the time leave new ones behind.
constexpr size_t kMostOpened = 256;

// What a rank is about to do. All ranks must announce the same fingerprint and the same text.
struct Announcement {
  uint64_t fingerprint = 0;
  std::array<char, 160> text{};    // the call as errors show it
  SharedMemory::Address memory{};  // the tensor's, if peers may work on it; else its bytes are 0, and they use staging
  uint64_t offset = 0;             // of the tensor in that memory
  DeviceAddress device{};          // this rank's GPU, if the tensors are there
  bool at_once = false;            // kernels there may wait for those of peers in this call
  uint64_t call = 0;               // its number, as torch counts calls: one may take several rounds

  void describe(const std::string& words) { text = text_of<sizeof(text)>(words); }
};

// What a rank tells its peers in one round. Rounds are numbered from 1, and a rank has two desks, one for odd and one
// for even rounds: when it uses a desk again, every peer has arrived at the round in between, so no peer still reads
// it.
struct alignas(64) Desk {
  std::atomic<uint64_t> round{0};   // the round of the other members; written last
  std::atomic<uint64_t> copied{0};  // slices that lie in this rank's staging memory
  std::atomic<uint64_t> done{0};    // instructions that this rank has executed
  std::atomic<uint64_t> answer{0};  // to `Group::all`: kNo or kYes
  Announcement announcement;
  std::array<char, 96> caller{};  // the line of Python that made the call, if known; for errors
};

class Group {
 public:
  // `rank` is this process's number among the ranks of this machine, whose `names` errors use. `staging_bytes` is the
  // size of this rank's staging memory. `own_cores` says that each rank has cores for itself.
  Group(int rank, std::vector<std::string> names, size_t staging_bytes, bool own_cores = false);
  ~Group();

  // Once, before the first round: peers need this rank's invitation, and this rank joins with those of all.
  std::string invitation() const;
  void join(const std::vector<std::string>& invitations);

  int rank() const { return rank_; }
  const std::string& name() const { return names_[rank_]; }
  const std::string& name(int rank) const { return names_[rank]; }
  int size() const { return static_cast<int>(names_.size()); }

  // ---- one round: begin, write to the staging memory, arrive, meet, and then whatever the call does

  void begin(std::chrono::milliseconds timeout);
  void arrive(const Announcement& announcement);
  // The line of Python that makes the following calls. Errors of peers that wait for this rank in vain show it.
  void called_from(const std::string& caller) { caller_ = caller; }
  void meet();  // returns when all have arrived; throws if they have not announced the same
  // The two steps of meet(). `different` is the first rank that has not announced the same as rank 0; 0 if there is
  // none.
  void wait_for_all();
  int different() const;
  // Raises if a peer has given up this call, because that peer may already use its tensors for something else.
  void check_peers();
  GroupError differ(const std::string& rank, const std::string& call, const std::string& other_rank,
                    const std::string& other_call) const;

  // For calls in which ranks pass each other different numbers of elements. Before it arrives, this rank tells how many
  // it sends to each rank, and then how many it takes from each. Once all have met, compare_lengths raises if what one
  // rank sends is not what the other takes.
  void tell_lengths(const std::vector<int64_t>& lengths);
  void compare_lengths() const;
  GroupError misfit(const std::string& call, const std::string& lengths) const;

  // A round in which nothing else is done.
  void agree(const Announcement& announcement, std::chrono::milliseconds timeout);

  void advance_copied(uint64_t slices);
  void advance_done(uint64_t instructions);
  void wait_copied(int peer, uint64_t slices);
  void wait_done(int peer, uint64_t instructions);

  // Waits until `done()` is true. For work that this rank has begun and that ends without its peers.
  void wait_here(const std::function<bool()>& done);
  // The same for work of all ranks that ends only together; returns when all have seen theirs end.
  void finish_together(const std::function<bool()>& done);
  // Waits, once all have met, for work that another group does for this one. `ends_within` says whether that has ended,
  // and throws if it has failed. Raises if it fails or can no longer end; the error names the rank that is the cause,
  // or says what `elsewhere` returns. A peer that has done its part may leave only if this is a call's `last` step.
  void wait_outside(bool last, const std::function<bool(std::chrono::milliseconds)>& ends_within,
                    const std::function<std::string()>& elsewhere);
  // Whether all ranks say yes. Every rank asks, once in a round.
  bool all(bool mine);

  std::byte* staging(int rank) const;  // of this round
  size_t staging_bytes() const { return staging_bytes_; }
  const Announcement& announced(int rank) const { return desk(rank).announcement; }
  // The memory that a peer has announced for this round; nullptr if none.
  std::byte* announced_memory(int rank);

  // Makes this call and all later ones raise this reason, on every rank. Only the first reason counts.
  void fail(const std::string& reason) { fail_since(round_, reason); }
  // Runs one call of this rank. An error that is raised before peers can have heard of the call fails the group, too:
  // otherwise peers would take this rank's next call for this one.
  void do_call(std::chrono::milliseconds timeout, const std::function<void()>& call);
  // From any thread: calls of this rank that wait raise soon. With a reason, every call of every rank raises it.
  void abort(const std::string& reason = "");
  // From any thread: makes every call of every rank raise this reason, also those that have begun.
  void give_up(const std::string& reason) { fail_since(0, reason); }
  // Which rank has called give_up, with its reason; empty if none has.
  std::string given_up() const { return given_up_since(0); }
  // The same for ranks that have failed or given up, from whichever call on.
  std::string failed_at_all() const { return given_up_since(std::numeric_limits<uint64_t>::max()); }
  // Raises if this rank can make no further call.
  void check_usable() const;
  // Tells peers that this rank makes no further call: those that wait for it raise.
  void leave();
  // Says in words that this peer has left the group or its process has ended; empty if neither is so.
  std::string lost(int peer) const;
  // For a receive from any rank: says that a peer has ended without leaving, or, if `all` ranks of the group are on
  // this machine, that no peer is left. Empty if a message may still come.
  std::string no_sender(bool all) const;
  // Says which of these peers has left or ended. Looks for up to a second; empty if nothing is known by then.
  std::string lost_soon(const std::vector<int>& peers) const;
  // Follows a peer's name in an error: which collective it has called last, and on which line of Python.
  std::string last_call(int peer) const;
  // Where this rank tells its peers of its sends and receives.
  LabelTables& labels(int rank) const;
  // The words with which errors of this rank begin.
  std::string call(const std::string& text) const;
  bool is_aborted() const { return aborted_; }
  // Whether this process is a fork of the one that made the group. It must not speak for this rank.
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
  // These return words for an error, empty if nothing is wrong.
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
    uint64_t round = 0;  // the last that used it
  };
  std::map<std::pair<int, uint64_t>, Opened> opened_;  // announced memory, by rank and inode
  std::vector<FileDescriptor> alive_;                  // by rank: readable once the process has ended
  uint64_t round_ = 0, call_ = 0;
  std::optional<std::string> caller_;
  Clock::time_point deadline_;
  std::chrono::milliseconds timeout_{0};
  std::atomic<bool> aborted_{false}, failed_{false};
};

}  // namespace fastreduce
