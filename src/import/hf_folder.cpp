#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <map>

#include "formats/gguf.h"
#include "formats/hf_files.h"
#include "formats/safetensors.h"
#include "import/draft.h"
#include "import/read_config.h"
#include "model/families/family.h"
#include "text/tokenizer.h"
#include "util/error.h"
#include "util/json_file.h"
#include "util/mapped_file.h"

namespace riffle {

namespace {

void read_shards(const std::string& folder, ModelParts& model, TensorTable& table) {
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

// Returns the tensor names of the text part in a folder whose model also takes images. Older
// versions of transformers use another prefix, and new versions still write it.
TensorNames names_of_text_part(TensorNames names, const TensorTable& table) {
  static_assert(std::string_view(kHuggingFaceNames.embedding) == "model.embed_tokens.weight");
  const bool old = table.count("language_model.model.embed_tokens.weight") > 0;
  const auto choose = [old](const char*& name, const char* older, const char* newer) {
    if (name) name = old ? older : newer;
  };
  choose(names.embedding, "language_model.model.embed_tokens.weight",
         "model.language_model.embed_tokens.weight");
  choose(names.final_norm, "language_model.model.norm.weight", "model.language_model.norm.weight");
  choose(names.layer, "language_model.model.layers.%d.", "model.language_model.layers.%d.");
  choose(names.layer_embedding, "language_model.model.embed_tokens_per_layer.weight",
         "model.language_model.embed_tokens_per_layer.weight");
  choose(names.layer_projection, "language_model.model.per_layer_model_projection.weight",
         "model.language_model.per_layer_model_projection.weight");
  choose(names.layer_projection_norm, "language_model.model.per_layer_projection_norm.weight",
         "model.language_model.per_layer_projection_norm.weight");
  if (table.count("language_model.lm_head.weight")) names.output = "language_model.lm_head.weight";
  return names;
}

// Tells whether a tensor belongs to a part that reads images or sound, which riffle does not load.
bool reads_images(std::string_view tensor) {
  if (tensor.starts_with("model.")) tensor.remove_prefix(6);
  for (const char* part :
       {"vision_tower.", "multi_modal_projector.", "vision_adapter.", "vision_projection.",
        "visual.", "embed_vision.", "vision_embedder.", "audio_tower.", "embed_audio."})
    if (tensor.starts_with(part)) return true;
  return false;
}

// Tells whether the folder's output matrix differs from its embedding. A copy of the embedding does
// not.
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

Draft draft_from_folder(const std::string& folder, const LoadProgress& progress) {
  Draft draft;
  ModelParts& parts = draft.parts;
  Config& config = draft.config;
  parts.format = "safetensors";
  const Family* family = nullptr;
  if (::access((folder + "/config.json").c_str(), F_OK) != 0 && errno == ENOENT)
    bad_model(folder, "", "a folder with neither a .gguf file nor a config.json", kModelFormats);
  config = config_from_json(MappedFile::open(folder + "/config.json")->view(), &family);
  config.name = last_part(folder);
  TensorTable table;
  read_shards(folder, parts, table);
  parts.gguf_names = family_of_architecture(config.architecture)->gguf_names;
  const bool other = family->hf_names_too && !table.count(family->hf_names->embedding);
  TensorNames names = other ? *family->hf_names_too : *family->hf_names;
  parts.file_names = other ? family->hf_names_too : family->hf_names;
  if (config.text_part) {
    std::erase_if(table, [](const auto& entry) { return reads_images(entry.first); });
    names = names_of_text_part(names, table);
  }
  // Some folders have the MTP layers inside the model.
  constexpr const char* kInside = "model.mtp.";
  if (names.drafts && has_prefix(table, kInside)) names.drafts = kInside;
  // An output matrix that differs is used, as in transformers, whatever config.json says.
  if (config.tied_output && has_own_output(table, names)) config.tied_output = false;
  bind_weights(parts, config, table, names, folder, progress);
  config.draft_head = parts.weights.draft.proj.rows > 0;
  for (int l = 0; l < config.n_layers; ++l)
    if (const auto* x = static_cast<const float*>(parts.weights.layers[l].xielu.data))
      config.layers[l].xielu = {x[0], x[1], x[2], x[3]};
  return draft;
}

}  // namespace riffle
