#include "model/formats/hf_folder.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <map>

#include "model/config.h"
#include "model/families/family.h"
#include "model/formats/json.h"
#include "model/formats/mapped_file.h"
#include "model/formats/safetensors.h"
#include "model/text/tokenizer.h"
#include "util/error.h"

namespace riffle {

namespace {

constexpr size_t kMaxShards = 10'000;
constexpr size_t kMaxTensors = 100'000;

// A file name and nothing else: an index must not reach outside its folder.
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

// A list of {name, template}: the one named "default".
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

namespace {

void read_shards(const std::string& folder, Model& model, TensorTable& table) {
  const auto read = [&](const std::string& name) {
    model.files.push_back(MappedFile::open(folder + "/" + name));
    parse_safetensors(model.files.back()->view(), table);
  };
  const std::string index_path = folder + "/model.safetensors.index.json";
  if (file_exists(folder + "/model.safetensors")) return read("model.safetensors");
  if (!file_exists(index_path)) {
    for (const char* name :
         {"pytorch_model.bin", "pytorch_model.bin.index.json", "consolidated.00.pth"}) {
      if (file_exists(folder + "/" + name)) unsupported(folder, "weights", name, "*.safetensors");
    }
    throw Error(
        RIFFLE_IO,
        folder +
            ": found neither model.safetensors nor model.safetensors.index.json, expected one");
  }
  const auto index_file = MappedFile::open(index_path);
  const ShardIndex index = parse_shard_index(index_file->view());
  for (const std::string& shard : index.shards) read(shard);
  for (const auto& [name, i] : index.tensors) {
    const auto it = table.find(name);
    const std::string path = folder + "/" + index.shards[i];
    if (it == table.end() || it->second.file != path) {
      bad_model(index_path, "weight_map " + name,
                it == table.end() ? "no such tensor" : "it in " + it->second.file,
                "it in " + index.shards[i]);
    }
  }
  if (index.tensors.size() != table.size()) {
    bad_model(index_path, "weight_map", std::to_string(index.tensors.size()) + " tensors",
              std::to_string(table.size()) + ", as many as the files hold");
  }
}

// The tensor names of the text part in a folder whose model also takes images. Older versions of
// transformers have another prefix, and new versions still write it.
TensorNames names_of_text_part(TensorNames names, const TensorTable& table) {
  static_assert(std::string_view(kHuggingFaceNames.embedding) == "model.embed_tokens.weight");
  if (table.count("language_model.model.embed_tokens.weight")) {
    names.embedding = "language_model.model.embed_tokens.weight";
    names.final_norm = "language_model.model.norm.weight";
    names.layer = "language_model.model.layers.%d.";
  } else {
    names.embedding = "model.language_model.embed_tokens.weight";
    names.final_norm = "model.language_model.norm.weight";
    names.layer = "model.language_model.layers.%d.";
  }
  if (table.count("language_model.lm_head.weight")) names.output = "language_model.lm_head.weight";
  return names;
}

// Whether a tensor belongs to the part that reads images, which riffle does not load.
bool reads_images(std::string_view tensor) {
  if (tensor.starts_with("model.")) tensor.remove_prefix(6);
  for (const char* part :
       {"vision_tower.", "multi_modal_projector.", "vision_adapter.", "vision_projection."})
    if (tensor.starts_with(part)) return true;
  return false;
}

// Whether the folder's output matrix is another than its embedding. A copy of the embedding is not.
bool has_own_output(const TensorTable& table, const TensorNames& names) {
  const auto output = table.find(names.output), embedding = table.find(names.embedding);
  if (output == table.end()) return false;
  if (embedding == table.end()) return true;
  const RawTensor &a = output->second, &b = embedding->second;
  return a.type_name != b.type_name || a.shape != b.shape || a.bytes != b.bytes ||
         std::memcmp(a.data, b.data, a.bytes) != 0;
}

std::string last_part(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path.substr(path.rfind('/') + 1);
}

}  // namespace

std::unique_ptr<Model> read_hf_folder(const std::string& folder, const LoadProgress& progress) {
  auto model = std::make_unique<Model>();
  model->format = "safetensors";
  const Family* family = nullptr;
  model->config = config_from_json(MappedFile::open(folder + "/config.json")->view(), &family);
  model->config.name = last_part(folder);
  TensorTable table;
  read_shards(folder, *model, table);
  TensorNames names = *family->hf_names;
  if (model->config.text_part) {
    std::erase_if(table, [](const auto& entry) { return reads_images(entry.first); });
    names = names_of_text_part(names, table);
  }
  // As in transformers: an output matrix is used if it differs, whatever config.json says.
  if (model->config.tied_output && has_own_output(table, names)) model->config.tied_output = false;
  bind_weights(*model, table, names, folder, progress);
  return model;
}

}  // namespace riffle
