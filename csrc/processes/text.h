// Words where processes tell each other what they are, and how many bytes these may have.
#pragma once

#include <algorithm>
#include <array>
#include <string>

namespace fastreduce {

// As many as fit, and zeros; not half a character of UTF-8, which Python could not read: Gloo's words are not all
// ASCII, nor are names of files.
template <size_t N>
std::array<char, N> text_of(const std::string& words) {
  std::array<char, N> text{};
  size_t bytes = std::min(words.size(), N - 1);
  while (bytes > 0 && bytes < words.size() && (words[bytes] & 0xC0) == 0x80) --bytes;
  words.copy(text.data(), bytes);
  return text;
}

}  // namespace fastreduce
