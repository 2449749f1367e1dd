// Which calls a failure reaches, with threads as ranks, under sanitizers. Prints "<n> cases right", or what was wrong,
// and exits with 1.
#include "processes/group.h"

#include <barrier>
#include <functional>
#include <optional>
#include <thread>

#include "../programs.h"

namespace {

using namespace fastreduce;
using engines_test::fail;

constexpr int kRanks = 3, kSlowest = 2;
constexpr std::chrono::seconds kTimeout{10};

Announcement announcement() {
  Announcement of_all;
  of_all.describe("a call");
  return of_all;
}

std::string thrown_by(const std::function<void()>& call) {
  try {
    call();
  } catch (const GroupError& error) {
    return error.what();
  }
  return "";
}

using Failure = std::function<void(Group&)>;

// All ranks arrive at round 1. The others pass it, rank 0 fails as told, and then the slowest looks who has arrived.
// Returns what it raises in round 1, and in round 2.
std::pair<std::string, std::string> on_the_slowest(const Failure& failure) {
  std::vector<std::string> names{"0", "1", "2"}, invitations(kRanks), raised(2);
  std::barrier all_there(kRanks);
  {
    std::vector<std::jthread> ranks;
    for (int rank = 0; rank < kRanks; ++rank)
      ranks.emplace_back([&, rank] {
        Group group(rank, names, 4096);
        invitations[rank] = group.invitation();
        all_there.arrive_and_wait();
        group.join(invitations);
        group.begin(kTimeout);
        group.arrive(announcement());
        if (rank != kSlowest) group.meet();
        all_there.arrive_and_wait();
        if (rank == 0) {
          failure(group);
          group.leave();
        }
        all_there.arrive_and_wait();
        if (rank == kSlowest) {
          raised[0] = thrown_by([&] { group.meet(); });
          raised[1] = thrown_by([&] { group.agree(announcement(), kTimeout); });
        }
        all_there.arrive_and_wait();
      });
  }
  return {raised[0], raised[1]};
}

struct Case {
  std::string what;
  Failure failure;
  std::string first, second;  // what the slowest's errors contain; it raises none where this is empty
};

const std::vector<Case> kCases = {
    {"it leaves", [](Group&) {}, "", "rank 0 has left the group"},
    {"it fails in the same call", [](Group& group) { group.fail("out of paper"); }, "rank 0 gave up: out of paper",
     "this group cannot be used any more"},
    {"it fails in the next call",
     [](Group& group) {
  group.begin(kTimeout);
  group.fail("out of ink");
}, "", "rank 0 gave up: out of ink"},
    {"it aborts", [](Group& group) { group.abort("a thread called abort"); }, "rank 0 gave up: a thread called abort",
     "this group cannot be used any more"},
    {"it fails twice",
     [](Group& group) {
  group.fail("the first reason");
  group.fail("the second");
}, "rank 0 gave up: the first reason", "this group cannot be used any more"},
};

void check(const std::string& where, const std::string& found, const std::string& wanted) {
  if (wanted.empty() ? !found.empty() : found.find(wanted) == std::string::npos)
    fail(where + ": raised '" + found + "', want '" + wanted + "'");
}

}  // namespace

int main() {
  for (const Case& one : kCases) {
    const auto [first, second] = on_the_slowest(one.failure);
    check(one.what + ", the call that all have arrived at", first, one.first);
    check(one.what + ", the next call", second, one.second);
  }
  std::printf("%zu cases right\n", kCases.size());
}
