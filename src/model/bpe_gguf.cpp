#include <algorithm>
#include <iterator>
#include <utility>

#include "model/bpe.h"
#include "model/checked.h"

namespace riffle {

namespace {

constexpr size_t kMaxAddedBytes = 1 << 10;

// tokenizer.ggml.pre: the name under which a family's way of cutting text goes in GGUF files.
struct Family {
  std::string_view pre;
  bool nfc;
  bool each_digit;  // a step of its own before the pattern
  std::string_view pattern;
  bool ignore_merges, add_bos;
};
constexpr Family kFamilies[] = {
    {"llama-bpe", false, false, kLlama3Pattern, true, true}, {"llama3", false, false, kLlama3Pattern, true, true},
    {"llama-v3", false, false, kLlama3Pattern, true, true},  {"qwen2", true, false, kQwen2Pattern, false, false},
    {"deepseek-r1-qwen", true, false, kQwen2Pattern, false, false},
    {"smollm", false, true, kGpt2Pattern, false, false},     {"gpt-2", false, false, kGpt2Pattern, false, false},
    {"default", false, false, kGpt2Pattern, false, false},
};

const Family& family_of(const GgufFile& gguf) {
  const auto pre = gguf.string("tokenizer.ggml.pre");
  const auto it = std::find_if(std::begin(kFamilies), std::end(kFamilies),
                               [&](const Family& family) { return pre && *pre == family.pre; });
  if (it == std::end(kFamilies)) {
    unsupported(gguf.file.name, "tokenizer.ggml.pre", pre ? "\"" + std::string(*pre) + "\"" : "none",
                "llama-bpe, llama3, llama-v3, qwen2, deepseek-r1-qwen, smollm, gpt-2 or default");
  }
  return *it;
}

}  // namespace

std::string_view gguf_pre(const BpeSpec& spec) {
  const auto refuse = [&](const char* field, const char* found) {
    unsupported(spec.where, field, found, "what one of the families llama-bpe, qwen2, smollm and gpt-2 has, to write it as GGUF");
  };
  const bool nfc = spec.normalizer.size() == 1 && spec.normalizer[0].kind == NormalizerStep::NFC;
  if (!spec.normalizer.empty() && !nfc) refuse("normalizer", "other steps than NFC");
  std::vector<std::string_view> patterns;
  for (const SplitStep& step : spec.splits) {
    if (step.kind == SplitStep::METASPACE || step.add_prefix_space || step.invert || step.behavior != SplitStep::ISOLATED)
      refuse("pre_tokenizer", "a step of another kind");
    if (step.pattern) patterns.push_back(step.pattern->text());
  }
  for (const Family& family : kFamilies) {
    std::vector<std::string_view> own;
    if (family.each_digit) own.push_back(kDigitPattern);
    own.push_back(family.pattern);
    if (patterns == own && family.nfc == nfc && family.ignore_merges == spec.ignore_merges) return family.pre;
  }
  unsupported(spec.where, "pre_tokenizer", "other patterns",
              "those of llama-bpe, qwen2, smollm or gpt-2, to write it as GGUF");
}

BpeSpec bpe_from_gguf(const GgufFile& gguf) {
  const std::string& file = gguf.file.name;
  const Family& family = family_of(gguf);
  if (gguf.boolean("tokenizer.ggml.add_space_prefix").value_or(false)) {
    unsupported(file, "tokenizer.ggml.add_space_prefix", "true", "false for model \"gpt2\"");
  }
  BpeSpec spec;
  spec.where = file;
  VocabOptions options;
  spec.pieces = gguf_vocab(gguf, &options);
  spec.byte_level = true;
  spec.ignore_merges = family.ignore_merges;
  spec.bos_id = options.bos_id;
  spec.eos_id = options.eos_id;
  spec.add_bos = options.bos_id >= 0 && gguf.boolean("tokenizer.ggml.add_bos_token").value_or(family.add_bos);
  if (family.nfc) spec.normalizer.push_back({NormalizerStep::NFC, "", ""});
  const auto step = [&](SplitStep::Kind kind, std::string_view pattern) {
    spec.splits.emplace_back();
    spec.splits.back().kind = kind;
    spec.splits.back().pattern.emplace(pattern, file, "tokenizer.ggml.pre");
  };
  if (family.each_digit) step(SplitStep::PATTERN, kDigitPattern);
  step(SplitStep::BYTE_LEVEL, family.pattern);

  for (size_t id = 0; id < spec.pieces.size(); id++) {
    VocabPiece& piece = spec.pieces[id];
    if (piece.type == VocabPiece::BYTE && byte_of_piece(piece.text) < 0) {
      bad_model(file, "tokenizer.ggml.tokens[" + std::to_string(id) + "]", "\"" + piece.text.substr(0, 40) + "\" of type byte",
                "<0x00> to <0xFF>");
    }
    if (piece.type == VocabPiece::UNKNOWN) piece.type = VocabPiece::CONTROL;
    const bool control = piece.type == VocabPiece::CONTROL, added = control || piece.type == VocabPiece::USER_DEFINED;
    spec.in_model.push_back(piece.type == VocabPiece::NORMAL || piece.type == VocabPiece::USER_DEFINED);
    if (!added || piece.text.empty()) continue;
    if (piece.text.size() > kMaxAddedBytes) {
      bad_model(file, "tokenizer.ggml.tokens[" + std::to_string(id) + "]", std::to_string(piece.text.size()) + " bytes",
                "at most " + std::to_string(kMaxAddedBytes) + " for a control token or a user-defined one");
    }
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
      bad_model(file, "tokenizer.ggml.merges[" + std::to_string(i) + "]", "\"" + std::string(text.substr(0, 80)) + "\"",
                "two pieces with a space between them");
    }
    spec.merges.push_back(
        make_merge(ids, text.substr(0, space), text.substr(space + 1), i, file, "tokenizer.ggml.merges"));
  }
  return spec;
}

}  // namespace riffle
