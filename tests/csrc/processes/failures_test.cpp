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

// A thread for each rank, all of which have joined.
void with_ranks(const std::function<void(Group&, std::barrier<>&)>& does) {
  std::vector<std::string> names{"0", "1", "2"}, invitations(kRanks);
  std::barrier all_there(kRanks);
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < kRanks; ++rank)
    ranks.emplace_back([&, rank] {
      Group group(rank, names, 4096);
      invitations[rank] = group.invitation();
      all_there.arrive_and_wait();
      group.join(invitations);
      does(group, all_there);
      all_there.arrive_and_wait();
    });
}

// All ranks arrive at round 1. The others pass it, rank 0 fails as told, and then the slowest looks who has arrived.
// Returns what it raises in round 1, and in round 2.
std::pair<std::string, std::string> on_the_slowest(const Failure& failure) {
  std::pair<std::string, std::string> raised;
  with_ranks([&](Group& group, std::barrier<>& all_there) {
    group.begin(kTimeout);
    group.arrive(announcement());
    if (group.rank() != kSlowest) group.meet();
    all_there.arrive_and_wait();
    if (group.rank() == 0) {
      failure(group);
      group.leave();
    }
    all_there.arrive_and_wait();
    if (group.rank() == kSlowest) {
      raised.first = thrown_by([&] { group.meet(); });
      raised.second = thrown_by([&] { group.agree(announcement(), kTimeout); });
    }
  });
  return raised;
}

// Rank 0 waits for rank 1, which has not come yet, and rank 2 will not come any more.
std::string while_another_is_waited_for() {
  std::string raised;
  with_ranks([&](Group& group, std::barrier<>& all_there) {
    if (group.rank() == kSlowest) group.leave();
    all_there.arrive_and_wait();
    if (group.rank() == 0) raised = thrown_by([&] { group.agree(announcement(), kTimeout); });
    all_there.arrive_and_wait();
  });
  return raised;
}

// All have arrived. Rank 0 waits for rank 1, and that for rank 2, which does nothing.
std::string where_one_waits_for_another() {
  std::string raised;
  with_ranks([&](Group& group, std::barrier<>& all_there) {
    group.agree(announcement(), group.rank() == 0 ? std::chrono::seconds(1) : kTimeout);
    if (group.rank() == 0) raised = thrown_by([&] { group.wait_done(1, 1); });
    if (group.rank() == 1) thrown_by([&] { group.wait_done(2, 1); });
    all_there.arrive_and_wait();
  });
  return raised;
}

const auto kNowhere = [] { return std::string(); };

// Rank 0 waits for what another group does, and rank 1 leaves: in the last step when it has done it too, before that
// when all its instructions are done.
std::string while_another_leaves(bool last) {
  std::string raised;
  with_ranks([&](Group& group, std::barrier<>& all_there) {
    group.agree(announcement(), kTimeout);
    if (group.rank() == 1) {
      if (last)
        group.wait_outside(true, [](auto) { return true; }, kNowhere);
      else
        group.advance_done(1);
      group.leave();
    }
    all_there.arrive_and_wait();
    int looks = 0;
    if (group.rank() == 0)
      raised = thrown_by([&] { group.wait_outside(last, [&](auto) { return ++looks > 1; }, kNowhere); });
    all_there.arrive_and_wait();
  });
  return raised;
}

// What another group does fails on two ranks, and the third does not come back from it.
std::string where_another_group_fails() {
  std::string raised;
  with_ranks([&](Group& group, std::barrier<>& all_there) {
    group.agree(announcement(), kTimeout);
    const auto fails = [](auto) -> bool { throw std::runtime_error("out of reach"); };
    if (group.rank() != kSlowest) {
      const std::string words = thrown_by([&] { group.wait_outside(true, fails, [] { return ", says all"; }); });
      if (group.rank() == 0) raised = words;
    }
    all_there.arrive_and_wait();
  });
  return raised;
}

// Outside any call.
std::string what_is_known_of_one_that_left() {
  std::string known;
  with_ranks([&](Group& group, std::barrier<>& all_there) {
    if (group.rank() == 1) group.leave();
    all_there.arrive_and_wait();
    if (group.rank() == 0) known = group.lost_soon({2, 1});
    all_there.arrive_and_wait();
  });
  return known;
}

std::string remains_of_the_reason(const std::string& words) {
  const std::string raised = on_the_slowest([&](Group& group) { group.fail(words); }).first;
  return raised.substr(raised.find(" gave up: ") + 10);
}

// Words that are longer than their place in shared memory end with it, or with the last whole character before.
void long_words() {
  const std::string words(600, 'x');
  const std::string remains = remains_of_the_reason(words);
  if (remains != words.substr(0, 511)) fail("of a long reason remains: " + remains);
  for (const size_t ascii : {506, 507, 508, 509, 510, 511}) {  // a flag of four bytes behind so many
    const std::string whole = words.substr(0, ascii) + (ascii < 508 ? "\xF0\x9F\x8F\xB3" : "");
    const std::string of_utf8 = remains_of_the_reason(words.substr(0, ascii) + "\xF0\x9F\x8F\xB3 and more");
    if (of_utf8 != whole + std::string(ascii < 507 ? " " : "")) fail("of UTF-8 remains: " + of_utf8);
  }
  Announcement of_all;
  of_all.describe(words);
  if (of_all.text.data() != words.substr(0, 159))
    fail(std::string("of a long announcement remains: ") + of_all.text.data());
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
  check("one will not come, another is waited for", while_another_is_waited_for(), "rank 2 has left the group");
  check("one waits for another", where_one_waits_for_another(), "waiting for rank 1, which waits for rank 2: ");
  check("one leaves when the last step is done", while_another_leaves(true), "");
  check("one leaves before the last step", while_another_leaves(false), "rank 1 has left the group");
  check("another group fails", where_another_group_fails(),
        ", which ranks 2 have not finished, says all: out of reach");
  check("one has left", what_is_known_of_one_that_left(), "rank 1 has left the group");
  long_words();
  std::printf("%zu cases right\n", kCases.size() + 7);
}
