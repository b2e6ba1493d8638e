#include "kernels/common/agreed.h"
#include "kernels/common/recurrent.h"
#include "model/families/family.h"

namespace riffle {

extern const Family kLlama, kMistral, kQwen2, kQwen3, kSmolLm3, kGranite, kMistral3, kPhi3, kGemma3,
    kOlmo2, kOlmo3, kExaone4, kQwen3Moe, kGptOss, kGraniteMoeHybrid, kMuseGlimmer, kLfm2, kLfm2Moe,
    kQwen35, kQwen35Moe, kGraniteHybrid, kNemotronH, kNemotronHMoe, kQwen3Next, kGemma4,
    kGemma4Unified, kSeedOss, kErnie45, kGlm4, kDeepseekV2, kDeepseekV3, kGlm4MoeLite, kMellum,
    kExaoneMoe, kErnie45Moe, kGraniteSwa, kHunyuan, kLaguna, kApertus, kCohere, kCohere2,
    kCohere2Moe;

// The first of several families with the same general.architecture is taken: OLMo 3 is an OLMo 2
// whose layers may have windows, and dense Granite 4.0 differs from Granite only in Hugging Face
// folders.
static constexpr const Family* kFamilies[] = {
    &kLlama,         &kMistral,     &kQwen2,        &kQwen3,     &kSmolLm3,
    &kGranite,       &kMistral3,    &kPhi3,         &kGemma3,    &kOlmo3,
    &kOlmo2,         &kExaone4,     &kQwen3Moe,     &kGptOss,    &kGraniteMoeHybrid,
    &kMuseGlimmer,   &kLfm2,        &kLfm2Moe,      &kQwen35,    &kQwen35Moe,
    &kGraniteHybrid, &kNemotronH,   &kNemotronHMoe, &kQwen3Next, &kGemma4,
    &kGemma4Unified, &kSeedOss,     &kErnie45,      &kGlm4,      &kDeepseekV2,
    &kDeepseekV3,    &kGlm4MoeLite, &kMellum,       &kExaoneMoe, &kErnie45Moe,
    &kGraniteSwa,    &kHunyuan,     &kLaguna,       &kApertus,   &kCohere,
    &kCohere2,       &kCohere2Moe};

std::span<const Family* const> families() { return kFamilies; }

const Family* family_of_architecture(std::string_view name) {
  for (const Family* f : kFamilies)
    if (name == f->name) return f;
  return nullptr;
}

const Family* family_of_model_type(std::string_view type) {
  for (const Family* f : kFamilies)
    if (f->class_name && type == f->model_type) return f;
  return nullptr;
}

const Family* family_of_multimodal_type(std::string_view type, std::string_view text_type) {
  for (const Family* f : kFamilies)
    if (f->multimodal_type && type == f->multimodal_type &&
        (text_type.empty() || text_type == f->model_type))
      return f;
  return nullptr;
}

// Returns the text "a", "b" or "c", with each name once.
static std::string one_of(const std::vector<const char*>& all) {
  std::vector<std::string> names;
  for (const char* name : all) {
    const std::string quoted = "\"" + std::string(name) + "\"";
    if (std::find(names.begin(), names.end(), quoted) == names.end()) names.push_back(quoted);
  }
  std::string text;
  for (size_t i = 0; i < names.size(); ++i)
    text += (i == 0 ? "" : i + 1 == names.size() ? " or " : ", ") + names[i];
  return text;
}

// Parts that riffle lacks. kUnknown: riffle may have all parts of the family, but not its
// description.
static constexpr const char kIndexer[] = "multi-head latent attention chosen by an indexer",
                            kKimiDelta[] = "Kimi delta attention",
                            kHyper[] = "hyper-connections between layers",
                            kNormBiases[] = "norms with biases",
                            kHeadGates[] = "a sigmoid gate for each head", kUnknown[] = "";
// Families that people ask for and riffle does not run: general.architecture in GGUF, model_type in
// config.json, and what riffle lacks. A family without a name of its own in GGUF (files of Kimi K2
// say deepseek2) has its model_type in both columns.
static constexpr struct {
  const char *architecture, *model_type, *lacks;
} kLacking[] = {
    {"afmoe", "afmoe", kUnknown},
    {"arcee", "arcee", kUnknown},
    {"bailingmoe", "bailing_moe", kUnknown},
    {"bailingmoe2", "bailing_moe", kUnknown},
    {"bailingmoe3", "bailing_hybrid", kKimiDelta},
    {"bitnet", "bitnet", "weights of three values"},
    {"chatglm", "chatglm", "fused biases of queries, keys and values"},
    {"dbrx", "dbrx", "clamped queries, keys and values"},
    {"deepseek", "deepseek", kUnknown},
    {"deepseek32", "deepseek_v32", kIndexer},
    {"deepseek4", "deepseek_v4", "attention to compressed keys and hyper-connections"},
    {"dots1", "dots1", kUnknown},
    {"ernie4_5_vl_moe", "ernie4_5_vl_moe", kUnknown},
    {"falcon", "falcon", kNormBiases},
    {"falcon-h1", "falcon_h1", "attention and Mamba-2 next to each other"},
    {"gemma", "gemma", kUnknown},
    {"gemma2", "gemma2", "soft caps of attention scores"},
    {"gemma3n", "gemma3n", "alternating updates and sparse activations"},
    {"gemma3n", "gemma3n_text", "alternating updates and sparse activations"},
    {"glm-dsa", "glm_moe_dsa", kIndexer},
    {"glm4moe", "glm4_moe", kUnknown},
    {"glm4moe", "glm4v_moe", kUnknown},
    {"glm5-next", "glm5_next", kKimiDelta},
    {"gpt2", "gpt2", "learned embeddings of positions"},
    {"gptneox", "gpt_neox", kNormBiases},
    {"granitemoe", "granitemoe", kUnknown},
    {"grok", "grok-1", "soft caps of attention scores"},
    {"hunyuan-moe", "hunyuan_v1_moe", kUnknown},
    {"hy_v3", "hy_v3", kUnknown},
    {"hy_v4", "hy_v4", kHyper},
    {"internlm2", "internlm2", kUnknown},
    {"jamba", "jamba", "Mamba-1 layers"},
    {"kimi-k3", "kimi_k3", kKimiDelta},
    {"kimi-linear", "kimi_linear", kKimiDelta},
    {"kimi_k2", "kimi_k2", "tiktoken vocabularies"},
    {"kimi_k25", "kimi_k25", "tiktoken vocabularies"},
    {"lfm3", "lfm3", kHeadGates},
    {"llada", "llada", "text by diffusion"},
    {"llama4", "llama4", "attention within chunks"},
    {"llama4", "llama4_text", "attention within chunks"},
    {"mamba", "mamba", "Mamba-1 layers"},
    {"mamba", "falcon_mamba", "Mamba-1 layers"},
    {"mamba2", "mamba2", "models without attention"},
    {"mimo2", "mimo_v2_flash", "values of another size than keys"},
    {"minicpm", "minicpm", kUnknown},
    {"minicpm3", "minicpm3", kUnknown},
    {"minimax-m2", "minimax_m2", kUnknown},
    {"minimax-m3", "minimax_m3_vl", "attention to blocks chosen by an indexer"},
    {"mistral4", "mistral4", "latent attention with queries scaled by position"},
    {"mixtral", "mixtral", kUnknown},
    {"nanbeige", "nanbeige", "layers that run more than once"},
    {"nemotron", "nemotron", kNormBiases},
    {"olmoe", "olmoe", kUnknown},
    {"phi2", "phi", kNormBiases},
    {"phimoe", "phimoe", kNormBiases},
    {"plamo2", "plamo2", "Mamba layers with norms of their own"},
    {"qwen2moe", "qwen2_moe", kUnknown},
    {"qwen2vl", "qwen2_vl", kUnknown},
    {"qwen2vl", "qwen2_5_vl", kUnknown},
    {"qwen3vl", "qwen3_vl", kUnknown},
    {"qwen3vlmoe", "qwen3_vl_moe", kUnknown},
    {"qwen4exp", "qwen4_exp", "hyper-connections and n-gram embeddings"},
    {"rwkv6", "rwkv6", "RWKV layers"},
    {"rwkv7", "rwkv7", "RWKV layers"},
    {"smallthinker", "smallthinker", "experts chosen before attention"},
    {"spark2_5", "spark2_5", kHeadGates},
    {"stablelm", "stablelm", kNormBiases},
    {"starcoder2", "starcoder2", kNormBiases},
    {"step35", "step3p5", kHeadGates},
};

std::string lacking_family(std::string_view name) {
  const std::string quoted = "\"" + std::string(name) + "\"";
  for (const auto& [architecture, model_type, lacks] : kLacking) {
    if (name != architecture && name != model_type) continue;
    if (lacks == std::string_view(kUnknown))
      return quoted + " (a family that riffle does not run yet)";
    return quoted + " (" + lacks + ", which riffle lacks)";
  }
  return quoted;
}

std::string known_architectures() {
  std::vector<const char*> names;
  for (const Family* f : kFamilies) names.push_back(f->name);
  return one_of(names);
}

std::string known_model_types() {
  std::vector<const char*> types;
  for (const Family* f : kFamilies)
    if (f->class_name) types.push_back(f->model_type);
  for (const Family* f : kFamilies)
    if (f->multimodal_type) types.push_back(f->multimodal_type);
  return one_of(types);
}

std::string known_text_types(std::string_view multimodal_type) {
  std::vector<const char*> types;
  for (const Family* f : kFamilies)
    if (f->multimodal_type && multimodal_type == f->multimodal_type) types.push_back(f->model_type);
  return one_of(types);
}

void set_layers(const Family& family, int window, const std::vector<bool>& windowed, Config* c) {
  c->layers.assign(c->n_layers, {});
  int no_rope = -1;
  for (int l = 0; l < c->n_layers; ++l) {
    LayerConfig& layer = c->layers[l];
    const bool in_pattern = !windowed.empty() ? windowed[l]
                            : family.window == Family::PERIOD
                                ? family.in_period(l, family.window_period)
                                : true;
    layer.window = in_pattern ? window : 0;
    if (family.no_rope_period == 0 || (l + 1) % family.no_rope_period != 0) continue;
    if (no_rope < 0) {
      no_rope = static_cast<int>(c->ropes.size());
      c->ropes.push_back({});
    }
    layer.rope = no_rope;
  }
}

std::vector<std::pair<Field, float>> values_of_mixture(const Config& c, const std::string& where) {
  // llama.cpp reads no key for it and always renormalises.
  if (!c.experts.renormalised)
    unsupported(where, "norm_topk_prob", "false", "true, to write the model as GGUF");
  for (const LayerConfig& layer : c.layers)
    if (!layer.has_experts)
      unsupported(where, field::kDenseLayers.json, "layers without experts",
                  "none, to write the model as GGUF");
  return {};
}

std::vector<const char*> mamba2_gguf_mix(const RecurrenceConfig&) {
  return {"ssm_in.weight", "ssm_conv1d.weight", "ssm_conv1d.bias", "ssm_a", "ssm_dt.bias",
          "ssm_d",         "ssm_norm.weight"};
}

void read_dense_layers(const Fields& f, Config* c) {
  const uint64_t step = f.integer(field::kExpertStep).value_or(1);
  if (step == 0) bad_model(f.file(), f.name_of(field::kExpertStep), "0", "at least 1");
  for (int l = 0; l < c->n_layers; ++l)
    c->layers[l].has_experts = (static_cast<uint64_t>(l) + 1) % step == 0;
  for (const int64_t l : f.integers(field::kDenseLayers)) {
    if (l < 0 || l >= c->n_layers)
      bad_model(f.file(), f.name_of(field::kDenseLayers), std::to_string(l),
                "layers below " + std::to_string(c->n_layers));
    c->layers[l].has_experts = false;
  }
}

Field experts_field(const Fields& f) {
  const auto count = f.integer(field::kExperts), now = f.integer(field::kExpertsNow);
  if (count && now && *count != *now)
    bad_model(f.file(), f.name_of(field::kExpertsNow), std::to_string(*now),
              "num_experts = " + std::to_string(*count));
  return now ? field::kExpertsNow : field::kExperts;
}

void read_ffn_types(const Fields& f, uint64_t n_dense, Config* c) {
  const std::vector<std::string> types = f.strings(field::kFfnTypes);
  if (f.has(field::kFfnTypes)) require_one_per_layer(f, field::kFfnTypes, types.size(), *c);
  for (size_t l = 0; l < c->layers.size(); ++l) {
    if (!types.empty() && types[l] != "dense" && types[l] != "sparse")
      unsupported(f.file(), f.name_of(field::kFfnTypes),
                  "\"" + printable(types[l], 40) + "\" at " + std::to_string(l),
                  "\"dense\" or \"sparse\"");
    c->layers[l].has_experts = types.empty() ? l >= n_dense : types[l] == "sparse";
  }
}

void require_leading_dense(const Config& c, const std::string& where, const char* json) {
  bool experts = false;
  for (const LayerConfig& layer : c.layers) {
    if (experts && !layer.has_experts)
      unsupported(where, json, "a layer without experts after one with them",
                  "such layers only at the beginning, to write the model as GGUF");
    experts = layer.has_experts;
  }
}

void require_local_rope(const Fields& f, const Config& c) {
  const bool windows = std::ranges::any_of(c.layers, [](const auto& l) { return l.window > 0; });
  if (windows && f.has({nullptr, "rope_parameters"}) && c.ropes.size() == 1)
    bad_model(f.file(), "rope_parameters.sliding_attention", "none",
              "the RoPE of the layers with a window");
}

void read_mamba2(const Fields& f, const Mamba2Fields& names, RecurrenceConfig defaults, Config* c) {
  constexpr int kMostHeads = 4096;
  const auto number = [&](const Field& field, int most, int fallback) {
    return dimension(f, f.name_of(field), most, f.is_json() ? fallback : 0);
  };
  RecurrenceConfig& r = c->recurrence;
  r.taps = number(names.taps, kMostTaps, defaults.taps);
  if (r.taps < 2) bad_model(f.file(), f.name_of(names.taps), "1", "2 to 8");
  r.k_heads = number(names.groups, kMostHeads, defaults.k_heads);
  r.v_heads = number(names.heads, kMostHeads, defaults.v_heads);
  if (r.v_heads % r.k_heads != 0)
    bad_model(f.file(), f.name_of(names.heads), std::to_string(r.v_heads),
              "a multiple of " + f.name_of(names.groups) + " = " + std::to_string(r.k_heads));
  r.k_dim = number(names.state_dim, kMostStateDim, defaults.k_dim);
  if (f.is_json()) {
    r.v_dim = number(names.head_dim, kMostStateDim, defaults.v_dim);
    return;
  }
  const int most = r.v_heads * kMostStateDim, inner = number(names.inner, most, 0);
  if (inner % r.v_heads != 0)
    bad_model(f.file(), f.name_of(names.inner), std::to_string(inner),
              "a multiple of " + f.name_of(names.heads) + " = " + std::to_string(r.v_heads));
  r.v_dim = inner / r.v_heads;
}

void read_draft_layers(const Fields& f, const Field& field, Config* c) {
  const auto given = f.integer(field);
  // Folders may have tensors of such layers although the number says 0, and more than one are not
  // used.
  const uint64_t n =
      f.is_json() ? std::clamp<uint64_t>(given.value_or(1), 1, 2) : given.value_or(0);
  const auto layers = static_cast<uint64_t>(c->n_layers);
  if (!f.is_json() && n >= layers)
    bad_model(f.file(), f.name_of(field), std::to_string(n),
              "fewer than " + f.name_of(field::kLayers) + " = " + std::to_string(layers));
  c->n_draft_layers = static_cast<int>(n);
  if (!f.is_json()) c->n_layers -= static_cast<int>(n);
  c->layers.resize(c->n_layers);
}

void require_attention(const Fields& f, const Config& c, const char* json) {
  for (int l = 0; l < c.n_layers; ++l)
    if (c.attends(l)) return;
  bad_model(f.file(), f.is_json() ? json : f.name_of(field::kKvHeads), "no layer that attends",
            "at least one");
}

void read_experts(const Fields& f, const ExpertFields& names, ExpertsConfig defaults, Config* c) {
  const auto number = [&](const Field& field, int fallback, int most) {
    const auto given = f.integer(field);
    const uint64_t n = given || !f.is_json() ? given.value_or(0) : static_cast<uint64_t>(fallback);
    if (n < 1 || n > static_cast<uint64_t>(most))
      bad_model(f.file(), f.name_of(field),
                given         ? std::to_string(n)
                : f.is_json() ? "none, which means " + std::to_string(n)
                              : "none",
                "1 to " + std::to_string(most));
    return static_cast<int>(n);
  };
  constexpr int kMostUsed = 64, kMostWidth = 1 << 20;
  c->experts.n = number(names.n, defaults.n, kMostExperts);
  c->experts.n_used = number(names.n_used, defaults.n_used, std::min(kMostUsed, c->experts.n));
  const bool divided = names.divided && !f.is_json() && !f.has(names.hidden_dim) &&
                       c->hidden_dim >= c->experts.n_used;
  c->experts.hidden_dim = divided ? c->hidden_dim / c->experts.n_used
                                  : number(names.hidden_dim, defaults.hidden_dim, kMostWidth);
}

}  // namespace riffle
