// Who sleeps at a bell, and what wakes them. Prints "<n> cases right", or what was wrong, and exits with 1.
#include "processes/bell.h"

#include <thread>
#include <vector>

#include "../programs.h"

namespace {

using namespace fastreduce;
using engines_test::fail;
using Clock = std::chrono::steady_clock;

// Whoever sleeps so long was not woken. Both are seconds and a part of one, which the kernel is told apart.
constexpr std::chrono::milliseconds kLong{5'500}, kShort{1'900};

Clock::duration slept(Bell& bell, const std::atomic<bool>& moved, std::chrono::milliseconds most) {
  const Clock::time_point begin = Clock::now();
  bell.sleep([&] { return moved.load(); }, most);
  return Clock::now() - begin;
}

void all_who_sleep_are_woken() {
  Bell bell;
  std::atomic<bool> moved{false};
  std::vector<std::jthread> sleepers;
  for (int i = 0; i < 3; ++i)
    sleepers.emplace_back([&] {
      if (slept(bell, moved, kLong) >= kLong) fail("the bell was rung, and a sleeper slept on");
    });
  while (bell.sleepers.load() < 3) std::this_thread::yield();
  // Most likely they sleep now: the control needs it.
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  moved = true;
  bell.ring();
}

// Between its last look and its sleep nobody can be woken.
void who_is_about_to_sleep_does_not() {
  Bell bell;
  const Clock::time_point begin = Clock::now();
  const auto rings_at_the_last_look = [&] {
    bell.ring();
    return false;
  };
  bell.sleep(rings_at_the_last_look, kLong);
  if (Clock::now() - begin >= kLong) fail("the bell was rung at the last look, and a sleeper slept on");
}

void who_is_not_woken_sleeps_as_long_as_it_said() {
  Bell bell;
  const std::atomic<bool> moved{false};
  if (slept(bell, moved, kShort) < kShort) fail("nobody rang, and the sleep was too short");
}

void nobody_sleeps_for_what_has_happened() {
  Bell bell;
  const std::atomic<bool> moved{true};
  bell.ring();
  if (slept(bell, moved, kLong) >= kLong) fail("slept for what had happened before");
  if (bell.rings != 0) fail("a bell rang at which nobody slept");
  if (bell.sleepers != 0) fail("a sleeper is counted that has gone");
}

}  // namespace

int main() {
  all_who_sleep_are_woken();
  who_is_about_to_sleep_does_not();
  who_is_not_woken_sleeps_as_long_as_it_said();
  nobody_sleeps_for_what_has_happened();
  std::printf("4 cases right\n");
}
