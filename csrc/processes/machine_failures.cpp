// What machines tell each other when one of them gives up, and how they find out which one does not answer.
#include <cstring>

#include "processes/gloo.h"
#include "processes/machines.h"

namespace fastreduce {
namespace {

// How often a listener looks whether a call has ended that may end well (predicted).
constexpr std::chrono::milliseconds kCallGoesOn{20};

// The tags of messages: a question, its answer, and why a machine gives up.
constexpr int kTag = 0x66617374, kLastTag = kTag + 1;

template <class Body>
auto tried(const Body& body) {
  try {
    return body();
  } catch (const std::exception&) {
    return decltype(body())();
  }
}

// A wait of Gloo's that reaches its limit closes all connections of its group.
bool ends_until(const c10::intrusive_ptr<c10d::Work>& work, Clock::time_point deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
  return work && tried([&] { return work->wait(std::max(left, std::chrono::milliseconds(1))); });
}

}  // namespace

void Machines::give_up(const std::string& why) {
  // The first rank speaks for its machine; if it is gone, all others do.
  const bool first = group_.rank() == 0;
  if (group_.forked() || (!first && group_.lost(0).empty())) return;
  std::unique_lock lock(saying_);
  const bool asked = !first || asked_.exchange(true);
  if ((asked && others_know_) || gave_up_.exchange(true)) return;
  if (!asked) {
    at::Tensor got = memory_of_gloo(static_cast<int64_t>(settings_.names.size() * sizeof(Message)));
    last_word_ = tell_all({failure(why), {}}, got, kAnswer);
  }
  lock.unlock();
  if (!others_know_) tell_listeners({failure(why), !asked});
}

// In a later part of a call other machines wait in Gloo, which tells a rank nothing of a peer that does not come, and
// of one that has ended only where no message to or from it was under way (gloo/transport/tcp/pair.cc,
// signalException).
void Machines::listen() {
  heard_ = {memory_of_gloo(sizeof(LastMessage))};
  listening_ = settings_.across->recvAnysource(heard_, kLastTag);
  listener_ = std::thread([this] {
    const bool ended = tried([this] { return listening_->wait(kLongestTimeout); });
    if (!ended) return;
    others_know_ = true;
    LastMessage last;
    std::memcpy(&last, heard_[0].const_data_ptr(), sizeof(LastMessage));
    while (last.after_this_call && asked_ && !ends_) std::this_thread::sleep_for(kCallGoesOn);
    group_.give_up("on machine " + settings_.names[listening_->sourceRank()] + ": " + last.said.failure.data());
  });
}

// Returns when the listeners have the message, so that this process may end.
void Machines::tell_listeners(const LastMessage& last) {
  Tensors bytes = {in_memory_of_gloo(last)};
  std::vector<Work> told;
  for (int machine = 0; machine < settings_.across->getSize(); ++machine)
    if (machine != settings_.across->getRank())
      told.push_back(tried([&] { return settings_.across->send(bytes, machine, kLastTag); }));
  const Clock::time_point deadline = Clock::now() + kAnswer;
  for (const Work& one : told) ends_until(one, deadline);
}

Machines::~Machines() {
  if (!listener_.joinable()) return;
  ends_ = true;
  listening_->abort();
  listener_.join();
}

// All ranks that wait for the silent machine fail at about the same time, and each asks all. A machine of which one
// rank answers is there.
std::string Machines::silent() {
  others_know_ = true;
  Tensors byte = {at::zeros(1, at::kByte)};
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
    for (const Work& answer : answers[machine]) answered = answered || ends_until(answer, deadline);
    if (!answered) silent += (silent.empty() ? "" : ", ") + settings_.names[machine];
  }
  return silent.empty() ? "by now all machines answer" : "no answer from " + silent;
}

}  // namespace fastreduce
