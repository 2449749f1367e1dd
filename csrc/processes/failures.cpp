// How a rank finds out that peers have failed, left, ended or are late, and how they find out the same of it.
#include <poll.h>
#include <unistd.h>

#include <sstream>
#include <thread>

#include "processes/front.h"

namespace fastreduce {
namespace {

// How long after a failure elsewhere its cause may become known: the files and connections of a process that is killed
// are closed before it counts as ended, and ranks reach one timeout at slightly different times (predicted).
constexpr std::chrono::seconds kBlame{1};

template <class Known, class Look>
void await_cause(const Known& known, const Look& look) {
  for (const Clock::time_point end = Clock::now() + kBlame; Clock::now() < end && !known();) {
    look();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace

std::string Group::trouble_with(int awaited) const {
  for (const std::string& trouble : {aborted(), failed_peer()})
    if (!trouble.empty()) return trouble;
  // If a peer that has not arrived is gone, the call cannot be finished, even if this rank waits for another one.
  for (int peer = 0; peer < size(); ++peer)
    if (peer != rank_ && (peer == awaited || !has_arrived(peer)))
      if (const std::string trouble = gone(peer); !trouble.empty() && (peer == awaited || !has_arrived(peer)))
        return trouble;
  return late(chain_from(awaited));
}

bool Group::has_arrived(int peer) const { return desk(peer).round.load(std::memory_order_seq_cst) >= round_; }

std::string Group::gone(int peer) const {
  const std::string how = lost(peer);
  if (how.empty()) return "";
  return call() + ": " + how + (has_left(peer) ? " (" + who_is_where() + ")" : "");
}

std::string Group::lost(int peer) const {
  if (has_left(peer)) return "rank " + names_[peer] + " has left the group";
  return has_ended(peer) ? "the process of rank " + names_[peer] + " has ended" : "";
}

std::string Group::no_sender(bool all) const {
  std::string last;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank_) continue;
    last = lost(peer);
    if (has_ended(peer) && !has_left(peer)) return last;
    all = all && !last.empty();
  }
  return all ? last : "";
}

std::string Group::lost_soon(const std::vector<int>& peers) const {
  std::string how;
  const auto known = [&] { return peers.empty() || !how.empty() || is_aborted(); };
  await_cause(known, [&] {
    for (int peer : peers)
      if (how.empty()) how = lost(peer);
  });
  return how;
}

bool Group::has_left(int peer) const { return front(peer).state.load(std::memory_order_acquire) == State::left; }

bool Group::has_ended(int peer) const {
  pollfd ended{alive_[peer].get(), POLLIN, 0};
  return poll(&ended, 1, 0) > 0;
}

int Group::first_ended_soon() const {
  int ended = -1;
  await_cause([&] { return ended >= 0; }, [&] {
    for (int peer = size() - 1; peer >= 0; --peer)
      if (has_ended(peer)) ended = peer;
  });
  return ended;
}

// Whether a peer whose part is still needed has left or ended.
std::string Group::missing(bool last) const {
  const auto needed = [&](int peer) { return !last || desk(peer).done.load(std::memory_order_seq_cst) == 0; };
  for (int peer = 0; peer < size(); ++peer)
    if (peer != rank_ && needed(peer))
      if (const std::string trouble = gone(peer); !trouble.empty() && needed(peer)) return trouble;
  return "";
}

// The ranks for which the other group has not done its work.
std::string Group::unfinished() const {
  std::string ranks;
  for (int peer = 0; peer < size(); ++peer)
    if (desk(peer).done.load(std::memory_order_seq_cst) == 0) ranks += (ranks.empty() ? "" : ", ") + names_[peer];
  return ranks;
}

void Group::wait_outside(bool last, const std::function<bool(std::chrono::milliseconds)>& ends_within,
                         const std::function<std::string()>& elsewhere) {
  const auto look = [&](const std::string& problem) {
    for (const std::string& trouble : {aborted(), failed_peer(), missing(last)})
      if (!trouble.empty()) raise(trouble + problem);
  };
  std::string problem;
  try {
    while (!ends_within(kLook)) look("");
  } catch (const GroupError&) {
    throw;
  } catch (const std::exception& error) {
    problem = std::string(": ") + error.what();
  }
  if (last) advance_done(1);
  if (problem.empty()) return;
  await_cause([&] { return last && unfinished().empty(); }, [&] { look(problem); });
  const std::string ranks = last ? unfinished() : "";
  raise(call() + (ranks.empty() ? "" : ", which ranks " + ranks + " have not finished") + elsewhere() + problem);
}

// The awaited rank may itself wait for another one, which is the one that is stopped.
std::string Group::chain_from(int peer) const {
  std::string chain = "rank " + names_[peer];
  for (int links = 1; links < size(); ++links) {
    peer = front(peer).awaited.load(std::memory_order_relaxed);
    if (peer < 0 || peer >= size() || peer == rank_) break;
    chain += ", which waits for rank " + names_[peer];
  }
  return chain;
}

std::string Group::aborted() const { return aborted_.load(std::memory_order_relaxed) ? call() + " was aborted" : ""; }

// A peer that has failed in a later call has done its part of this one.
std::string Group::failed_peer() const {
  const std::string reason = given_up_since(round_);
  return reason.empty() ? "" : call() + ": " + reason;
}

std::string Group::given_up_since(uint64_t round) const {
  for (int peer = 0; peer < size(); ++peer)
    if (front(peer).state.load(std::memory_order_seq_cst) == State::failed && front(peer).failed_since <= round)
      return "rank " + names_[peer] + " gave up: " + front(peer).reason.data();
  return "";
}

std::string Group::late(const std::string& awaited) const {
  if (Clock::now() <= deadline_) return "";
  return call() + " reached its timeout of " + std::to_string(timeout_.count()) + " ms, waiting for " + awaited + ": " +
         who_is_where();
}

void Group::do_call(std::chrono::milliseconds timeout, const std::function<void()>& call) {
  const uint64_t before = round_;
  ++call_;
  try {
    call();
  } catch (const GroupError&) {
    throw;
  } catch (const std::exception& error) {
    if (round_ == before) begin(timeout);
    fail("rank " + name() + " raised: " + error.what());
    throw;
  }
}

void Group::raise(const std::string& what) {
  fail(what);
  throw GroupError(what);
}

void Group::abort(const std::string& reason) {
  aborted_.store(true, std::memory_order_relaxed);
  if (!reason.empty()) fail_since(0, reason);
}

void Group::fail_since(uint64_t round, const std::string& reason) {
  if (forked() || failed_.exchange(true)) return;
  Front& mine = front(rank_);
  mine.reason = text_of<sizeof(mine.reason)>(reason);
  mine.failed_since = round;
  mine.state.store(State::failed, std::memory_order_seq_cst);
  mine.bell.ring();
}

void Group::leave() {
  if (forked() || failed_) return;  // a failure says more
  front(rank_).state.store(State::left, std::memory_order_seq_cst);
  front(rank_).bell.ring();
}

bool Group::forked() const { return getpid() != pid_; }

std::string Group::call() const { return call(announced(rank_).text.data()); }

std::string Group::call(const std::string& text) const {
  return "call " + std::to_string(call_) + ", " + text + ", on rank " + names_[rank_];
}

std::string Group::who_is_where() const {
  std::ostringstream text;
  for (int peer = 0; peer < size(); ++peer)
    text << (peer ? ", " : "") << "rank " << names_[peer]
         << (last_desk(peer).round >= round_ ? " has arrived" : " has not arrived" + last_call(peer));
  return text.str();
}

std::string Group::last_call(int peer) const {
  const Desk& last = last_desk(peer);
  if (last.announcement.call == 0) return ", and has made no collective call yet";
  const std::string caller = last.caller.data();
  return ": its last collective call was " + std::to_string(last.announcement.call) + ", " +
         last.announcement.text.data() + (caller.empty() ? "" : ", at " + caller);
}

const Desk& Group::last_desk(int peer) const {
  const std::array<Desk, 2>& desks = front(peer).desks;
  const uint64_t odd = desks[1].round.load(std::memory_order_acquire);
  const uint64_t even = desks[0].round.load(std::memory_order_acquire);
  return desks[odd > even];
}

}  // namespace fastreduce
