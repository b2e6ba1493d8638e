#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <utility>

#include "import/gguf_vocab.h"
#include "text/sentencepiece_model.h"
#include "util/checked.h"

namespace riffle {

namespace {

constexpr size_t kMaxAddedBytes = 1 << 10;

// A family's way of splitting text. pre: its name in GGUF files (tokenizer.ggml.pre). patterns:
// applied one after the other, each to the rest that the previous one left, as in the family's
// tokenizer.json. "default" and the names after it are as in llama.cpp (src/llama-vocab.cpp), which
// uses "default" and warns if a file names no family.
struct Family {
  std::string_view pre;
  bool nfc;
  std::initializer_list<std::string_view> patterns;
  bool ignore_merges, add_bos;
};
constexpr std::initializer_list<std::string_view> kLlama3 = {kLlama3Pattern},
                                                  kQwen2 = {kQwen2Pattern},
                                                  kQwen35 = {kQwen35Pattern},
                                                  kSmolLm = {kDigitPattern, kGpt2Pattern},
                                                  kGpt2 = {kGpt2Pattern}, kCased = {kCasedPattern},
                                                  kTekken = {kTekkenPattern},
                                                  kSeed = {kSeedPattern},
                                                  kExaoneMoe = {kExaoneMoePattern};
constexpr std::initializer_list<std::string_view> kDeepSeekLlm = {
    kLineEndPattern,       kCasedLettersPattern, kWidePunctuationPattern,
    kTrailingSpacePattern, kHanHangulPattern,    kDigitPattern};
constexpr std::initializer_list<std::string_view> kDeepSeekCoder = {
    kLineEndPattern, kSpacedLettersPattern, kSpacedPunctuationPattern, kHanHangulPattern,
    kDigitPattern};
constexpr std::initializer_list<std::string_view> kHunyuan = {kUpToThreeDigitsPattern,
                                                              kHanKanaPattern, kHunyuanPattern},
                                                  kLaguna = {kLinesPattern, kQwen2Pattern},
                                                  kAya = {kDigitGroupsPattern, kCasedPattern};
constexpr std::initializer_list<std::string_view> kDefault = {kPunctuationPattern, kGpt2Pattern,
                                                              kDigitsPattern, kThreeDigitsPattern};
constexpr Family kFamilies[] = {
    {"llama-bpe", false, kLlama3, true, true},
    {"llama3", false, kLlama3, true, true},
    {"llama-v3", false, kLlama3, true, true},
    {"lfm2", false, kLlama3, true, true},
    {"pixtral", false, kLlama3, true, true},  // Nemotron 3
    {"qwen2", true, kQwen2, false, false},
    {"qwen35", true, kQwen35, false, false},
    {"deepseek-r1-qwen", true, kQwen2, false, false},
    {"smollm", false, kSmolLm, false, false},
    {"gpt-2", false, kGpt2, false, false},
    {"gigachat", false, kGpt2, false, false},
    {"a.x-4.0", false, kGpt2, false, false},
    {"tekken", false, kTekken, true, true},
    {"deepseek-llm", false, kDeepSeekLlm, false, false},
    {"deepseek-coder", false, kDeepSeekCoder, false, false},
    {"gpt-4o", false, kCased, false, false},
    {"llama4", false, kCased, false, false},
    {"kanana2", false, kCased, false, false},
    {"seed-coder", false, kSeed, false, false},
    {"glm4", false, kLlama3, true, false},
    {"command-r", true, kSmolLm, false, false},
    {"cohere2moe", true, kAya, false, false},
    {"tiny_aya", true, kAya, false, false},
    {"mellum2", false, kSmolLm, false, false},
    {"mellum", false, kGpt2, false, false},
    {"hunyuan", false, kQwen2, false, false},
    {"hunyuan-dense", false, kHunyuan, false, false},
    {"deepseek-v3", false, kHunyuan, false, false},
    {"joyai-llm", false, kHunyuan, false, false},
    {"laguna", false, kLaguna, false, false},
    {"exaone-moe", false, kExaoneMoe, false, false},
    {"chatglm-bpe", false, kLlama3, false, false},
    {"default", false, kDefault, false, false},
    {"smaug-bpe", false, kLlama3, false, false},
    {"falcon3", false, kLlama3, true, true},
    {"megrez", false, kQwen2, false, false},
    {"minerva-7b", false, kSmolLm, false, false},
    {"dbrx", false, kLlama3, false, false},    // Phi-4, OLMo 2, Granite 4
    {"refact", false, kSmolLm, false, false},  // Granite 3
    {"starcoder", false, kSmolLm, false, false},
    {"exaone", false, kSmolLm, false, false},
    {"exaone4", false, kGpt2, false, false},
    {"granite-docling", false, kGpt2, false, false},
    {"olmo", false, kGpt2, false, false},
};

std::string known_families() {
  std::string out;
  for (const Family& family : kFamilies) out += (out.empty() ? "" : ", ") + std::string(family.pre);
  return out;
}

// Returns the file's tokenizer.ggml.pre; empty: it has none.
std::string_view pre_of(const GgufFile& gguf) {
  return gguf.string("tokenizer.ggml.pre").value_or("");
}

const Family& family_of(const GgufFile& gguf) {
  const std::string_view pre = pre_of(gguf).empty() ? "default" : pre_of(gguf);
  const auto it = std::find_if(std::begin(kFamilies), std::end(kFamilies),
                               [&](const Family& family) { return pre == family.pre; });
  if (it == std::end(kFamilies)) {
    unsupported(gguf.file.name, "tokenizer.ggml.pre", "\"" + std::string(pre) + "\"",
                "one of " + known_families());
  }
  return *it;
}

}  // namespace

std::string_view gguf_pre(const BpeSpec& spec) {
  const auto refuse = [&](const char* field, const char* found) {
    unsupported(spec.where, field, found,
                "the steps of one of these families, to write it as GGUF: " + known_families());
  };
  const bool nfc = spec.normalizer.size() == 1 && spec.normalizer[0].kind == NormalizerStep::NFC;
  if (!spec.normalizer.empty() && !nfc) refuse("normalizer", "steps other than NFC");
  std::vector<std::string_view> patterns;
  for (const SplitStep& step : spec.splits) {
    if (step.kind == SplitStep::METASPACE || step.add_prefix_space || step.invert ||
        step.behavior != SplitStep::ISOLATED)
      refuse("pre_tokenizer", "a step of another kind");
    if (step.pattern) patterns.push_back(step.pattern->text());
  }
  for (const Family& family : kFamilies) {
    const bool same = std::equal(patterns.begin(), patterns.end(), family.patterns.begin(),
                                 family.patterns.end());
    if (same && family.nfc == nfc && family.ignore_merges == spec.ignore_merges) return family.pre;
  }
  unsupported(spec.where, "pre_tokenizer", "other patterns",
              "the patterns of one of these families, to write it as GGUF: " + known_families());
}

// Sets how a byte-level vocabulary splits text: tokenizer.ggml.pre names a family's way.
static void read_family(const GgufFile& gguf, BpeSpec* spec) {
  const Family& family = family_of(gguf);
  if (pre_of(gguf).empty())
    spec->note =
        "the model file does not say how to split text into words (tokenizer.ggml.pre): "
        "riffle splits it as llama.cpp does by default, which may differ from training";
  spec->byte_level = true;
  spec->ignore_merges = family.ignore_merges;
  spec->add_bos = family.add_bos;
  if (family.nfc) spec->normalizer.push_back({NormalizerStep::NFC, "", ""});
  for (const std::string_view pattern : family.patterns) {
    spec->splits.emplace_back();
    spec->splits.back().pattern.emplace(pattern, gguf.file.name, "tokenizer.ggml.pre");
  }
  spec->splits.back().kind = SplitStep::BYTE_LEVEL;
}

// Tells whether spec joins pieces as Gemma 4 does. Gemma 4's tokenizer.json also has a split at
// spaces, which never matches, since the normaliser has replaced every space.
bool is_gemma4(const BpeSpec& spec) {
  const bool spaces = spec.normalizer.size() == 1 &&
                      spec.normalizer[0].kind == NormalizerStep::REPLACE &&
                      spec.normalizer[0].from == " " && spec.normalizer[0].to == kSpaceSymbol;
  // SplitPattern::text() is empty for a literal, so the match is tested.
  const auto is_space = [](const SplitPattern& pattern) {
    SplitPattern::Scratch scratch(pattern);
    SplitPattern::Matches matches(scratch, " ");
    size_t begin = 0, end = 0;
    return pattern.text().empty() && matches.next(&begin, &end) && begin == 0 && end == 1;
  };
  const bool at_spaces = std::ranges::all_of(spec.splits, [&](const SplitStep& step) {
    return step.kind == SplitStep::PATTERN && step.pattern && !step.invert &&
           is_space(*step.pattern);
  });
  return !spec.byte_level && spaces && at_spaces && spec.byte_fallback && spec.fuse_unk &&
         !spec.ignore_merges && !spec.strip_first_space;
}

BpeSpec bpe_from_gguf(const GgufFile& gguf, GgufVocab vocab) {
  const std::string& file = gguf.file.name;
  if (gguf.boolean("tokenizer.ggml.add_space_prefix").value_or(false) && !vocab.options.merged) {
    unsupported(file, "tokenizer.ggml.add_space_prefix", "true", "false for model \"gpt2\"");
  }
  BpeSpec spec;
  spec.where = file;
  const VocabOptions& options = vocab.options;
  if (options.merged) {
    spec.normalizer.push_back({NormalizerStep::REPLACE, " ", std::string(kSpaceSymbol)});
    spec.byte_fallback = spec.fuse_unk = spec.add_bos = true;
    spec.unk_id = options.unk_id;
  } else {
    read_family(gguf, &spec);
  }
  spec.pieces = std::move(vocab.pieces);
  spec.bos_id = options.bos_id;
  spec.eos_id = options.eos_id;
  // Early files of Gemma 4 say that texts begin without BOS, which the model needs.
  const bool add_bos =
      options.merged || gguf.boolean("tokenizer.ggml.add_bos_token").value_or(spec.add_bos);
  spec.add_bos = options.bos_id >= 0 && add_bos;

  for (size_t id = 0; id < spec.pieces.size(); id++) {
    VocabPiece& piece = spec.pieces[id];
    if (piece.type == VocabPiece::BYTE && byte_of_piece(piece.text) < 0) {
      bad_model(file, "tokenizer.ggml.tokens[" + std::to_string(id) + "]",
                "\"" + piece.text.substr(0, 40) + "\" of type byte", "<0x00> to <0xFF>");
    }
    if (piece.type == VocabPiece::UNKNOWN) piece.type = VocabPiece::CONTROL;
    const bool control = piece.type == VocabPiece::CONTROL,
               added = control || piece.type == VocabPiece::USER_DEFINED;
    spec.in_model.push_back(piece.type == VocabPiece::NORMAL ||
                            piece.type == VocabPiece::USER_DEFINED ||
                            (options.merged && piece.type == VocabPiece::BYTE));
    if (!added || piece.text.empty()) continue;
    if (piece.text.size() > kMaxAddedBytes) {
      bad_model(file, "tokenizer.ggml.tokens[" + std::to_string(id) + "]",
                std::to_string(piece.text.size()) + " bytes",
                "at most " + std::to_string(kMaxAddedBytes) +
                    " for a control token or a user-defined one");
    }
    // GGUF does not say whether a token takes the spaces around it (lstrip, rstrip) or is looked
    // for in normalised text. llama.cpp knows the models by name: Phi-3 and Jina, which have other
    // architectures. Models of Llama, CodeLlama, Mistral, Qwen2, Yi, SmolLM, TinyLlama and DeepSeek
    // take none, and no normalisation changes their spelling.
    AddedToken token;
    token.id = static_cast<int32_t>(id);
    token.text = piece.text;
    token.special = control;
    spec.added.push_back(std::move(token));
  }

  const auto merges = gguf.strings("tokenizer.ggml.merges");
  if (!merges) bad_model(file, "tokenizer.ggml.merges", "none", "an array of STRING");
  const PieceIds ids(spec.pieces, spec.in_model);
  spec.merges.reserve(merges->size());
  for (size_t i = 0; i < merges->size(); i++) {
    const std::string_view text = (*merges)[i];
    const size_t space = text.find(' ');
    if (space == 0 || space >= text.size() - 1 || text.find(' ', space + 1) != text.npos) {
      bad_model(file, "tokenizer.ggml.merges[" + std::to_string(i) + "]",
                "\"" + std::string(text.substr(0, 80)) + "\"",
                "two pieces with a space between them");
    }
    spec.merges.push_back(make_merge(ids, text.substr(0, space), text.substr(space + 1), i, file,
                                     "tokenizer.ggml.merges"));
  }
  return spec;
}

}  // namespace riffle
