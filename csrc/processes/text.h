// Text in an array of a fixed size: so processes tell each other the names of calls and what has failed.
#pragma once

#include <algorithm>
#include <array>
#include <string>

namespace fastreduce {

// As many bytes of the words as fit, and zeros behind them. A character of UTF-8 is not cut in two, which Python could
// not read: what Gloo says is not all ASCII, nor are names of files.
template <size_t N>
std::array<char, N> text_of(const std::string& words) {
  std::array<char, N> text{};
  size_t bytes = std::min(words.size(), N - 1);
  while (bytes > 0 && bytes < words.size() && (words[bytes] & 0xC0) == 0x80) --bytes;
  words.copy(text.data(), bytes);
  return text;
}

}  // namespace fastreduce
