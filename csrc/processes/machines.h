// Agreements and sums of ranks on several machines: by this library inside each machine, by another backend between
// them.
#pragma once

#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "processes/group.h"
#include "processes/items.h"
#include "processes/rank_schedule.h"

namespace fastreduce {

// An allreduce has three steps: a reduce_scatter inside each machine, after which each rank has the sum of one shard;
// an allreduce of that shard with the ranks of the same number on the other machines; an all_gather inside each
// machine. So all ranks of a machine send and receive at the same time. Large tensors go in chunks: while one chunk is
// between machines, the next is reduced. Small tensors need none of these steps: machines send each other their sums in
// the messages by which they compare the call.
class Machines {
 public:
  struct Settings {
    std::vector<std::string> names;            // of the machines
    std::vector<std::vector<int>> ranks;       // by machine, as `all` numbers them
    std::vector<std::string> rank_names;       // by rank of `all`, as errors call them
    c10::intrusive_ptr<c10d::Backend> across;  // this rank and the ranks of its number on the other machines
    c10::intrusive_ptr<c10d::Backend> all;     // all ranks of all machines
  };
  Machines(Group& group, Settings settings);
  ~Machines();

  // Tensors of at most so many bytes are summed by the messages that compare the call, which saves a step of Gloo. Each
  // such message has room for them, since a machine does not know yet how much the others send. At 1 Gbit/s that takes
  // 33 us, and a step of Gloo 200 us (2 network namespaces on 2 cores of an AMD EPYC, family 26, 2026-11-30).
  static constexpr int64_t kSmallBytes = 4096;

  // A round that only compares a call: returns when all ranks of all machines have announced the same; if they have
  // not, all raise.
  void agree(const Announcement& mine, std::chrono::milliseconds timeout);

  // The same for calls in which ranks pass each other different numbers of elements. `lengths` are the numbers that
  // this rank sends to each rank of all machines, followed by those that it takes from each.
  void agree_on_lengths(const Announcement& mine, const std::vector<int64_t>& lengths,
                        std::chrono::milliseconds timeout);

  // Agrees, and sums contiguous tensors of one dtype in place.
  void allreduce(const Tensors& tensors, const c10d::ReduceOp& op, const Announcement& mine,
                 std::chrono::milliseconds timeout);

  // `rank` is a number among the ranks of all machines, `rank_here` one among those of this machine. Errors use the
  // name.
  std::string rank_name(int rank) const;
  c10::intrusive_ptr<c10d::Backend> across() const { return settings_.across; }
  int number_of(int rank_here) const { return settings_.ranks[settings_.across->getRank()][rank_here]; }

  // This rank's call has ended, with or without an error.
  void call_ended() { asked_ = false; }
  // From any thread: this rank can make no further call. Other machines are told so, whether they already wait for this
  // rank's message about a call, will wait for it later, or are in a later part of a call. That a machine does not
  // answer at all they find out themselves.
  void give_up(const std::string& why);

  // After a failure, called on all ranks: says which machines do not answer.
  std::string silent();

 private:
  using Work = c10::intrusive_ptr<c10d::Work>;
  // How long a machine may take to answer after something has failed (predicted).
  static constexpr std::chrono::milliseconds kAnswer{3000};
  struct Chunk;
  struct SmallSum {
    const Tensors& tensors;
    const Arithmetic& kernel;
    int divisor;  // of the sum over all machines

    // The tensors' bytes, one tensor behind the other.
    void pack(std::byte* to) const;
    void unpack(const std::byte* from) const;
    void add(const std::vector<const std::byte*>& from, std::byte* to, int by = 1) const;
  };
  // What one machine tells the others: what two of its ranks have announced, or why its ranks cannot be asked.
  struct Said {
    static constexpr size_t kRank = 16, kText = 512;
    struct AnnouncedCall {
      uint64_t fingerprint = 0;
      std::array<char, kRank> rank{};
      decltype(Announcement::text) text{};
    };
    std::array<AnnouncedCall, 2> calls{};
    std::array<char, kText> failure{};
  };
  struct Message {
    Said said;
    std::array<std::byte, kSmallBytes> sum{};  // of the small tensors of this machine's ranks
  };
  // What a rank that gives up tells ranks of other machines that listen for it. These may be in a call in which it has
  // already done its part.
  struct LastMessage {
    Said said;
    bool after_this_call = false;
  };

  void allreduce_in_chunks(const at::Tensor& flat, const Arithmetic& kernel, int divisor,
                           const Announcement& announcement, std::chrono::milliseconds timeout);
  void run_inside(const RankSchedule& rank_schedule, Chunk& chunk);
  void start_across(Chunk& chunk);
  void finish(Chunk& chunk);
  void reduce_between(Chunk& chunk);
  void agree(const Announcement& mine, const SmallSum* sum, std::chrono::milliseconds timeout);
  std::vector<Said::AnnouncedCall> announced(const Announcement& mine, const SmallSum* sum,
                                             std::chrono::milliseconds timeout);
  // Done by the first rank of each machine: it makes a message, exchanges it with the other machines, and passes on
  // what the other ranks of its machine need to know.
  Message say(const SmallSum* sum) const;
  static Said failure(const std::string& why);
  std::vector<Message> exchange(const Message& message, std::chrono::milliseconds timeout);
  void pass_on(const std::vector<Message>& heard, const SmallSum* sum);
  std::byte* passed_sum() const { return group_.staging(0) + settings_.names.size() * sizeof(Said); }
  // All machines send each other the same number of bytes in one step, where Gloo's all_gather would go round a ring.
  // The bytes are in `all` by machine.
  Work send_to_all(const at::Tensor& bytes, at::Tensor& all, std::chrono::milliseconds timeout);
  Work tell_all(const Message& message, at::Tensor& all, std::chrono::milliseconds timeout);
  void wait_between(const Work& work);
  void listen();
  void tell_listeners(const LastMessage& last);

  Group& group_;
  const Settings settings_;
  const RankSchedule reduce_scatter_;
  const RankSchedule all_gather_;
  std::mutex saying_;  // held while this machine sends a message, so that all hear its messages in one order
  std::atomic<bool> asked_{false};  // other machines have this rank's message about the call under way
  std::atomic<bool> gave_up_{false};
  std::atomic<bool> others_know_{false};  // why this rank gives up: another machine has told all, or answers nobody
  Work last_word_;                        // held so that Gloo goes on sending it
  Tensors heard_;
  Work listening_;
  std::atomic<bool> ends_{false};
  std::thread listener_;
};

}  // namespace fastreduce
