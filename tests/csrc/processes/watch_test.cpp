// Who is woken by the watch, under sanitizers. Prints "<n> cases right", or what was wrong, and exits with 1.
#include "processes/watch.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <thread>
#include <vector>

#include "../programs.h"

namespace {

using namespace fastreduce;
using engines_test::fail;

// As Gloo's: an end of a wait wakes one who waits, and is then forgotten.
class Wait {
 public:
  void end() {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    changed_.notify_one();
  }
  bool ends_within(std::chrono::milliseconds limit) {
    std::unique_lock lock(mutex_);
    const bool ended = changed_.wait_for(lock, limit, [this] { return ended_; });
    ended_ = false;
    return ended;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
};

constexpr std::chrono::seconds kLong{10};
constexpr std::chrono::milliseconds kShort{100};

void a_wait_in_vain_ends(Watch& watch) {
  Wait wait;
  std::atomic<bool> gone{false};
  const Watch::Waiter waiter(watch, [&] { return gone ? "the peer is gone" : ""; }, [&] { wait.end(); });
  if (wait.ends_within(kShort)) fail("a wait was ended without a reason");
  gone = true;
  if (!wait.ends_within(kLong) || waiter.trouble() != "the peer is gone") fail("a wait in vain went on");
}

void all_who_wait_for_one_message_are_woken(Watch& watch) {
  Wait wait;
  std::vector<std::jthread> threads;
  for (int i = 0; i < 3; ++i)
    threads.emplace_back([&] {
      const Watch::Waiter waiter(watch, [] { return "trouble"; }, [&] { wait.end(); });
      if (!wait.ends_within(kLong)) fail("one of three who wait was not woken");
    });
}

void the_first_words_stay(Watch& watch) {
  Wait wait;
  int looks = 0;
  const Watch::Waiter waiter(watch, [&] { return "look " + std::to_string(++looks); }, [&] { wait.end(); });
  for (int i = 0; i < 2; ++i)
    if (!wait.ends_within(kLong)) fail("a wait was ended once and not again");
  if (waiter.trouble() != "look 1") fail("the words have changed: " + waiter.trouble());
}

// Nobody looks for one who does not wait any more: what it looked at may be gone.
void short_waits(Watch& watch) {
  for (int i = 0; i < 20'000; ++i) {
    auto gone = std::make_unique<bool>(false);
    const Watch::Waiter waiter(watch, [&] { return *gone ? "gone" : ""; }, [] {});
  }
}

void after_a_pause(Watch& watch) {
  std::this_thread::sleep_for(kShort);  // it sleeps by then
  a_wait_in_vain_ends(watch);
}

}  // namespace

int main() {
  // The pause comes early: on a busy machine the watch sleeps between any two cases.
  const auto cases = {a_wait_in_vain_ends, after_a_pause, all_who_wait_for_one_message_are_woken, the_first_words_stay,
                      short_waits};
  {
    Watch unused;
    Watch watch;
    for (const auto& one : cases) one(watch);
  }
  std::printf("%zu cases right\n", cases.size());
}
