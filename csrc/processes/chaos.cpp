#include "processes/chaos.h"

#include <c10/util/Exception.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <sstream>
#include <thread>

namespace fastreduce {
namespace {

constexpr const char* kVariable = "FASTREDUCE_CHAOS";
enum Event : size_t { delay, stop, fail_call, kill_process, none };
constexpr std::array<const char*, 4> kNames{"delay", "stop", "fail", "kill"};

// The shares if only a seed is given: so small that some hundred calls go well.
constexpr Chaos::Shares kUsual{0.01, 0.001, 0.001, 0.001};
constexpr double kLongestDelayS = 0.2;

template <class Number>
bool read(std::string_view text, Number& number) {
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && rest == end;
}

bool read_share(const std::string& text, Chaos::Shares& shares) {
  const size_t sign = std::min(text.find('='), text.size());
  const auto name = std::find(kNames.begin(), kNames.end(), text.substr(0, sign));
  if (sign == text.size() || name == kNames.end()) return false;
  double& share = shares[name - kNames.begin()];
  return read(std::string_view(text).substr(sign + 1), share) && share >= 0 && share <= 1;
}

bool read_shares(const std::string& text, Chaos::Shares& shares) {
  std::istringstream list(text);
  for (std::string part; std::getline(list, part, ',');)
    if (!read_share(part, shares)) return false;
  return !text.empty() && std::accumulate(shares.begin(), shares.end(), 0.0) <= 1;
}

// A job that is started again must not end at the same call again.
uint32_t restarts() {
  const char* count = std::getenv("TORCHELASTIC_RESTART_COUNT");
  return count ? static_cast<uint32_t>(std::strtoul(count, nullptr, 10)) : 0;
}

}  // namespace

std::unique_ptr<Chaos> Chaos::of_environment() {
  const char* found = std::getenv(kVariable);
  if (!found || !*found) return nullptr;
  const std::string text(found);
  const size_t colon = std::min(text.find(':'), text.size());
  uint64_t seed = 0;
  Shares shares = colon < text.size() ? Shares{} : kUsual;
  const bool readable = read(std::string_view(text).substr(0, colon), seed) &&
                        (colon == text.size() || read_shares(text.substr(colon + 1), shares));
  TORCH_CHECK_VALUE(readable, kVariable, " is '", text,
                    "'; want a seed, and what shall happen to how large a part of the calls, such as "
                    "7:delay=0.01,stop=0.001,fail=0.001,kill=0.001, or the seed alone, which stands for these");
  return std::unique_ptr<Chaos>(new Chaos(seed, shares));
}

std::mt19937_64 Chaos::random(const std::string& rank, uint64_t call) const {
  std::vector<uint32_t> words{static_cast<uint32_t>(seed_), static_cast<uint32_t>(seed_ >> 32), restarts(),
                              static_cast<uint32_t>(call), static_cast<uint32_t>(call >> 32)};
  words.insert(words.end(), rank.begin(), rank.end());
  std::seed_seq sequence(words.begin(), words.end());
  return std::mt19937_64(sequence);
}

std::function<void()> Chaos::around(std::function<void()> call, Group& group, std::chrono::milliseconds timeout) const {
  static std::atomic<uint64_t> calls{0};  // of all groups of this process
  const uint64_t number = ++calls;
  std::mt19937_64 draw = random(group.name(), number);
  std::uniform_real_distribution<double> part;
  double left = part(draw);
  size_t event = 0;
  while (event < none && left >= shares_[event]) left -= shares_[event++];
  if (event == none) return call;
  const std::chrono::duration<double> slept(part(draw) * kLongestDelayS);
  return [=, &group, call = std::move(call)] {
    if (event == delay) {
      std::this_thread::sleep_for(slept);
      return call();
    }
    std::fprintf(stderr, "%s: %s at call %lu of the process of rank %s\n", kVariable, kNames[event], number,
                 group.name().c_str());
    if (event == fail_call) {
      group.begin(timeout);  // so that this call fails, and not the one before
      const std::string what = "rank " + group.name() + " was made to fail by " + kVariable;
      group.fail(what);
      throw GroupError(what);
    }
    kill(getpid(), event == stop ? SIGSTOP : SIGKILL);
    call();
  };
}

}  // namespace fastreduce
