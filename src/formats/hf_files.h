// JSON files of a Hugging Face folder: the index of its shards, tokenizer_config.json and
// chat_template.json.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "util/checked.h"

namespace riffle {

// The names of the shards in a model.safetensors.index.json, sorted, and which shard holds which
// tensor.
struct ShardIndex {
  std::vector<std::string> shards;
  std::vector<std::pair<std::string, size_t>> tensors;  // name, index in shards
};
// Throws RIFFLE_BAD_MODEL, also if a name would leave the folder.
ShardIndex parse_shard_index(const FileView& file);

// The fields of tokenizer_config.json that riffle uses.
struct TokenizerConfig {
  std::string chat_template;  // empty: none
  struct AddedToken {
    uint64_t id;
    std::string text;
  };
  std::vector<AddedToken> added_tokens;
  std::string bos_token, eos_token, pad_token;  // empty: none
  std::optional<bool> add_bos;                  // add_bos_token
};
// Throws RIFFLE_BAD_MODEL.
TokenizerConfig parse_tokenizer_config(const FileView& file);

// Returns the template in a chat_template.json, where older versions of transformers keep the
// template of a model that takes images. Throws RIFFLE_BAD_MODEL.
std::string parse_chat_template_json(const FileView& file);

}  // namespace riffle
