// A regular expression out of a tokenizer file: where text is cut before byte pair encoding. PCRE2 does the matching.
#pragma once
#include <memory>
#include <string>
#include <string_view>

namespace riffle {

class SplitPattern {
 public:
  // pattern: as tokenizer files write it, in Oniguruma's Ruby syntax. The part of it that such files use is translated
  // to PCRE2's; what is left is refused (RIFFLE_UNSUPPORTED, RIFFLE_BAD_MODEL), naming file and field.
  SplitPattern(std::string_view pattern, const std::string& file, const std::string& field);
  // The text itself, without any meaning as an expression.
  static SplitPattern literal(std::string_view text, const std::string& file, const std::string& field);
  // The pattern as given; empty for literal().
  const std::string& text() const { return text_; }

  class Matches;

  // What one search needs beside the pattern; one for each thread. Must not outlive the pattern.
  class Scratch {
   public:
    explicit Scratch(const SplitPattern& pattern);
    Scratch(Scratch&&) noexcept;
    ~Scratch();

   private:
    friend class Matches;
    struct State;
    std::unique_ptr<State> state_;
  };

  // All matches of the pattern in text, which must be UTF-8, from left to right; an empty match right after a match is
  // left out. Throws RIFFLE_UNSUPPORTED where a pattern that riffle does not know takes too long, and
  // RIFFLE_OUT_OF_MEMORY.
  class Matches {
   public:
    Matches(Scratch& scratch, std::string_view text);
    bool next(size_t* begin, size_t* end);

   private:
    int search(size_t from) const;
    Scratch* scratch_;
    std::string_view text_;
    size_t from_ = 0;
    size_t last_end_ = std::string_view::npos;
  };

 private:
  struct Code;
  explicit SplitPattern(std::shared_ptr<const Code> code) : code_(std::move(code)) {}
  static std::shared_ptr<const Code> compile(const std::string& translated, bool known, const std::string& file,
                                             const std::string& field);
  std::shared_ptr<const Code> code_;
  std::string text_;
};

// Patterns of model families, as their tokenizer files write them. Matching these takes time in proportion to the text,
// whatever the text: they are compiled to machine code.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kDigitPattern = R"(\p{N})";
inline constexpr std::string_view kDigitsPattern = R"(\p{N}+)";

}  // namespace riffle
