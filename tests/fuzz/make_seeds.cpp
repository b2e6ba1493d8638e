// Writes what the fuzzers begin with: good files, as small as can be. usage: make_seeds FOLDER
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "formats/safetensors.h"
#include "import/load_model.h"
#include "import/read_config.h"
#include "kv/file/session_layout.h"
#include "model/recurrence.h"
#include "quantize/quantize_model.h"
#include "tests/fuzz/smallest_models.h"
#include "tests/model/test_files.h"
#include "tests/text/serialized_model.h"

using namespace riffle;
using namespace riffle::test;
using riffle_test::serialize_sentencepiece_model;

// 20 tokens of a layer with one KV head; the fuzzer makes the checksums. states: there is also a
// layer that keeps a state of 64 bytes.
static std::string session(bool states) {
  namespace disk = session_layout;
  std::string file(6 * disk::kPage, '\0');
  const auto write = [&](uint64_t at, const auto& value) {
    std::memcpy(file.data() + at, &value, sizeof value);
    return at + sizeof value;
  };
  disk::Header header{};
  header.version = disk::kVersion;
  header.page = disk::kPage;
  header.n_layers = header.n_kv_heads = 1;
  header.head_dim = header.block_size = 16;
  header.vocab_size = 8;
  if (states) {
    header.n_layers = header.n_shapes = 2;
    header.shapes[0] = {0, 1, 16, 0};
    header.shapes[1] = {3, 0, 0, 64};
    header.shape_of[1] = 1;
  }
  write(0, header);
  disk::Index index{};
  index.n_tokens = 20;
  index.n_marks = 1;
  index.marks[0] = 12;
  index.n_token_extents = index.n_extents = 1;
  const std::string text = R"({"riffle":1,"kind":"chat","document":"","messages":[)"
                           R"({"role":"user","content":"a","reasoning_content":""}]})";
  index.data = {3 * disk::kPage + 1024, text.size(), 0};
  text.copy(file.data() + index.data.offset, text.size());
  // The state of lfps after 19 tokens, with zeros for scores, means and variances.
  index.state = {3 * disk::kPage + 2048, 5 * sizeof(int64_t) + (20 + 20 + 16 + 16 + 2) * 4, 0};
  const int64_t learnt[] = {1, 20, 19, 20, 20};
  write(index.state.offset, learnt);
  uint64_t at = write(5 * disk::kPage, index);
  if (states) at = write(at, uint64_t(2));
  at = write(at, disk::TokenExtent{0, 20, {3 * disk::kPage, 80, 0}});
  at = write(at, disk::Extent{0, 0, 2, 2, 4 * disk::kPage});
  at = write(at, uint64_t(0));
  if (states) {
    at = write(at, disk::StateRun{7, 1, 0, {5 * disk::kPage + 1024, 64, 0}, {}});
    at = write(at, disk::StateRun{
                       20, 0, 0, {5 * disk::kPage + 1088, 64, 0}, {5 * disk::kPage + 1152, 32, 0}});
  }
  write(disk::kPage, disk::Save{1, 5 * disk::kPage, at - 5 * disk::kPage, 0, 6 * disk::kPage, 0});
  return file;
}

namespace {

// The tensors of a mixture of experts: a layer, 3 experts, as wide as the model.
struct Named {
  const char *gguf, *hf;
  std::vector<uint64_t> shape;  // outermost first
};
constexpr uint64_t kExperts = 3, kWidth = 4;

std::vector<Named> attention_tensors(uint64_t dim, bool biases) {
  std::vector<Named> all = {{"token_embd.weight", "model.embed_tokens.weight", {8, dim}},
                            {"output_norm.weight", "model.norm.weight", {dim}},
                            {"attn_norm.weight", "input_layernorm.weight", {dim}},
                            {"attn_q.weight", "self_attn.q_proj.weight", {4, dim}},
                            {"attn_k.weight", "self_attn.k_proj.weight", {2, dim}},
                            {"attn_v.weight", "self_attn.v_proj.weight", {2, dim}},
                            {"attn_output.weight", "self_attn.o_proj.weight", {dim, 4}}};
  const std::vector<Named> more = {
      {"attn_q.bias", "self_attn.q_proj.bias", {4}},
      {"attn_k.bias", "self_attn.k_proj.bias", {2}},
      {"attn_v.bias", "self_attn.v_proj.bias", {2}},
      {"attn_output.bias", "self_attn.o_proj.bias", {dim}},
      {"attn_sinks.weight", "self_attn.sinks", {2}},
      {"post_attention_norm.weight", "post_attention_layernorm.weight", {dim}},
      {"ffn_gate_inp.bias", "mlp.router.bias", {kExperts}},
      {"ffn_gate_inp.weight", "mlp.router.weight", {kExperts, dim}}};
  const std::vector<Named> plain = {{"attn_q_norm.weight", "self_attn.q_norm.weight", {2}},
                                    {"attn_k_norm.weight", "self_attn.k_norm.weight", {2}},
                                    {"ffn_norm.weight", "post_attention_layernorm.weight", {dim}},
                                    {"ffn_gate_inp.weight", "mlp.gate.weight", {kExperts, dim}}};
  const std::vector<Named>& rest = biases ? more : plain;
  all.insert(all.end(), rest.begin(), rest.end());
  return all;
}

// Where tensors of a layer lie in a file.
std::string placed(const std::string& name, const std::string& layer) {
  const bool outside = name.starts_with("token_embd") || name.starts_with("output_norm") ||
                       name.starts_with("model.");
  return outside ? name : layer + name;
}

std::string zeros(const std::vector<uint64_t>& shape, uint64_t bytes_each) {
  uint64_t n = bytes_each;
  for (const uint64_t size : shape) n *= size;
  return std::string(n, '\0');
}

FileView view_of(const std::string& bytes) {
  return {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size(), "a seed"};
}

std::string experts_gguf(const TinyModel& tiny, const std::string& arch) {
  const bool biases = arch == "gpt-oss";
  GgufWriter w;
  add_tiny_keys(w, tiny, "general.architecture");
  w.text("general.architecture", arch);
  for (const auto& [key, value] : {std::pair{"context_length", 512},
                                   {"embedding_length", 4},
                                   {"block_count", 1},
                                   {"feed_forward_length", 4},
                                   {"attention.head_count", 2},
                                   {"attention.head_count_kv", 1},
                                   {"attention.key_length", 2},
                                   {"attention.value_length", 2},
                                   {"attention.sliding_window", biases ? 64 : 0},
                                   {"expert_count", 3},
                                   {"expert_used_count", 2},
                                   {"expert_feed_forward_length", 4}})
    w.u32(arch + "." + key, static_cast<uint32_t>(value));
  w.f32(arch + ".attention.layer_norm_rms_epsilon", 1e-5f);
  w.f32(arch + ".rope.freq_base", 10000);
  w.text(arch + ".rope.scaling.type", "none");
  std::vector<Named> all = attention_tensors(kWidth, biases);
  for (const char* name : {"ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"}) {
    w.tensor("blk.0." + std::string(name) + ".weight", {kWidth, kWidth, kExperts}, 0,
             zeros({kWidth, kWidth, kExperts}, 4));
    if (biases)
      w.tensor("blk.0." + std::string(name) + ".bias", {kWidth, kExperts}, 0,
               zeros({kWidth, kExperts}, 4));
  }
  for (const Named& t : all)
    w.tensor(placed(t.gguf, "blk.0."), {t.shape.rbegin(), t.shape.rend()}, 0, zeros(t.shape, 4));
  return w.bytes();
}

// Two layers of a family other than Llama, without experts, with fields and tensors that only
// families have: windows by layer, YaRN, LongRoPE, scales.
std::string family_gguf(const TinyModel& tiny, const Family& family) {
  const std::string a = family.name;
  constexpr uint64_t kDim = 4, kHeadDim = 2;
  GgufWriter w;
  add_tiny_keys(w, tiny, "general.architecture");
  w.text("general.architecture", a);
  for (const auto& [key, value] : {std::pair{"context_length", 512},
                                   {"embedding_length", 4},
                                   {"block_count", 2},
                                   {"feed_forward_length", 4},
                                   {"attention.head_count", 2},
                                   {"attention.head_count_kv", 1},
                                   {"attention.key_length", 2},
                                   {"attention.value_length", 2},
                                   {"rope.dimension_count", 2}})
    w.u32(a + "." + key, static_cast<uint32_t>(value));
  w.f32(a + ".attention.layer_norm_rms_epsilon", 1e-5f);
  if (family.window == Family::PERIOD || family.window == Family::ALWAYS)
    w.u32(a + ".attention.sliding_window", 64);
  if (family.window == Family::PERIOD)
    w.array<uint8_t>(a + ".attention.sliding_window_pattern", 7, {1, 0});
  const std::string scaling = a + ".rope.scaling.";
  if (a == "phi3") {
    w.text(scaling + "type", "longrope");
    w.u32(scaling + "original_context_length", 128);
    w.f32(scaling + "attn_factor", 1.2f);
    for (const char* which : {"long", "short"})
      w.tensor(std::string("rope_factors_") + which + ".weight", {kHeadDim / 2}, 0,
               encode(DType::F32, {1.5f}));
  } else if (a != "smollm3" && a != "muse-glimmer") {
    w.text(scaling + "type", "yarn");
    w.f32(scaling + "factor", 4);
    w.u32(scaling + "original_context_length", 128);
    w.f32(scaling + "yarn_beta_fast", 32);
    w.f32(scaling + "yarn_beta_slow", 1);
    w.f32(scaling + (family.whole_attn_factor ? "attn_factor" : "yarn_attn_factor"), 1.1f);
  }
  for (const auto& [arch, key] : {std::pair{"granite", "attention.scale"},
                                  {"granite", "embedding_scale"},
                                  {"granite", "residual_scale"},
                                  {"granite", "logit_scale"},
                                  {"gemma3", "rope.freq_base"},
                                  {"gemma3", "rope.freq_base_swa"},
                                  {"olmo2", "rope.freq_base_swa"},
                                  {"mistral3", "attention.temperature_scale"},
                                  {"muse-glimmer", "logit_scale"},
                                  {"muse-glimmer", "final_logit_softcapping"}})
    if (a == arch) w.f32(a + "." + key, 2);
  const auto add = [&](const std::string& name, const std::vector<uint64_t>& dims) {
    w.tensor(name, dims, 0, zeros(dims, 4));
  };
  add("token_embd.weight", {kDim, 8});
  add("output_norm.weight", {kDim});
  const bool gated = a == "muse-glimmer";
  if (gated) add("output.weight", {kDim, 8});
  const bool whole = family.qk_norm == QkNorm::WHOLE;
  for (const std::string layer : {"blk.0.", "blk.1."}) {
    for (const char* name : {"attn_q", "attn_output", "ffn_gate", "ffn_up", "ffn_down"})
      add(layer + name + ".weight", {kDim, kDim});
    for (const char* name : {"attn_k", "attn_v"}) add(layer + name + ".weight", {kDim, kHeadDim});
    if (gated) add(layer + "attn_gate.weight", {kDim, kDim});
    if (family.pre_norm)
      for (const char* name : {"attn_norm", "ffn_norm"}) add(layer + name + ".weight", {kDim});
    if (family.post_norm)
      for (const char* name : {"post_attention_norm", "post_ffw_norm"})
        add(layer + name + ".weight", {kDim});
    if (family.qk_norm != QkNorm::NONE) {
      add(layer + "attn_q_norm.weight", {whole ? kDim : kHeadDim});
      add(layer + "attn_k_norm.weight", {kHeadDim});
    }
    if (family.qkv_bias) {
      add(layer + "attn_q.bias", {kDim});
      for (const char* name : {"attn_k", "attn_v"}) add(layer + name + ".bias", {kHeadDim});
    }
  }
  return w.bytes();
}

// Tells whether family_gguf makes the files of a family.
bool is_plain(std::string_view architecture) {
  constexpr std::string_view kPlain[] = {"exaone4", "gemma3", "granite", "mistral3", "muse-glimmer",
                                         "olmo2",   "phi3",   "qwen2",   "qwen3",    "smollm3"};
  return std::ranges::find(kPlain, architecture) != std::end(kPlain);
}

// Writes the checkpoints of the other families without recurrent layers, with weights in 4 bits. A
// new family has its seeds once it has its checkpoints.
void write_checkpoints(const std::string& folder) {
  for (const auto& checkpoint : std::filesystem::directory_iterator("tests/golden/tiny")) {
    const std::string name = checkpoint.path().filename().string(),
                      path = checkpoint.path().string() + "/" + name + ".gguf";
    if (!std::filesystem::exists(path)) continue;
    const std::unique_ptr<Model> model = load_model(path, {});
    const Family& family = *family_of_architecture(model->config.architecture);
    // gpt-oss has seeds of its own.
    if (family.recurrence != Recurrence::NONE || is_plain(family.name) ||
        std::string_view(family.name) == "gpt-oss")
      continue;
    quantize_file(path, folder + name, weight_mix_named("q4_0"), 1, false, {});
    touch(*load_model(folder + name, {}));
  }
}

// A file of a family whose layers may keep a recurrent state: a recurrent layer, one that attends
// and, for one_part families, an FFN; an MTP layer, if the family's is known. It has those keys
// below that the family reads.
std::string recurrent_gguf(const TinyModel& tiny, const Family& family) {
  const std::string a = family.name;
  GgufWriter w;
  add_tiny_keys(w, tiny, "general.architecture");
  w.text("general.architecture", a);
  const bool drafts = family.gguf_names->draft_proj;
  if (drafts) w.u32(a + ".nextn_predict_layers", 1);
  const auto reads = [&](const std::string& key) {
    return std::any_of(family.fields.begin(), family.fields.end(),
                       [&](const Field& f) { return f.gguf && key == f.gguf; });
  };
  for (const auto& [key, value] : {std::pair{"context_length", 512},
                                   {"embedding_length", 4},
                                   {"block_count", family.one_part ? 3 : 2 + drafts},
                                   {"attention.head_count", 2},
                                   {"attention.key_length", 2}})
    w.u32(a + "." + key, static_cast<uint32_t>(value));
  for (const auto& [key, value] : {std::pair{"shortconv.l_cache", 3},
                                   {"full_attention_interval", 2},
                                   {"ssm.conv_kernel", 3},
                                   {"ssm.state_size", 2},
                                   {"ssm.group_count", 1},
                                   {"ssm.time_step_rank", 2},
                                   {"ssm.inner_size", 4},
                                   {"expert_count", 3},
                                   {"expert_used_count", 2},
                                   {"expert_feed_forward_length", 4},
                                   {"expert_shared_feed_forward_length", 4},
                                   {"expert_gating_func", 2},
                                   {"leading_dense_block_count", 1}})
    if (reads(key)) w.u32(a + "." + key, static_cast<uint32_t>(value));
  for (const char* key : {"logit_scale", "attention.scale", "embedding_scale", "residual_scale"})
    if (reads(key)) w.f32(a + "." + key, 2);
  if (family.one_part) w.array<int32_t>(a + ".feed_forward_length", 5, {0, 0, 4});
  else w.u32(a + ".feed_forward_length", 4);
  if (family.one_part) w.array<int32_t>(a + ".attention.head_count_kv", 5, {0, 1, 0});
  else if (family.recurrent_period > 0) w.u32(a + ".attention.head_count_kv", 1);
  else w.array<int32_t>(a + ".attention.head_count_kv", 5, {0, 1});
  w.f32(a + ".attention.layer_norm_rms_epsilon", 1e-5f);

  GgufVocab vocab;
  const std::string keys = w.bytes();
  Config c = config_from_gguf(parse_gguf(view_of(keys)), &vocab);
  if (drafts) c.layers.push_back(draft_config(c).layers[0]);
  const TensorNames& names = *family.gguf_names;
  const auto add = [&](const std::string& name, std::vector<uint64_t> dims) {
    w.tensor(name, dims, 0, zeros(dims, 4));
  };
  const auto dim = static_cast<uint64_t>(c.dim);
  add(names.embedding, {dim, 8});
  add(names.final_norm, {dim});
  for (int l = 0; l < static_cast<int>(c.layers.size()); ++l) {
    const std::string layer = format(names.layer, l);
    const auto matrix = [&](const char* name, int64_t rows, int64_t cols, uint64_t parts = 1) {
      std::vector<uint64_t> dims = {static_cast<uint64_t>(cols), static_cast<uint64_t>(rows)};
      if (parts > 1) dims.push_back(parts);
      add(layer + name, dims);
    };
    // An FFN. Those without a gate have no w1.
    const auto ffn = [&](const char* w1, const char* w3, const char* w2, int64_t width,
                         uint64_t parts = 1) {
      if (c.gated_ffn()) matrix(w1, width, c.dim, parts);
      matrix(w3, width, c.dim, parts);
      matrix(w2, c.dim, width, parts);
    };
    if (l == c.n_layers) {
      matrix(names.draft_proj, c.dim, 2 * c.dim);
      for (const char* name :
           {names.draft_embed_norm, names.draft_hidden_norm, names.draft_final_norm})
        add(layer + name, {dim});
    }
    add(layer + names.attn_norm, {dim});
    if (!family.one_part) add(layer + names.ffn_norm, {dim});
    if (c.attends(l)) {
      matrix(names.wq, c.q_width(l) * (c.query_gate ? 2 : 1), c.dim);
      for (const char* name : {names.wk, names.wv}) matrix(name, c.kv_width(l), c.dim);
      matrix(names.wo, c.dim, c.q_width(l));
      if (c.qk_norm != QkNorm::NONE)
        for (const char* name : {names.q_norm, names.k_norm})
          add(layer + name, {static_cast<uint64_t>(c.head_dim)});
    } else if (c.recurs(l)) {
      const std::vector<const char*> mix = names.mix(c.recurrence);
      const std::vector<MixTensor> tensors = recurrent_tensors(c);
      for (size_t i = 0; i < mix.size(); ++i) matrix(mix[i], tensors[i].rows, tensors[i].cols);
      matrix(names.mix_out, c.dim, recurrent_out(c));
    }
    if (!c.layers[l].has_ffn) continue;
    if (!c.layers[l].has_experts) {
      ffn(names.w1, names.w3, names.w2, c.hidden_dim);
      continue;
    }
    const ExpertsConfig& e = c.experts;
    const auto n = static_cast<uint64_t>(e.n);
    matrix(names.router, e.n, c.dim);
    if (e.routing.choice_bias) add(layer + names.choice_bias, {n});
    ffn(names.expert_w1, names.expert_w3, names.expert_w2, e.hidden_dim, n);
    if (e.shared_dim == 0) continue;
    ffn(names.shared_w1, names.shared_w3, names.shared_w2, e.shared_dim);
    if (e.shared_gate) add(layer + names.shared_gate, {dim});
  }
  return w.bytes();
}

// kind: the tensors of the experts, each "qwen3", or packed: "plain" or "mxfp4".
std::string experts_safetensors(const std::string& kind) {
  const uint64_t dim = kind == "mxfp4" ? 32 : kWidth;
  const std::string layer = "model.layers.0.", at = layer + "mlp.experts.";
  SafetensorsWriter w;
  const auto add = [&](const std::string& name, const std::vector<uint64_t>& shape) {
    w.tensor(name, "F32", shape, zeros(shape, 4));
  };
  for (const Named& t : attention_tensors(dim, kind != "qwen3")) add(placed(t.hf, layer), t.shape);
  for (uint64_t e = 0; kind == "qwen3" && e < kExperts; ++e)
    for (const char* name : {"gate_proj", "up_proj", "down_proj"})
      add(at + std::to_string(e) + "." + name + ".weight", {dim, dim});
  if (kind == "qwen3") return w.bytes();
  for (const auto& [name, rows] : {std::pair{"gate_up_proj", 2 * dim}, {"down_proj", dim}}) {
    add(at + name + "_bias", {kExperts, rows});
    if (kind == "plain") {
      add(at + name, {kExperts, dim, rows});
      continue;
    }
    w.tensor(at + name + "_blocks", "U8", {kExperts, rows, 1, 16},
             zeros({kExperts, rows, 1, 16}, 1));
    w.tensor(at + name + "_scales", "U8", {kExperts, rows, 1}, zeros({kExperts, rows, 1}, 1));
  }
  return w.bytes();
}

// A layer with latent attention, of 2 heads. Both ranks and each part of a head have 2 values.
std::string latent_safetensors() {
  SafetensorsWriter w;
  const std::vector<std::pair<std::string, std::vector<uint64_t>>> all = {
      {"input_layernorm.weight", {kWidth}},
      {"post_attention_layernorm.weight", {kWidth}},
      {"self_attn.q_a_proj.weight", {2, kWidth}},
      {"self_attn.q_a_layernorm.weight", {2}},
      {"self_attn.q_b_proj.weight", {8, 2}},
      {"self_attn.kv_a_proj_with_mqa.weight", {4, kWidth}},
      {"self_attn.kv_a_layernorm.weight", {2}},
      {"self_attn.kv_b_proj.weight", {8, 2}},
      {"self_attn.o_proj.weight", {kWidth, 4}},
      {"mlp.gate.weight", {kExperts, kWidth}},
      {"mlp.gate.e_score_correction_bias", {kExperts}},
      {"mlp.shared_experts.gate_proj.weight", {2, kWidth}},
      {"mlp.shared_experts.up_proj.weight", {2, kWidth}},
      {"mlp.shared_experts.down_proj.weight", {kWidth, 2}},
  };
  const auto add = [&](const std::string& name, const std::vector<uint64_t>& shape) {
    w.tensor(name, "F32", shape, zeros(shape, 4));
  };
  add("model.embed_tokens.weight", {8, kWidth});
  add("model.norm.weight", {kWidth});
  for (const auto& [name, shape] : all) add("model.layers.0." + name, shape);
  for (uint64_t e = 0; e < kExperts; ++e)
    for (const char* name : {"gate_proj", "up_proj", "down_proj"})
      add("model.layers.0.mlp.experts." + std::to_string(e) + "." + name + ".weight",
          {kWidth, kWidth});
  return w.bytes();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const std::string root = argv[1];
  for (const char* target : {"gguf", "gguf_split", "safetensors", "config", "tokenizer_json",
                             "chat_template", "batch_line", "batch_resume", "calls", "call_grammar",
                             "session", "gbnf", "json_schema", "regex", "tokenizer_model"})
    std::filesystem::create_directories(root + "/" + target);

  write_file(root + "/session/small", session(false));
  write_file(root + "/session/states", session(true));

  // A Llama of four values wide, with a vocabulary of eight.
  TinyModel tiny = tiny_model(1, true, 1);
  tiny.pieces.resize(8);
  Config& c = tiny.config;
  c.dim = c.hidden_dim = 4;
  c.head_dim = 2;
  c.n_heads = 2;
  c.n_kv_heads = 1;
  c.vocab_size = 8;
  for (auto& [name, m] : tiny.tensors) {
    m.shape[0] = name.find("k_proj") != name.npos || name.find("v_proj") != name.npos ? 2
                 : name.find("embed") != name.npos                                    ? 8
                                                                                      : 4;
    if (m.shape.size() == 2) m.shape[1] = 4;
    m.values.resize(m.shape[0] * (m.shape.size() == 2 ? 4 : 1));
  }
  for (const DType type : {DType::F32, DType::F16, DType::BF16}) {
    const std::string name = dtype_info(type).name;
    write_file(root + "/gguf/" + name, tiny_gguf(tiny, type));
    SafetensorsWriter w;
    for (const auto& [tensor, m] : tiny.tensors)
      w.tensor(tensor, name, m.shape, encode(type, m.values));
    write_file(root + "/safetensors/" + name, w.bytes());
  }
  // They load, or this ends in an error.
  for (const char* arch : {"qwen3moe", "gpt-oss"}) {
    const std::string bytes = experts_gguf(tiny, arch);
    touch(*model_from_gguf(parse_gguf(view_of(bytes)), {}));
    write_file(root + "/gguf/" + arch, bytes);
  }
  for (const Family* family : families()) {
    const std::string arch = family->name;
    const bool recurs = family->recurrence != Recurrence::NONE;
    if (family != family_of_architecture(arch) || (!recurs && !is_plain(arch))) continue;
    const std::string bytes = recurs ? recurrent_gguf(tiny, *family) : family_gguf(tiny, *family);
    touch(*model_from_gguf(parse_gguf(view_of(bytes)), {}));
    write_file(root + "/gguf/" + arch, bytes);
  }
  write_checkpoints(root + "/gguf/");
  for (const auto& [kind, arch, dim] : {std::tuple{"qwen3", "qwen3moe", 4},
                                        {"plain", "gpt-oss", 4},
                                        {"mxfp4", "gpt-oss", 32},
                                        {"latent", "deepseek2", 4}}) {
    const std::string bytes =
        kind == std::string("latent") ? latent_safetensors() : experts_safetensors(kind);
    TensorTable table;
    parse_safetensors(view_of(bytes), table);
    bind_smallest(table, arch, dim);
    write_file(root + "/safetensors/" + kind, bytes);
  }
  write_file(root + "/gguf/Q8_0", tiny_gguf(tiny_model(2, true, 1), DType::Q8_0));
  // Blocks of the types that only a GGUF file from elsewhere has, by their numbers there.
  GgufWriter blocks;
  for (const auto& [id, type] : {std::pair{10u, DType::Q2_K},
                                 {11u, DType::Q3_K},
                                 {20u, DType::IQ4_NL},
                                 {23u, DType::IQ4_XS},
                                 {39u, DType::MXFP4}})
    blocks.tensor(dtype_info(type).name, {256, 2}, id,
                  std::string(static_cast<size_t>(row_bytes(type, 512)), '\1'));
  write_file(root + "/gguf/blocks", blocks.bytes());
  // Two parts: all but one tensor, and that one.
  std::string parts[2];
  for (int i = 0; i < 2; ++i) {
    GgufWriter w;
    if (i == 0) add_tiny_keys(w, tiny);
    w.scalar<uint16_t>("split.no", 2, static_cast<uint16_t>(i));
    w.scalar<uint16_t>("split.count", 2, 2);
    w.scalar<int32_t>("split.tensors.count", 5, static_cast<int32_t>(tiny.tensors.size()));
    if (i == 0) {
      add_tiny_tensors(w, tiny, DType::F32, "output_norm.weight");
    } else {
      const TinyModel::Matrix& m = tiny.tensors.at("model.norm.weight");
      w.tensor("output_norm.weight", m.shape, 0, encode(DType::F32, m.values));
    }
    parts[i] = w.bytes();
  }
  std::string split;
  put<uint32_t>(split, static_cast<uint32_t>(parts[0].size()));
  write_file(root + "/gguf_split/two", split + parts[0] + parts[1]);
  write_file(root + "/config/config",
             tiny_config_json(tiny, ", \"rope_theta\": 10000.0, \"rope_scaling\": null"));
  write_file(root + "/config/rope",
             tiny_config_json(
                 tiny, ", \"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 1e4}"));
  for (const auto& folder : std::filesystem::directory_iterator("tests/golden/tiny"))
    if (folder.is_directory())  // a configuration of each family
      write_file(root + "/config/" + folder.path().filename().string(),
                 read_file(folder.path().string() + "/config.json"));
  write_file(root + "/config/index",
             "{\"metadata\": {}, \"weight_map\": {\"a\": \"x.safetensors\"}}");
  write_file(root + "/config/generation",
             "{\"bos_token_id\": 1, \"eos_token_id\": [2, -1, 319], \"temperature\": 0.6}");
  write_file(root + "/config/tokenizer",
             "{\"chat_template\": [{\"name\": \"default\", \"template\": \"T\"}], \"pad_token\": "
             "\"<pad>\", "
             "\"added_tokens_decoder\": {\"8\": {\"content\": \"<pad>\"}}}");

  // Tokenizers of both kinds with a few merges.
  const std::string model = "\"model\": {\"type\": \"BPE\", \"ignore_merges\": true, \"vocab\": {";
  const std::string added =
      "\"added_tokens\": [{\"id\": 5, \"content\": \"<s>\", \"special\": true, \"lstrip\": true, "
      "\"rstrip\": true, \"single_word\": false, \"normalized\": false}], ";
  write_file(root + "/tokenizer_json/byte_level",
             "{" + added +
                 "\"normalizer\": {\"type\": \"NFC\"}, \"pre_tokenizer\": {\"type\": \"Sequence\", "
                 "\"pretokenizers\": [{\"type\": \"Digits\", \"individual_digits\": true}, "
                 "{\"type\": \"Split\", \"pattern\": "
                 "{\"Regex\": \"(?i:'s)| ?[^\\\\s\\\\p{L}]+|\\\\p{N}{1,3}|\\\\s+(?!\\\\S)\"}, "
                 "\"behavior\": \"Isolated\", "
                 "\"invert\": "
                 "false}, {\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"use_regex\": "
                 "true}]}, \"post_processor\": "
                 "{\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": "
                 "\"<s>\"}}, {\"Sequence\": "
                 "{\"id\": "
                 "\"A\"}}], \"special_tokens\": {\"<s>\": {\"ids\": [5]}}}, \"decoder\": "
                 "{\"type\": \"ByteLevel\"}, " +
                 model +
                 "\"l\": 0, \"o\": 1, \"lo\": 2, \"llo\": 3, \"\u0120\": 4}, \"merges\": [\"l o\", "
                 "\"l lo\"]}}");
  write_file(
      root + "/tokenizer_json/sentencepiece",
      "{" + added +
          "\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"Prepend\", "
          "\"prepend\": "
          "\"\u2581\"}, {\"type\": \"Replace\", \"pattern\": {\"String\": \" \"}, \"content\": "
          "\"\u2581\"}]}, "
          "\"pre_tokenizer\": {\"type\": \"Metaspace\", \"replacement\": \"\u2581\", "
          "\"prepend_scheme\": \"first\", "
          "\"split\": true}, \"decoder\": {\"type\": \"Sequence\", \"decoders\": [{\"type\": "
          "\"Replace\", \"pattern\": "
          "{\"String\": \"\u2581\"}, \"content\": \" \"}, {\"type\": \"Fuse\"}, {\"type\": "
          "\"Strip\", \"content\": \" "
          "\", \"start\": 1, \"stop\": 0}]}, " +
          model +
          "\"l\": 0, \"o\": 1, \"lo\": 2, \"llo\": 3, \"\u2581\": 4}, \"merges\": [[\"l\", \"o\"], "
          "[\"l\", \"lo\"]], \"unk_token\": \"l\", \"fuse_unk\": true}}");
  // Sentencepiece models of both kinds: byte fallback or not, every type of piece, every setting.
  for (const bool bpe : {false, true}) {
    SentencePieceModel vocabulary;
    vocabulary.bpe = bpe;
    vocabulary.pieces = {{"<unk>", 0, VocabPiece::UNKNOWN},  {"<s>", 0, VocabPiece::CONTROL},
                         {"\u2581", -3, VocabPiece::NORMAL}, {"l", -2, VocabPiece::NORMAL},
                         {"o", -2.5f, VocabPiece::NORMAL},   {"lo", -1, VocabPiece::NORMAL},
                         {"llo", -1, VocabPiece::UNUSED},    {"it's", 0, VocabPiece::USER_DEFINED}};
    const std::string name = root + "/tokenizer_model/" + (bpe ? "bpe" : "unigram");
    write_file(name, serialize_sentencepiece_model(vocabulary));
    vocabulary.remove_extra_whitespaces = vocabulary.escape_whitespaces = false;
    vocabulary.treat_whitespace_as_suffix = true;
    write_file(name + "_plain", serialize_sentencepiece_model(vocabulary));
    vocabulary.byte_fallback = true;
    for (int byte = 0; byte < 256; ++byte)
      vocabulary.pieces.push_back({format("<0x%02X>", byte), 0, VocabPiece::BYTE});
    write_file(name + "_bytes", serialize_sentencepiece_model(vocabulary));
  }
  const auto facts = nlohmann::json::parse(std::ifstream("tests/golden/template_facts.json"));
  for (size_t i = 0; i < facts["facts"].size(); i += 3)
    write_file(root + "/chat_template/fact" + std::to_string(i), facts["facts"][i][0]);
  const auto templates = nlohmann::json::parse(std::ifstream("tests/golden/chat_templates.json"));
  for (const auto& family : templates["families"]) {
    write_file(root + "/chat_template/" + std::string(family["name"]),
               std::string(family["templates"][0]));
  }
  const std::string body = "{\"custom_id\": \"a\", \"method\": \"POST\", \"url\": \"/v1/";
  write_file(
      root + "/gbnf/all",
      "root ::= (item (\",\" \" \"? item){0,3} | \"[\" root \"]\") # comment\n"
      "item ::= [a-z0-9_\\-] [^\\x00-\\x1f\\u00e9]{2,} | .? \"\\n\\\"\" | (\"a\"* \"b\"+){300}\n");
  for (const char format : {'\0', '\1', '\3', '\7'})
    write_file(
        root + "/call_grammar/" + std::to_string(format),
        format + std::string(R"({"type":"object","properties":{"s":{"type":"string",)"
                             R"("enum":["a"]},"o":{"anyOf":[{"type":"object","properties":)"
                             R"({"n":{"type":"integer","minimum":2}}},{"$ref":"#/$defs/l"}]},)"
                             R"("p":{"type":"string","pattern":"^a+$","minLength":1}},)"
                             R"("required":["s"],"$defs":{"l":{"type":"array","items":)"
                             R"({"type":["string","null"]},"maxItems":3}}})"));
  write_file(root + "/json_schema/object",
             R"({"type":"object","properties":{"a":{"type":"integer","minimum":-3,"maximum":20},)"
             R"("b":{"enum":["x",1.5,null,{"c":[]}]},"d":{"$ref":"#/$defs/n"}},"required":["a"],)"
             R"("additionalProperties":{"type":"string","pattern":"^[a-z]+$","maxLength":5},)"
             R"("minProperties":1,"$defs":{"n":{"type":["array","null"],"items":{"$ref":"#"},)"
             R"("prefixItems":[{"type":"number","exclusiveMinimum":0.25}],"minItems":1}}})");
  write_file(
      root + "/json_schema/combined",
      R"({"oneOf":[{"type":"string","format":"date-time"},{"type":"integer","multipleOf":7},)"
      R"({"allOf":[{"properties":{"k":{"const":1}},"required":["k"]},{"type":"object",)"
      R"("maxProperties":2}]},{"anyOf":[{"type":"boolean"},{"type":"null"}]}]})");
  write_file(root + "/regex/all", "^(?:a|[b-d\\d_]{2,5}?|\\u00e9+.)*(?<n>x\\.)$|y");
  write_file(root + "/batch_line/schema",
             R"({"custom_id":"a","body":{"prompt":"p","response_format":{"type":"json_schema",)"
             R"("json_schema":{"name":"n","schema":{"type":"object"}}}}})");
  write_file(
      root + "/batch_line/structured",
      R"({"custom_id":"a","body":{"prompt":"p","structured_outputs":{"choice":["a","b"]}}})");
  // The first byte chooses the format.
  write_file(root + "/calls/gemma",
             std::string("\0<|tool_call>call:f{s:<|\"|>a<|\"|>,b:[1,{c:true}]}<tool_call|>", 61));
  write_file(root + "/calls/lfm", "\1<|tool_call_start|>[f(s='a', b=[1]), f()]<|tool_call_end|>");
  write_file(root + "/calls/json",
             "\2<tool_call>\n{\"name\": \"f\", \"arguments\": {\"s\": \"a\"}}\n</tool_call>");
  write_file(
      root + "/calls/xml",
      "\2<tool_call>\n<function=f>\n<parameter=s>\na\n</parameter>\n</function>\n</tool_call>");
  write_file(root + "/calls/mistral",
             "\3[TOOL_CALLS]f[ARGS]{\"s\":1}[TOOL_CALLS][{\"name\":\"f\"}]");
  write_file(root + "/calls/llama", "\4{\"name\": \"f\", \"parameters\": {\"s\": \"a\"}}");
  write_file(root + "/batch_line/prompt",
             body +
                 "completions\", \"body\": {\"model\": \"m\", \"prompt\": \"a \\u00fc\", "
                 "\"max_tokens\": 3, \"temperature\": 0.5, "
                 "\"top_p\": 1, \"min_p\": 0, \"top_k\": 4, \"seed\": 18446744073709551615, "
                 "\"stop\": [\"x\"], \"n\": 1, \"xtc_probability\": 0.5, \"xtc_threshold\": 0.2, "
                 "\"dry_multiplier\": 0.8, \"dry_base\": 2, \"dry_allowed_length\": 1, "
                 "\"dry_penalty_last_n\": -1, \"dry_sequence_breakers\": [\"\\n\"], "
                 "\"stream\": false}}");
  write_file(root + "/batch_line/messages",
             body +
                 "chat/completions\", \"body\": {\"messages\": [{\"role\": \"system\", "
                 "\"content\": \"s\"}, {\"role\": "
                 "\"user\", \"content\": \"u\"}], \"max_completion_tokens\": 3, \"stop\": null}}");
  write_file(
      root + "/batch_line/parts",
      body +
          "chat/completions\", \"body\": {\"messages\": [{\"role\": \"user\", \"content\": "
          "[{\"type\": \"text\", \"text\": \"a\"}, {\"type\": \"text\", \"text\": \"b\"}]}]}}");
  write_file(root + "/batch_line/prompts",
             body +
                 "completions\", \"body\": {\"prompt\": [[1, 2], [3]], \"logprobs\": false, "
                 "\"metadata\": {\"a\": \"b\"}}}");
  write_file(root + "/batch_line/continued",
             body +
                 "chat/completions\", \"body\": {\"messages\": [{\"role\": \"developer\", "
                 "\"content\": \"d\"}, {\"role\": \"user\", \"name\": \"n\", \"content\": \"u\"}, "
                 "{\"role\": \"assistant\", \"refusal\": null, \"content\": \"a\"}], "
                 "\"continue_final_message\": true}}");
  const std::string answer =
      "{\"id\":\"batch_req_1\",\"custom_id\":\"a\",\"line\":1,\"response\":{\"status_code\":200},"
      "\"error\":null}\n";
  const std::string error =
      "{\"id\":\"line-2\",\"custom_id\":null,\"line\":2,\"response\":null,\"error\":{\"code\":"
      "\"bad_json\"}}\n";
  write_file(root + "/batch_resume/whole", answer + error);
  write_file(root + "/batch_resume/torn", answer + error.substr(0, 40));
  write_file(root + "/batch_resume/zeros", error + std::string(8, '\0'));
  return 0;
}
