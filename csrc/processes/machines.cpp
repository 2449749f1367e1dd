#include "processes/machines.h"

#include <algorithm>

#include "call.h"
#include "processes/gloo.h"
#include "programs.h"

namespace fastreduce {
namespace {

RankSchedule rank_schedule_of(Collective collective, const Group& group) {
  return RankSchedule(schedule_of(question_of(collective, group.size(), 0, 0, "")), group.rank());
}

}  // namespace

Machines::Machines(Group& group, Settings settings)
    : group_(group),
      settings_(std::move(settings)),
      reduce_scatter_(rank_schedule_of(Collective::reduce_scatter, group)),
      all_gather_(rank_schedule_of(Collective::all_gather, group)) {
  listen();
}

void Machines::wait_between(const Work& work) {
  group_.wait_outside(false, ending_of({work}), [this] { return ", between machines: " + silent(); });
}

void Machines::agree(const Announcement& mine, std::chrono::milliseconds timeout) { agree(mine, nullptr, timeout); }

void Machines::agree(const Announcement& mine, const SmallSum* sum, std::chrono::milliseconds timeout) {
  const std::vector<Said::AnnouncedCall> calls = announced(mine, sum, timeout);
  for (const Said::AnnouncedCall& call : calls)
    if (call.fingerprint != calls[0].fingerprint)
      throw group_.differ(calls[0].rank.data(), calls[0].text.data(), call.rank.data(), call.text.data());
  if (sum) sum->unpack(passed_sum());
}

// Each rank compares what it takes with what is sent to it. Then all announce the first rank whose number does not fit,
// and the lowest of these is named.
void Machines::agree_on_lengths(const Announcement& mine, const std::vector<int64_t>& lengths,
                                std::chrono::milliseconds timeout) {
  const int64_t ranks = settings_.all->getSize();
  constexpr int64_t kNumbers = 2;  // for each rank: how many elements it is sent, and by whom
  const auto bytes = static_cast<int64_t>(ranks * kNumbers * sizeof(int64_t));
  at::Tensor sent = memory_of_gloo(bytes), got = memory_of_gloo(bytes);
  auto* to = static_cast<int64_t*>(sent.mutable_data_ptr());
  for (int64_t rank = 0; rank < ranks; ++rank) {
    to[rank * kNumbers] = lengths[rank];
    to[rank * kNumbers + 1] = std::stoll(group_.name());
  }
  std::vector<int64_t> alike;
  c10d::AllToAllOptions options;
  options.timeout = timeout;
  wait_between(settings_.all->alltoall_base(got, sent, alike, alike, options));
  const auto* from = static_cast<const int64_t*>(got.const_data_ptr());
  Announcement fits = mine;
  fits.fingerprint = static_cast<uint64_t>(ranks);
  for (int64_t rank = ranks - 1; rank >= 0; --rank)
    if (const int64_t number = from[rank * kNumbers], taken = lengths[ranks + rank]; number != taken) {
      fits.describe(different_lengths(std::to_string(from[rank * kNumbers + 1]), number, group_.name(), taken));
      fits.fingerprint = static_cast<uint64_t>(rank);
    }
  const std::vector<Said::AnnouncedCall> all = announced(fits, nullptr, timeout);
  const auto by_rank = [](const Said::AnnouncedCall& one, const Said::AnnouncedCall& other) {
    return one.fingerprint < other.fingerprint;
  };
  if (const auto first = std::min_element(all.begin(), all.end(), by_rank);
      first->fingerprint < static_cast<uint64_t>(ranks))
    throw group_.misfit(mine.text.data(), first->text.data());
}

// For each machine: what its first rank announces, and what one of its other ranks announces, if that differs. Only
// first ranks ask other machines; the others wait for their first rank, which costs less.
std::vector<Machines::Said::AnnouncedCall> Machines::announced(const Announcement& mine, const SmallSum* sum,
                                                               std::chrono::milliseconds timeout) {
  group_.begin(timeout);
  const bool asks = group_.rank() == 0;
  std::vector<Said> all(settings_.names.size());
  if (all.size() * sizeof(Said) + kSmallBytes > group_.staging_bytes())
    throw GroupError("shared_bytes is too little for a call of " + std::to_string(all.size()) + " machines");
  if (sum) sum->pack(group_.staging(group_.rank()));
  try {
    group_.arrive(mine);
    group_.wait_for_all();
  } catch (const GroupError& here) {
    // A machine whose group has failed says so to the others, which would wait for it until the timeout.
    if (asks && !group_.is_aborted()) {
      try {
        exchange({failure(here.what()), {}}, timeout + kAnswer);
      } catch (const GroupError&) {  // the first error says more
      }
    }
    throw;
  }
  std::vector<Message> heard;
  if (asks) heard = exchange(say(sum), timeout + kAnswer);
  group_.begin(timeout + 3 * kAnswer);  // longer than the first rank waits for other machines
  if (asks) pass_on(heard, sum);
  group_.arrive(mine);
  group_.wait_for_all();
  std::memcpy(all.data(), group_.staging(0), all.size() * sizeof(Said));
  std::vector<Said::AnnouncedCall> calls;
  for (size_t machine = 0; machine < all.size(); ++machine) {
    calls.insert(calls.end(), all[machine].calls.begin(), all[machine].calls.end());
    if (const std::string failure = all[machine].failure.data(); !failure.empty()) {
      const std::string what = "on machine " + settings_.names[machine] + ": " + failure;
      group_.fail(what);
      throw GroupError(what);
    }
  }
  return calls;
}

Machines::Said Machines::failure(const std::string& why) { return {{}, text_of<Said::kText>(why)}; }

Machines::Message Machines::say(const SmallSum* sum) const {
  const auto call_of = [&](int rank) {
    const Announcement& of = group_.announced(rank);
    return Said::AnnouncedCall{of.fingerprint, text_of<Said::kRank>(group_.name(rank)), of.text};
  };
  Message message{{{call_of(0), call_of(group_.different())}, {}}, {}};
  if (sum && group_.different() == 0) {
    std::vector<const std::byte*> ranks;
    for (int rank = 0; rank < group_.size(); ++rank) ranks.push_back(group_.staging(rank));
    sum->add(ranks, message.sum.data());
  }
  return message;
}

void Machines::pass_on(const std::vector<Message>& heard, const SmallSum* sum) {
  std::vector<const std::byte*> machines;
  bool alike = true;
  for (size_t machine = 0; machine < heard.size(); ++machine) {
    std::memcpy(group_.staging(0) + machine * sizeof(Said), &heard[machine].said, sizeof(Said));
    machines.push_back(heard[machine].sum.data());
    for (const Said::AnnouncedCall& call : heard[machine].said.calls)
      alike = alike && call.fingerprint == heard[0].said.calls[0].fingerprint;
  }
  if (sum && alike) sum->add(machines, passed_sum(), sum->divisor);
}

Machines::Work Machines::send_to_all(const at::Tensor& bytes, at::Tensor& all, std::chrono::milliseconds timeout) {
  at::Tensor each = memory_of_gloo(all.numel());
  each.view({-1, bytes.numel()}).copy_(bytes);
  std::vector<int64_t> alike;
  c10d::AllToAllOptions options;
  options.timeout = timeout;
  return settings_.across->alltoall_base(all, each, alike, alike, options);
}

std::vector<Machines::Message> Machines::exchange(const Message& message, std::chrono::milliseconds timeout) {
  std::vector<Message> all(settings_.names.size());
  at::Tensor got = memory_of_gloo(static_cast<int64_t>(all.size() * sizeof(Message)));
  std::unique_lock lock(saying_);
  asked_ = true;
  const Work told = tell_all(message, got, timeout);
  lock.unlock();
  wait_between(told);
  std::memcpy(all.data(), got.const_data_ptr(), all.size() * sizeof(Message));
  return all;
}

Machines::Work Machines::tell_all(const Message& message, at::Tensor& all, std::chrono::milliseconds timeout) {
  return send_to_all(in_memory_of_gloo(message), all, timeout);
}

std::string Machines::rank_name(int rank) const {
  size_t machine = 0;
  while (!std::ranges::count(settings_.ranks[machine], rank)) ++machine;
  return settings_.rank_names[rank] + " on machine " + settings_.names[machine];
}

}  // namespace fastreduce
