#include "import/gguf_options.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>

#include "model/families/family.h"
#include "util/checked.h"
#include "util/error.h"

namespace riffle {

namespace {

constexpr std::string_view kModelKeys[] = {
    // Read in config_gguf.cpp, besides field::kAll.
    "attention.value_length",
    "attention.head_dim",
    "rope.dimension_count",
    "rope.scale_linear",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.attn_factor",
    "rope.scaling.original_context_length",
    "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "rope.scaling.yarn_ext_factor",
    "rope.scaling.yarn_log_multiplier",
    // Keys that change nothing.
    "rope.scaling.finetuned",        // history of the model's context length
    "attention.layer_norm_epsilon",  // converters copy it from config.json; these models have only
                                     // RMS norms
    "pooling_type",                  // for embeddings of texts, which riffle does not compute
    // Ollama's converter: tokens around images, and the parts of image positions. Positions of text
    // have one value.
    "image_token_id",
    "vision_start_token_id",
    "vision_end_token_id",
    "mrope_sections",
    "rope.mrope_section",
    "rope.mrope_interleaved",
};
// Keys of the part that reads images, which riffle does not load.
constexpr std::string_view kImageKeys = "vision.";

constexpr std::string_view kTokenizerKeys[] = {
    // Read in gguf_vocab.cpp and gguf_bpe.cpp; ids of tokens are below.
    "model", "pre", "tokens", "scores", "token_type", "merges", "add_bos_token", "add_space_prefix",
    "remove_extra_whitespaces", "precompiled_charsmap",
    // Keys that change nothing.
    "add_eos_token",     // for training: a prompt that ends a text cannot be continued
    "add_sep_token",     // the same for pairs of texts
    "token_type_count",  // segments of BERT's inputs
};

// Keys of factors.
constexpr std::string_view kScales[] = {"attention.output_scale", "logit_scale", "embedding_scale",
                                        "residual_scale"};

template <class List>
bool holds(const List& list, std::string_view key) {
  return std::find(std::begin(list), std::end(list), key) != std::end(list);
}

// Returns a scalar's value; nothing for texts and arrays. (GgufFile's readers take no number below
// zero.)
std::optional<double> scalar(const GgufValue& value) {
  switch (value.type) {
    case GgufType::BOOL: return *value.data != 0;
    case GgufType::U8: return *value.data;
    case GgufType::I8: return static_cast<int8_t>(*value.data);
    case GgufType::U16: return load_unaligned<uint16_t>(value.data);
    case GgufType::I16: return load_unaligned<int16_t>(value.data);
    case GgufType::U32: return load_unaligned<uint32_t>(value.data);
    case GgufType::I32: return load_unaligned<int32_t>(value.data);
    case GgufType::U64: return static_cast<double>(load_unaligned<uint64_t>(value.data));
    case GgufType::I64: return static_cast<double>(load_unaligned<int64_t>(value.data));
    case GgufType::F32: return load_unaligned<float>(value.data);
    case GgufType::F64: return load_unaligned<double>(value.data);
    case GgufType::STRING:
    case GgufType::ARRAY: break;
  }
  return std::nullopt;
}

std::string shown(const GgufFile& gguf, const std::string& key, const GgufValue& value) {
  if (value.type == GgufType::STRING) return "\"" + printable(*gguf.string(key), 80) + "\"";
  if (value.type == GgufType::ARRAY) return "an array of " + std::to_string(value.count);
  if (value.type == GgufType::BOOL) return *value.data != 0 ? "true" : "false";
  return format("%g", *scalar(value));
}

template <class Known>
void refuse_below(const GgufFile& gguf, const std::string& prefix, const Known& known) {
  for (auto it = gguf.metadata.lower_bound(prefix);
       it != gguf.metadata.end() && it->first.starts_with(prefix); ++it) {
    const auto& [key, value] = *it;
    const std::string_view name = std::string_view(key).substr(prefix.size());
    if (known(name)) continue;
    // Converters of 2023 name the order of rows, which is the same in all files of these
    // architectures.
    if (name == "tensor_data_layout" && value.type == GgufType::STRING &&
        *gguf.string(key) == "Meta AI original pth")
      continue;
    const std::optional<double> number = scalar(value);
    if (name == "attention.causal" && number == 1) continue;
    const bool scale = holds(kScales, name);
    if (name != "attention.causal" && (number == 0 || (scale && number == 1))) continue;
    unsupported(gguf.file.name, key, shown(gguf, key, value),
                name == "attention.causal"     ? "true"
                : scale                        ? "1"
                : value.type == GgufType::BOOL ? "false"
                : number                       ? "0, as riffle does not know the option"
                                               : "none, as riffle does not know the option");
  }
}

}  // namespace

void refuse_unknown_options(const GgufFile& gguf, const Family& family) {
  refuse_below(gguf, std::string(family.name) + ".", [&](std::string_view name) {
    const auto is_named = [&](const Field& f) { return f.gguf && name == f.gguf; };
    return holds(kModelKeys, name) || name.starts_with(kImageKeys) ||
           std::ranges::any_of(field::kAll, is_named) ||
           std::ranges::any_of(family.fields, is_named);
  });
  // Other ids name tokens for uses that riffle does not have (padding, filling in the middle);
  // Ollama's converter writes lists of any.
  // In Gemma 4's files: placeholders of images and sound, which answers to text do not draw.
  const bool suppresses = gguf.string("tokenizer.ggml.model") == "gemma4";
  refuse_below(gguf, "tokenizer.ggml.", [&](std::string_view name) {
    if (suppresses && name == "suppress_tokens") return true;
    return holds(kTokenizerKeys, name) || name.ends_with("_token_id") ||
           name.ends_with("_token_ids");
  });
}

}  // namespace riffle
