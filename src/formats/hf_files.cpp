#include "formats/hf_files.h"

#include <charconv>
#include <map>

#include "util/json_file.h"

namespace riffle {

namespace {

constexpr size_t kMaxShards = 10'000;
constexpr size_t kMaxTensors = 100'000;

// Tells whether name is a file name without a path: an index must not reach outside its folder.
bool is_plain_name(const std::string& name) {
  return !name.empty() && name.size() <= 255 && name.front() != '.' &&
         name.find('/') == std::string::npos && name.find('\0') == std::string::npos;
}

}  // namespace

ShardIndex parse_shard_index(const FileView& file) {
  const Json root = parse_json_object(file);
  const Json* map = find(root, "weight_map");
  if (!map || !map->is_object()) {
    bad_model(file.name, "weight_map",
              map ? std::string("JSON of type ") + map->type_name() : "none", "an object");
  }
  if (map->size() > kMaxTensors) {
    bad_model(file.name, "weight_map", std::to_string(map->size()) + " tensors",
              "at most " + std::to_string(kMaxTensors));
  }
  ShardIndex index;
  std::map<std::string, size_t> seen;
  for (const auto& [name, shard] : map->members()) {
    if (!shard.is_string() || !is_plain_name(shard.string())) {
      bad_model(file.name, "weight_map " + name, shown(shard),
                "the name of a file in the same folder");
    }
    seen.emplace(shard.string(), 0);
  }
  if (seen.size() > kMaxShards) {
    bad_model(file.name, "weight_map", std::to_string(seen.size()) + " files",
              "at most " + std::to_string(kMaxShards));
  }
  for (auto& [shard, i] : seen) {
    i = index.shards.size();
    index.shards.push_back(shard);
  }
  for (const auto& [name, shard] : map->members()) {
    index.tensors.emplace_back(name, seen[shard.string()]);
  }
  return index;
}

namespace {

// Returns the template; from a list of {name, template}, the one named "default".
std::string pick_template(const FileView& file, const Json& value) {
  if (value.is_string()) return value.string();
  if (!value.is_array()) {
    bad_model(file.name, "chat_template", std::string("JSON of type ") + value.type_name(),
              "a string or an array");
  }
  for (const Json& entry : value.elements()) {
    const Json* name = entry.is_object() ? find(entry, "name") : nullptr;
    const Json* text = entry.is_object() ? find(entry, "template") : nullptr;
    if (!name || !name->is_string() || !text || !text->is_string()) {
      bad_model(file.name, "chat_template", shown(entry), "objects with strings name and template");
    }
    if (name->equals("default")) return text->string();
  }
  return "";
}

// A token is spelled as a string or as an object with its content.
std::string token_text(const Json* token) {
  if (token && token->is_object()) token = find(*token, "content");
  return token && token->is_string() ? token->string() : "";
}

}  // namespace

TokenizerConfig parse_tokenizer_config(const FileView& file) {
  const Json root = parse_json_object(file);
  TokenizerConfig out;
  if (const Json* value = find(root, "chat_template"))
    out.chat_template = pick_template(file, *value);
  out.bos_token = token_text(find(root, "bos_token"));
  out.eos_token = token_text(find(root, "eos_token"));
  out.pad_token = token_text(find(root, "pad_token"));
  if (const Json* add_bos = find(root, "add_bos_token")) {
    if (!add_bos->is_boolean())
      bad_model(file.name, "add_bos_token", shown(*add_bos), "true or false");
    out.add_bos = add_bos->boolean();
  }
  if (const Json* added = find(root, "added_tokens_decoder")) {
    if (!added->is_object())
      bad_model(file.name, "added_tokens_decoder", added->type_name(), "an object");
    for (const auto& [key, token] : added->members()) {
      uint64_t id = 0;
      const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
      if (error != std::errc() || end != key.data() + key.size()) {
        bad_model(file.name, "added_tokens_decoder", "the key \"" + key + "\"", "a token id");
      }
      out.added_tokens.push_back({id, token_text(&token)});
    }
  }
  return out;
}

std::string parse_chat_template_json(const FileView& file) {
  const Json root = parse_json_object(file);
  const Json* value = find(root, "chat_template");
  if (!value) bad_model(file.name, "chat_template", "none", "a string or an array");
  return pick_template(file, *value);
}

}  // namespace riffle
