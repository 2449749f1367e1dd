#include "processes/machines.h"

#include <algorithm>

#include "call.h"
#include "processes/gloo.h"
#include "programs.h"

namespace fastreduce {
namespace {

RankPlan plan_of(Collective collective, const Group& group) {
  return RankPlan(schedule_of({collective, "auto", group.size(), 0, "processes", 0}), group.rank());
}

// The tag of question and answer.
constexpr int kTag = 0x66617374;

}  // namespace

Machines::Machines(Group& group, Settings settings)
    : group_(group),
      settings_(std::move(settings)),
      reduce_scatter_(plan_of(Collective::reduce_scatter, group)),
      all_gather_(plan_of(Collective::all_gather, group)) {}

void Machines::wait_between(const Work& work, const Announcement& call) {
  try {
    group_.wait_outside(ending_of({work}));
  } catch (const GroupError&) {
    throw;
  } catch (const std::exception& error) {
    const std::string what = group_.call(call.text.data()) + ", between machines: " + silent() + ": " + error.what();
    group_.fail(what);
    throw GroupError(what);
  }
}

void Machines::agree(const Announcement& mine, std::chrono::milliseconds timeout) {
  const std::vector<Said::Call> calls = announced(mine, timeout);
  for (const Said::Call& call : calls)
    if (call.fingerprint != calls[0].fingerprint)
      throw group_.differ(calls[0].rank.data(), calls[0].text.data(), call.rank.data(), call.text.data());
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
  wait_between(settings_.all->alltoall_base(got, sent, alike, alike, options), mine);
  const auto* from = static_cast<const int64_t*>(got.const_data_ptr());
  Announcement fits;
  fits.fingerprint = static_cast<uint64_t>(ranks);
  for (int64_t rank = ranks - 1; rank >= 0; --rank)
    if (const int64_t number = from[rank * kNumbers], taken = lengths[ranks + rank]; number != taken) {
      fits.describe(different_lengths(std::to_string(from[rank * kNumbers + 1]), number, group_.name(), taken));
      fits.fingerprint = static_cast<uint64_t>(rank);
    }
  const std::vector<Said::Call> all = announced(fits, timeout);
  const auto by_rank = [](const Said::Call& one, const Said::Call& other) {
    return one.fingerprint < other.fingerprint;
  };
  if (const auto first = std::min_element(all.begin(), all.end(), by_rank); first->text[0] != 0)
    throw group_.misfit(mine.text.data(), first->text.data());
}

// What is announced by the first rank of each machine, and then by one of its ranks that announces something else, if
// there is one. A machine whose group has failed says so to the others, which would wait for it until the timeout.
std::vector<Machines::Said::Call> Machines::announced(const Announcement& mine, std::chrono::milliseconds timeout) {
  Said said;
  std::optional<GroupError> here;
  group_.begin(timeout);  // raises by itself where the others have heard of it, or where it is not for them
  try {
    group_.arrive(mine);
    group_.wait_for_all();
    said = say();
  } catch (const GroupError& error) {
    if (group_.is_aborted()) throw;
    here = error;
    std::strncpy(said.failure.data(), error.what(), said.failure.size() - 1);
  }
  const std::vector<Said> all = exchange(said, mine, timeout + kAnswer);
  if (here) throw *here;
  std::vector<Said::Call> calls;
  for (size_t machine = 0; machine < all.size(); ++machine) {
    calls.insert(calls.end(), all[machine].calls.begin(), all[machine].calls.end());
    const std::string failure = all[machine].failure.data();
    if (failure.empty()) continue;
    const std::string what = "on machine " + settings_.names[machine] + ": " + failure;
    group_.fail(what);
    throw GroupError(what);
  }
  return calls;
}

Machines::Said Machines::say() const {
  const auto call_of = [&](int rank) {
    const Announcement& of = group_.announced(rank);
    Said::Call call{of.fingerprint, {}, of.text};
    std::strncpy(call.rank.data(), group_.name(rank).c_str(), call.rank.size() - 1);
    return call;
  };
  return {{call_of(0), call_of(group_.different())}, {}};
}

std::vector<Machines::Said> Machines::exchange(const Said& said, const Announcement& call,
                                               std::chrono::milliseconds timeout) {
  std::vector<at::Tensor> in = {memory_of_gloo(sizeof(Said))};
  std::memcpy(in[0].mutable_data_ptr(), &said, sizeof(said));
  std::vector<std::vector<at::Tensor>> out(1);
  for (size_t machine = 0; machine < settings_.names.size(); ++machine) out[0].push_back(memory_of_gloo(sizeof(Said)));
  c10d::AllgatherOptions options;
  options.timeout = timeout;
  wait_between(settings_.across->allgather(out, in, options), call);
  std::vector<Said> all(settings_.names.size());
  for (size_t machine = 0; machine < all.size(); ++machine)
    std::memcpy(&all[machine], out[0][machine].const_data_ptr(), sizeof(Said));
  return all;
}

// All ranks that wait for the silent machine fail at about the same time, and each asks all. A machine of which one
// rank answers is there.
std::string Machines::silent() const {
  const auto tried = [](const auto& body) {
    try {
      return body();
    } catch (const std::exception&) {
      return decltype(body())();
    }
  };
  std::vector<at::Tensor> byte = {at::zeros(1, at::kByte)};
  std::vector<Work> questions;  // kept until all is over
  std::vector<std::vector<Work>> answers(settings_.names.size());
  for (size_t machine = 0; machine < answers.size(); ++machine)
    for (int rank : settings_.ranks[machine]) {
      if (rank == settings_.all->getRank()) continue;
      questions.push_back(tried([&] { return settings_.all->send(byte, rank, kTag); }));
      answers[machine].push_back(tried([&] { return settings_.all->recv(byte, rank, kTag); }));
    }
  std::string silent;
  const Clock::time_point deadline = Clock::now() + kAnswer;
  for (size_t machine = 0; machine < answers.size(); ++machine) {
    bool answered = static_cast<int>(machine) == settings_.across->getRank();
    for (const Work& answer : answers[machine]) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
      answered =
          answered || (answer && tried([&] { return answer->wait(std::max(left, std::chrono::milliseconds(1))); }));
    }
    if (!answered) silent += (silent.empty() ? "" : ", ") + settings_.names[machine];
  }
  return silent.empty() ? "all machines answer" : "no answer from " + silent;
}

}  // namespace fastreduce
