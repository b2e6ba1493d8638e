// A regular expression from a tokenizer file, which tells where to split text before byte pair
// encoding. PCRE2 does the matching.
#pragma once
#include <memory>
#include <string>
#include <string_view>

namespace riffle {

class SplitPattern {
 public:
  // pattern: as tokenizer files write it, in Oniguruma's Ruby syntax. The syntax that such files
  // use is translated to PCRE2's; other syntax is refused (RIFFLE_UNSUPPORTED, RIFFLE_BAD_MODEL),
  // naming file and field.
  SplitPattern(std::string_view pattern, const std::string& file, const std::string& field);
  // Makes a pattern that matches only this text.
  static SplitPattern literal(std::string_view text, const std::string& file,
                              const std::string& field);
  // Returns the pattern as given; empty for literal().
  const std::string& text() const { return text_; }

  class Matches;

  // Memory of one search, one for each thread. Must not outlive the pattern.
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

  // All matches of the pattern in text, from left to right; an empty match right after a match is
  // left out. Throws RIFFLE_UNSUPPORTED if a pattern that riffle does not know takes too long, and
  // RIFFLE_OUT_OF_MEMORY. Requires: text is UTF-8.
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
  static std::shared_ptr<const Code> compile(const std::string& translated, bool known,
                                             const std::string& file, const std::string& field);
  std::shared_ptr<const Code> code_;
  std::string text_;
};

// Patterns of model families, as their tokenizer files write them. Matching these takes time in
// proportion to the text, whatever the text: they are compiled to machine code.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kQwen35Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kSeedPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kExaoneMoePattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+)";
// kCasedPattern: GPT-4o and Llama 4. kTekkenPattern: Mistral Nemo.
inline constexpr std::string_view kCasedPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kTekkenPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|)"
    R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kDigitPattern = R"(\p{N})";
inline constexpr std::string_view kDigitsPattern = R"(\p{N}+)";
// Steps of chains: DeepSeek LLM's and Coder's, and those of llama.cpp's "default".
inline constexpr std::string_view kLineEndPattern = R"([\r\n])";
inline constexpr std::string_view kCasedLettersPattern =
    R"(\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿ)"
    R"(ᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨ)"
    R"(K-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲)"
    R"(𐳀-𐳲𑢠-𑣟𞤀-𞥃]+)";
inline constexpr std::string_view kWidePunctuationPattern = R"(\s?[!-/:-~！-／：-～‘-‟)"
                                                            "\u3000-\u3002]+";
inline constexpr std::string_view kTrailingSpacePattern = R"(\s+$)";
inline constexpr std::string_view kHanHangulPattern = R"([一-龥ࠀ-一가-퟿]+)";
inline constexpr std::string_view kSpacedLettersPattern = R"(\s?\p{L}+)";
inline constexpr std::string_view kSpacedPunctuationPattern = R"(\s?\p{P}+)";
inline constexpr std::string_view kPunctuationPattern = R"([\p{P}\$\+<=>\^~\|]+)";
inline constexpr std::string_view kThreeDigitsPattern = "[0-9][0-9][0-9]";
// Steps of Hunyuan's and Laguna's chains.
inline constexpr std::string_view kUpToThreeDigitsPattern = R"(\p{N}{1,3})";
inline constexpr std::string_view kHanKanaPattern = "[一-龥\u3040-ゟ゠-ヿ]+";
inline constexpr std::string_view kHunyuanPattern =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|)"
    R"( ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kLinesPattern = R"([^\n]+|[\n]+)";
// Tiny Aya and Cohere's mixtures: groups of three digits, from the last one. kCasedPattern follows.
inline constexpr std::string_view kDigitGroupsPattern = R"(\d{1,3}(?=(?:\d{3})*\b))";

}  // namespace riffle
