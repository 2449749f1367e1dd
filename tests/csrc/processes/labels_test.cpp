// labels_test CALLS: whether Gloo is ever given two calls that differ, with threads as ranks, so many that come at the
// same time. Prints "<n> cases right", or what was wrong, and exits with 1.
#include "processes/labels.h"

#include <array>
#include <atomic>
#include <barrier>
#include <thread>

#include "../programs.h"
#include "processes/group.h"

namespace {

using namespace fastreduce;
using engines_test::fail;

// Of one message: how many of its two calls were given to Gloo, and how many raised.
struct Outcome {
  std::atomic<int> given{0}, raised{0};
};

// Rank 0 sends and rank 1 receives, both at about the same time, each message with a tag of its own; every other one
// does not fit.
void both_at_once(Group& group, std::atomic<int>& arrived, std::vector<Outcome>& outcomes) {
  const int calls = static_cast<int>(outcomes.size());
  Labels labels(group);
  const bool sends = group.rank() == 0;
  for (int i = 0; i < calls; ++i) {
    const std::string words = "Float [" + std::to_string(i % 2 && sends ? i + 1 : i) + "]";
    // A barrier would wake one after the other.
    for (++arrived; arrived < 2 * (i + 1);) std::this_thread::yield();
    try {
      labels.hand_over({sends, 1 - group.rank(), false, i, words}, [&] { ++outcomes[i].given; });
    } catch (const GroupError& error) {
      ++outcomes[i].raised;
      const std::string wanted = "rank 0 sends Float [" + std::to_string(i + 1) +
                                 "] to rank 1, which receives Float [" + std::to_string(i) + "], tag " +
                                 std::to_string(i) + "; want";
      if (!std::string(error.what()).starts_with(wanted)) fail("raised " + std::string(error.what()));
    }
  }
}

void check(const std::vector<Outcome>& outcomes) {
  for (size_t i = 0; i < outcomes.size(); ++i) {
    const int given = outcomes[i].given, raised = outcomes[i].raised;
    if (i % 2 == 0 && given < 2) fail("of two calls that fit, one raised");
    if (i % 2 && given == 2) fail("two calls that do not fit were both given to Gloo");
    if (given + raised != 2) fail("a call was lost");
  }
}

// A slot that is written all the time: what is read is one label, not parts of two.
void torn_labels(int reads) {
  LabelSlot slot;
  std::atomic<bool> ended{false};
  const std::jthread writer([&] {
    for (uint64_t i = 1; !ended; ++i) {
      Label label{i, i, static_cast<int32_t>(i), static_cast<int32_t>(i)};
      label.words.fill(static_cast<char>(i));
      slot.write(label);
    }
  });
  for (int read = 0; read < reads;) {
    const std::optional<Label> label = slot.read();
    if (!label) continue;
    ++read;
    const auto i = static_cast<char>(label->number);
    bool whole = label->fingerprint == label->number && label->tag == static_cast<int32_t>(label->number);
    for (const char c : label->words) whole = whole && c == i;
    if (!whole) {
      ended = true;
      fail("a label was read that nobody has written");
    }
  }
  ended = true;
}

void with_ranks(int size, const std::function<void(Group&, std::barrier<>&)>& does) {
  std::vector<std::string> names, invitations(size);
  for (int rank = 0; rank < size; ++rank) names.push_back(std::to_string(rank));
  std::barrier all(size);
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < size; ++rank)
    ranks.emplace_back([&, rank] {
      Group group(rank, names, 4096);
      invitations[rank] = group.invitation();
      all.arrive_and_wait();
      group.join(invitations);
      does(group, all);
      all.arrive_and_wait();
    });
}

// What one rank after the other calls; whether the last call is given to Gloo.
struct Call {
  int rank;
  bool sends;
  std::optional<int> peer;
  int tag;
  std::string words;
};

bool last_is_given(const std::vector<Call>& calls) {
  bool given = false;
  with_ranks(3, [&](Group& group, std::barrier<>& all) {
    Labels labels(group);
    for (const Call& call : calls) {
      if (call.rank == group.rank()) {
        given = false;
        try {
          labels.hand_over({call.sends, call.peer, !call.peer, call.tag, call.words}, [&] { given = true; });
        } catch (const GroupError&) {
        }
      }
      all.arrive_and_wait();
    }
  });
  return given;
}

std::vector<Call> many(int count) {
  std::vector<Call> calls(count, {0, true, 1, 0, "Float [1]"});
  calls.push_back({1, false, 0, 0, "Float [2]"});
  return calls;
}

constexpr std::optional<int> kAny;

const std::vector<std::tuple<std::string, std::vector<Call>, bool>> kCases = {
    {"the same", {{0, true, 1, 0, "a"}, {1, false, 0, 0, "a"}}, true},
    {"the sender is first", {{0, true, 1, 0, "a"}, {1, false, 0, 0, "b"}}, false},
    {"the receiver is first", {{1, false, 0, 0, "a"}, {0, true, 1, 0, "b"}}, false},
    {"words that are cut",
     {{0, true, 1, 0, std::string(99, 'x') + "a"}, {1, false, 0, 0, std::string(99, 'x') + "b"}},
     false},
    {"nobody has sent", {{1, false, 0, 0, "b"}}, true},
    {"another tag", {{0, true, 1, 0, "a"}, {1, false, 0, 1, "b"}}, true},
    {"another receiver", {{0, true, 1, 0, "a"}, {2, false, 0, 0, "b"}}, true},
    {"both send", {{0, true, 1, 0, "a"}, {1, true, 0, 0, "b"}}, true},
    {"the second", {{0, true, 1, 0, "a"}, {0, true, 1, 0, "b"}, {1, false, 0, 0, "a"}, {1, false, 0, 0, "b"}}, true},
    {"the second differs",
     {{0, true, 1, 0, "a"}, {0, true, 1, 0, "b"}, {1, false, 0, 0, "a"}, {1, false, 0, 0, "a"}},
     false},
    {"of any rank", {{0, true, 1, 0, "a"}, {1, false, kAny, 0, "b"}}, true},
    {"after one of any rank", {{0, true, 1, 0, "a"}, {1, false, kAny, 0, "a"}, {1, false, 0, 0, "b"}}, true},
    {"another tag after one of any rank",
     {{0, true, 1, 1, "a"}, {1, false, kAny, 0, "a"}, {1, false, 0, 1, "b"}},
     false},
    {"as many as are kept wait", many(static_cast<int>(LabelTables::kSlots)), false},
    {"more wait than are kept", many(static_cast<int>(LabelTables::kSlots) + 1), true},
};

}  // namespace

int main(int, char** argv) {
  const int count = std::stoi(argv[1]);
  for (const auto& [what, calls, given] : kCases)
    if (last_is_given(calls) != given) fail(what + ": the last call was " + (given ? "not " : "") + "given to Gloo");
  torn_labels(count);
  std::vector<Outcome> outcomes(count);
  std::atomic<int> arrived{0};
  with_ranks(2, [&](Group& group, std::barrier<>&) { both_at_once(group, arrived, outcomes); });
  check(outcomes);
  std::printf("%zu cases right\n", kCases.size() + 2);
}
