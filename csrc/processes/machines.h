// Ranks of several machines: agreements and sums, ours inside each machine, by another backend between them.
#pragma once

#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "processes/group.h"
#include "processes/items.h"
#include "processes/rank_schedule.h"

namespace fastreduce {

// An allreduce has three steps: a reduce_scatter inside each machine, after which each rank has the sum of one shard;
// an allreduce of that shard with the ranks of the same number on the other machines; an all_gather inside. So all
// ranks of a machine send and receive at the same time. Large tensors go in chunks: while one is between machines, the
// next is reduced. Small tensors need none of the three: their sum travels with what machines tell each other to
// compare the call.
class Machines {
 public:
  struct Settings {
    std::vector<std::string> names;            // of the machines
    std::vector<std::vector<int>> ranks;       // by machine, as `all` numbers them
    std::vector<std::string> rank_names;       // by rank of `all`, as errors call them
    c10::intrusive_ptr<c10d::Backend> across;  // this rank and those of its number in other machines
    c10::intrusive_ptr<c10d::Backend> all;
  };
  Machines(Group& group, Settings settings);
  ~Machines();

  // The most that is summed while the call is compared. Every comparison carries so many bytes, since a machine cannot
  // know yet how many the others would send: 33 us at 1 Gbit/s, where a step of Gloo takes 200 us, and a call saves one
  // (2 network namespaces on 2 cores of an AMD EPYC, family 26, 2026-11-30).
  static constexpr int64_t kSmallBytes = 4096;

  // Returns when all ranks of all machines have come and announce the same; else all of them raise. A round in which
  // nothing else is done.
  void agree(const Announcement& mine, std::chrono::milliseconds timeout);

  // The same for calls whose ranks pass each other different numbers of elements: `lengths` are those that this rank
  // sends to each rank of all machines, and then those that it takes from each.
  void agree_on_lengths(const Announcement& mine, const std::vector<int64_t>& lengths,
                        std::chrono::milliseconds timeout);

  // Agrees, and sums in place: contiguous tensors of one dtype.
  void allreduce(const Tensors& tensors, const c10d::ReduceOp& op, const Announcement& mine,
                 std::chrono::milliseconds timeout);

  // `rank` counts the ranks of all machines, `rank_here` those of this machine. The name is for errors.
  std::string rank_name(int rank) const;
  c10::intrusive_ptr<c10d::Backend> across() const { return settings_.across; }
  int number_of(int rank_here) const { return settings_.ranks[settings_.across->getRank()][rank_here]; }

  // This rank's call has ended, well or not.
  void call_ended() { asked_ = false; }
  // From any thread: this rank can call nothing any more. Other machines hear of it, if they wait for what this rank
  // has to say of a call, or will, and in a later part of a call too. Of a machine that does not answer they find out
  // themselves.
  void give_up(const std::string& why);

  // After a failure, on all ranks: which machines do not answer.
  std::string silent();

 private:
  using Work = c10::intrusive_ptr<c10d::Work>;
  // How long a machine may take to answer after something has failed (predicted).
  static constexpr std::chrono::milliseconds kAnswer{3000};
  struct Chunk;
  struct SmallSum {
    const Tensors& tensors;  // one behind the other, as bytes
    const Arithmetic& kernel;
    int divisor;  // of the sum over all machines

    void pack(std::byte* to) const;
    void unpack(const std::byte* from) const;
    void add(const std::vector<const std::byte*>& from, std::byte* to, int by = 1) const;
  };
  // What one machine says to the others: what two of its ranks announce, or why its ranks cannot be asked.
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
    std::array<std::byte, kSmallBytes> sum{};  // a small one, of this machine's ranks
  };
  // What a rank that gives up tells those that listen. It may have done its part of the call that they are in.
  struct Words {
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
  // Of the first rank of a machine: its message, what it hears, and what of that it tells the others here.
  Message say(const SmallSum* sum) const;
  static Said failure(const std::string& why);
  std::vector<Message> exchange(const Message& message, std::chrono::milliseconds timeout);
  void pass_on(const std::vector<Message>& heard, const SmallSum* sum);
  std::byte* passed_sum() const { return group_.staging(0) + settings_.names.size() * sizeof(Said); }
  // All machines send each other as many bytes, in one step, where Gloo's all_gather goes round a ring; `all` has them
  // by machine.
  Work send_to_all(const at::Tensor& bytes, at::Tensor& all, std::chrono::milliseconds timeout);
  Work tell_all(const Message& message, at::Tensor& all, std::chrono::milliseconds timeout);
  void wait_between(const Work& work);
  void listen();
  void tell_listeners(const Words& words);

  Group& group_;
  const Settings settings_;
  const RankSchedule reduce_scatter_;
  const RankSchedule all_gather_;
  std::mutex saying_;               // so that what other machines hear of this one comes in one order
  std::atomic<bool> asked_{false};  // other machines have heard what this rank has to say of the call under way
  std::atomic<bool> gave_up_{false};
  std::atomic<bool> others_know_{false};  // why this rank gives up: a machine has told all, or answers none
  Work last_word_;                        // is under way as long as this is here
  Tensors heard_;
  Work listening_;
  std::atomic<bool> ends_{false};
  std::thread listener_;
};

}  // namespace fastreduce
