// Tokens that are spelled out in text and read as a whole.
#pragma once
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/tokenizer.h"

namespace riffle {

// Tells whether programs must see a control token in an answer: those around Gemma 4's reasoning
// and tool calls. GGUF files by llama.cpp's converter mark them as user-defined.
inline bool is_part_of_answers(std::string_view text) {
  constexpr std::string_view kNames[] = {"<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>",
                                         "<|\"|>"};
  return std::ranges::find(kNames, text) != std::end(kNames);
}

// Finds which of some spellings a text begins with.
class Spellings {
 public:
  using Entry = std::pair<std::string, int32_t>;
  void add(std::string text, int32_t id) { entries_.emplace_back(std::move(text), id); }
  void sort();  // after the last add()
  bool empty() const { return entries_.empty(); }
  // Returns the longest spelling that text begins with, or nullptr.
  const Entry* longest_at(std::string_view text) const;
  // Returns the id with this spelling, or -1.
  int32_t id_of(std::string_view text) const;
  const std::vector<Entry>& entries() const { return entries_; }

 private:
  std::vector<Entry> entries_;
  bool first_bytes_[256] = {};
};

// Walks through spans of a text, which are in order and do not overlap, with positions that only
// grow.
class SpanWalk {
 public:
  explicit SpanWalk(std::span<const TextSpan> spans) : spans_(spans) {}
  // Tells whether the bytes from begin to end lie in one span.
  bool holds(size_t begin, size_t end) {
    while (!spans_.empty() && spans_[0].end <= begin) spans_ = spans_.subspan(1);
    return !spans_.empty() && spans_[0].begin <= begin && end <= spans_[0].end;
  }
  // Returns the first border of a span after begin (after holds(begin, ...)); end if none comes
  // before it.
  size_t border(size_t begin, size_t end) const {
    if (spans_.empty()) return end;
    return std::min(end, spans_[0].begin > begin ? spans_[0].begin : spans_[0].end);
  }

 private:
  std::span<const TextSpan> spans_;
};

// An entry of added_tokens in tokenizer.json.
struct AddedToken {
  int32_t id = -1;
  std::string text;
  bool special = false;      // a control token: plain text unless control tokens are asked for
  bool single_word = false;  // only where no letter, digit or the like touches it
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // takes the white space after it
  bool normalized = false;   // looked for in normalised text, itself normalised
};

// Cuts text at such tokens, the leftmost and of those the longest first, as Hugging Face's
// tokenizers do.
class AddedTokens {
 public:
  void add(const AddedToken& token,
           std::string spelling);  // spelling: the text to look for
  void sort() { spellings_.sort(); }
  bool empty() const { return tokens_.empty(); }
  struct Part {
    int32_t id;  // -1: text between tokens
    size_t begin, end;
  };
  // Finds control tokens only inside the spans `special`; elsewhere they are text (but no other
  // token is found inside them).
  void cut(std::string_view text, std::span<const TextSpan> special,
           std::vector<Part>* parts) const;

 private:
  Spellings spellings_;  // ids are indices in tokens_
  std::vector<AddedToken> tokens_;
};

}  // namespace riffle
