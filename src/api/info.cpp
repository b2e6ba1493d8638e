// riffle.h: facts by name.
#include "api/info.h"

#include <algorithm>
#include <cmath>

#include "api/options.h"
#include "chat/chat_template.h"
#include "model/recurrence.h"
#include "model/rope.h"
#include "model/weights.h"
#include "quantize/weight_mix.h"

using namespace riffle;

const riffle_info::Fact* riffle_info::find(std::string_view name) const {
  const auto at =
      std::find_if(facts.begin(), facts.end(), [&](const Fact& f) { return f.name == name; });
  return at == facts.end() ? nullptr : &*at;
}

namespace riffle {
namespace {

struct WeightShare {
  const char* type = "";
  uint64_t n_params = 0, bytes = 0;
};

// Returns the size of the matrices in each type of weights, the one with most bytes first.
std::vector<WeightShare> weight_shares(Model& model) {
  std::vector<WeightShare> shares(kNumDTypes);
  for (const NamedTensor& t : named_tensors(model)) {
    if (t.role == NamedTensor::VECTOR) continue;
    WeightShare& share = shares[static_cast<int>(t.tensor->type)];
    share.type = dtype_info(t.tensor->type).name;
    share.n_params += static_cast<uint64_t>(t.tensor->rows * t.tensor->cols);
    share.bytes += static_cast<uint64_t>(t.tensor->bytes());
  }
  std::erase_if(shares, [](const WeightShare& s) { return s.bytes == 0; });
  std::stable_sort(shares.begin(), shares.end(),
                   [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  return shares;
}

void add_experts(const Model& m, riffle_info& info) {
  const Config& c = m.config;
  info.add("n_experts", c.experts.n);
  info.add("n_experts_used", c.experts.n_used);
  info.add("expert_dim", c.experts.hidden_dim);
  info.add("n_expert_layers",
           std::count_if(c.layers.begin(), c.layers.end(),
                         [](const LayerConfig& layer) { return layer.has_experts; }));
  uint64_t params = 0, bytes = 0;
  for (const LayerWeights& layer : m.weights.layers)
    for (const ExpertWeights& expert : layer.experts)
      for (const Tensor* t : {&expert.w1, &expert.w3, &expert.w2}) {
        params += static_cast<uint64_t>(t->rows * t->cols);
        bytes += static_cast<uint64_t>(t->bytes());
      }
  info.add("expert_params", params);
  info.add("expert_bytes", bytes);
}

void add_chat(const Model& m, riffle_info& info) {
  info.add("chat_template", m.chat_template);
  info.add("chat_template_name", m.chat ? m.chat->name() : "");
  info.add("chat_thinking", m.chat && m.chat->knows_thinking());
  info.add("chat_effort", m.chat && m.chat->knows_effort());
  info.add("reasoning_begin", m.chat ? m.chat->reasoning_marks().begin : "");
  info.add("reasoning_end", m.chat ? m.chat->reasoning_marks().end : "");
}

// "psa|topk": the words of these bits; "" in a build without the setting.
std::string words_of(uint32_t bits, const char* id) {
  const Setting* const setting = find_setting(id);
  const std::string words = setting ? setting->words : "";
  std::string out;
  size_t begin = 0;
  for (int i = 0; begin <= words.size(); ++i) {
    const size_t end = std::min(words.find('|', begin), words.size());
    if (bits >> i & 1) out += (out.empty() ? "" : "|") + words.substr(begin, end - begin);
    begin = end + 1;
  }
  return out;
}

const char* type_of(const Setting& s) {
  if (s.type == MemberType::TEXT) return "text";
  if (*s.words) return s.words[0] >= '0' && s.words[0] <= '9' ? "integer" : "word";
  switch (s.type) {
    case MemberType::BOOL: return "switch";
    case MemberType::SIZE: return "size";
    case MemberType::FLOAT: return "number";
    default: return "integer";
  }
}

const char* kind_of(OptionsKind kind) {
  switch (kind) {
    case OptionsKind::MODEL: return "model";
    case OptionsKind::CONTEXT: return "context";
    case OptionsKind::SELECTION: return "selection";
    case OptionsKind::SCHEDULER: return "scheduler";
    case OptionsKind::SAMPLING: return "sampling";
    case OptionsKind::ANSWER: return "answer";
    case OptionsKind::CHAT: return "chat";
    case OptionsKind::QUANTIZE: break;
  }
  return "quantize";
}

}  // namespace

riffle_info facts_of(Model& m) {
  riffle_info info;
  const Config& c = m.config;
  info.add("name", c.name);
  info.add("architecture", c.architecture);
  info.add("format", m.format);
  info.add("dim", c.dim);
  info.add("hidden_dim", c.hidden_dim);
  const auto first = [&](bool windowed) {
    for (int l = 0; l < c.n_layers; ++l)
      if (c.attends(l) && (c.layers[l].window > 0) == windowed) return l;
    return -1;
  };
  // The heads are those of layers without a window, if there are any. Layers with a window get
  // facts of their own if their heads differ.
  const int whole = first(false) >= 0 ? first(false) : first(true), windowed = first(true);
  info.add("head_dim", whole < 0 ? c.head_dim : c.head_size(whole));
  info.add("n_layers", c.n_layers);
  info.add("n_heads", whole < 0 ? c.n_heads : c.heads(whole));
  info.add("n_kv_heads", whole < 0 ? c.n_kv_heads : c.kv_heads(whole));
  const bool uneven = windowed >= 0 && (c.heads(windowed) != c.heads(whole) ||
                                        c.kv_heads(windowed) != c.kv_heads(whole) ||
                                        c.head_size(windowed) != c.head_size(whole));
  info.add("window_head_dim", uneven ? c.head_size(windowed) : 0);
  info.add("window_n_heads", uneven ? c.heads(windowed) : 0);
  info.add("window_n_kv_heads", uneven ? c.kv_heads(windowed) : 0);
  info.add("latent_dim", c.latent.kv_rank);
  info.add("vocab_size", c.vocab_size);
  info.add("n_ctx_train", c.n_ctx);
  info.add("rope_theta", c.ropes[0].theta);
  info.add("rope_scaling", rope_scaling_text(c.ropes[0].scaling));
  info.add("norm_eps", c.layer_norm_eps > 0 ? c.layer_norm_eps : c.norm_eps);
  info.add("qk_norm", c.qk_norm == QkNorm::NONE   ? "none"
                      : c.qk_norm == QkNorm::HEAD ? "head"
                                                  : "whole");
  info.add("tied_output", c.tied_output);
  info.add("logit_softcap", c.logit_softcap);
  info.add("attention_sinks", c.sinks);
  info.add("attention_gate", c.attention_gate || c.query_gate);
  info.add("bos_id", c.bos_id);
  info.add("eos_id", c.eos_id);
  info.add("n_params", m.n_params);
  info.add("weight_bytes", m.weight_bytes);
  const std::vector<WeightShare> shares = weight_shares(m);
  info.add("weight_type", shares.empty() ? "" : shares[0].type);
  info.add("n_weight_types", shares.size());
  for (size_t i = 0; i < shares.size(); ++i) {
    const std::string number = std::to_string(i);
    info.add("weight_type_" + number, shares[i].type);
    info.add("weight_params_" + number, shares[i].n_params);
    info.add("weight_bytes_" + number, shares[i].bytes);
  }
  int32_t window = 0, n_windows = 0;
  for (const LayerConfig& layer : c.layers) {
    window = std::max(window, layer.window);
    n_windows += layer.window > 0;
  }
  info.add("sliding_window", window);
  info.add("n_window_layers", n_windows);
  const auto recurrent = std::ranges::count(c.layers, Mixer::RECURRENT, &LayerConfig::mixer);
  info.add("n_recurrent_layers", recurrent);
  info.add("state_bytes", recurrent * recurrent_state(c) * int64_t{sizeof(float)});
  add_experts(m, info);
  info.add("mtp", c.draft_head);
  info.add("text_part", c.text_part);
  add_chat(m, info);
  return info;
}

static const char* use_name(MemoryUse use) {
  switch (use) {
    case MemoryUse::ACTIVATIONS: return "activations";
    case MemoryUse::DIGESTS: return "digests";
    case MemoryUse::PROMPT: return "prompt";
    case MemoryUse::PREFILL_KV: break;
  }
  return "prefill_kv";
}

riffle_info facts_of(const MemoryPlan& p) {
  riffle_info info;
  info.add("weights", p.weights);
  info.add("activations", p.activations);
  info.add("digests", p.digests);
  info.add("prefill_kv", p.prefill_kv);
  info.add("pool", p.pool);
  info.add("prompt", p.prompt);
  info.add("lent", p.lent);
  info.add("total", p.total);
  info.add("prompt_host", p.prompt_host);
  info.add("host_kv", p.host_kv);
  info.add("host_states", p.host_states);
  info.add("host_drafts", p.host_drafts);
  info.add("selector_state", p.selector_state);
  info.add("slots", p.slots);
  info.add("min_slots", p.min_slots);
  info.add("slot_bytes", p.slot_bytes);
  info.add("min_gpu_mem", p.min_gpu_mem);
  info.add("cpu_experts", p.cpu_experts);
  info.add("host_experts", p.host_experts);
  info.add("host_memory", p.host_memory);
  info.add("n_ctx", p.n_ctx);
  info.add("n_threads", p.n_threads);
  info.add("block_size", p.block_size);
  info.add("device", p.device);
  info.add("isa", p.isa);
  info.add("device_note", p.device_note);
  info.add("device_memory", p.device_memory);
  info.add("integrated", p.integrated);
  info.add("no_driver", p.no_driver);
  info.add("context_note", p.context_note);
  info.add("everything_below", p.everything_below);
  Selection planned;
  planned.selector = p.selector;
  info.add("selector", setting_text(*find_setting("selection.selector"), &planned));
  info.add("selector_note", p.selector_note);
  info.add("usual_sessions", p.usual_sessions);
  info.add("shared_host_mem", p.shared_host_mem);
  for (const MemoryItem& item : p.buffers)
    info.add(std::string(use_name(item.use)) + "/" + item.name, item.bytes);
  return info;
}

riffle_info facts_of(const Stats& s) {
  riffle_info info;
  info.add("prefill_tokens", s.prefill_tokens);
  info.add("decode_tokens", s.decode_tokens);
  info.add("decode_steps", s.decode_steps);
  info.add("lookup_proposed", s.lookup_proposed);
  info.add("lookup_accepted", s.lookup_accepted);
  info.add("prefill_seconds", s.prefill_seconds);
  info.add("prefill_tiles_seen", s.prefill_tiles_seen);
  info.add("prefill_tiles_read", s.prefill_tiles_read);
  info.add("decode_seconds", s.decode_seconds);
  info.add("kv_blocks_total", s.kv_blocks_total);
  info.add("kv_blocks_read", s.kv_blocks_read);
  info.add("kv_tokens_total", s.kv_tokens_total);
  info.add("kv_tokens_read", s.kv_tokens_read);
  info.add("kv_bytes_read", s.kv_bytes_read);
  info.add("index_bytes_read", s.index_bytes_read);
  info.add("cached_selections", s.cached_selections);
  info.add("selections", s.selections);
  info.add("index_bytes", s.index_bytes);
  info.add("pool_lookups", s.pool_lookups);
  info.add("pool_hits", s.pool_hits);
  info.add("loaded_bytes", s.loaded_bytes);
  info.add("flushed_bytes", s.flushed_bytes);
  info.add("evictions", s.evictions);
  info.add("host_kv_bytes", s.host_kv_bytes);
  info.add("peak_rss_bytes", s.peak_rss_bytes);
  info.add("pool_slots", s.pool_slots);
  info.add("host_syncs", s.host_syncs);
  info.add("device_bytes", s.device_bytes);
  info.add("peak_device_bytes", s.peak_device_bytes);
  info.add("pinned_bytes", s.pinned_bytes);
  return info;
}

riffle_info facts_of(const Iteration& it) {
  riffle_info info;
  info.add("n_waiting", it.n_waiting);
  info.add("n_prefilling", it.n_prefilling);
  info.add("n_decoding", it.n_decoding);
  info.add("decode_rows", it.decode_rows);
  info.add("skipped", it.skipped);
  info.add("prefill_token_layers", it.prefill_token_layers);
  info.add("prefill_pairs", it.prefill_pairs);
  info.add("prefill_kv_blocks", it.prefill_kv_blocks);
  info.add("prefill_request", it.prefill_request);
  info.add("prefill_share", it.prefill_share);
  info.add("working_set", it.working_set);
  info.add("available", it.available);
  info.add("blocks_loaded", it.blocks_loaded);
  info.add("blocks_read", it.blocks_read);
  info.add("seconds", it.seconds);
  info.add("decode_seconds", it.decode_seconds);
  return info;
}

riffle_info facts_of(const RequestEnd& end) {
  riffle_info info = facts_of(end.stats);
  info.add("error", end.error);
  info.add("finish", static_cast<int>(end.result.finish));
  info.add("n_tokens", end.result.n_tokens);
  info.add("prompt_tokens", end.prompt_tokens);
  info.add("reused_tokens", end.reused_tokens);
  info.add("loaded_tokens", end.loaded_tokens);
  return info;
}

riffle_info facts_of(const SessionFile& file) {
  riffle_info info;
  const SessionContent& c = file.content();
  info.add("model", c.origin.model);
  info.add("architecture", c.origin.architecture);
  info.add("n_tokens", c.tokens.size());
  info.add("n_layers", c.origin.layers.size());
  const LayerShape& layer = c.origin.layers[c.origin.shape().first_with_blocks()];
  info.add("n_kv_heads", layer.n_kv_heads);
  info.add("head_dim", layer.head_dim);
  info.add("vocab_size", c.origin.vocab_size);
  info.add("block_size", c.origin.block_size);
  ContextOptions held;
  held.kv_type = static_cast<KvKind>(c.origin.type);
  info.add("kv", setting_text(*find_setting("kv_type"), &held));
  info.add("has_logits", c.logits.bytes > 0);
  info.add("list_positions", c.unrotated);
  info.add("chose_tiles", c.chose_tiles);
  info.add("state", c.state_kind);
  info.add("created", c.created);
  info.add("saved", c.saved);
  info.add("saves", c.generation);
  info.add("newest_damaged", c.newest_damaged);
  info.add("file_bytes", file.size());
  info.add("kv_bytes", c.kv_bytes());
  info.add("n_states", c.states.size());
  info.add("state_bytes", c.state_bytes());
  return info;
}

riffle_info facts_of(const StepTiming& t) {
  riffle_info info;
  info.add("linear", t.linear);
  info.add("attention_score", t.attention_score);
  info.add("attention_rank", t.attention_rank);
  info.add("attention_attend", t.attention_attend);
  info.add("other", t.other);
  info.add("total", t.total);
  info.add("copy_bandwidth", t.copy_bandwidth);
  info.add("link_bandwidth", t.link_bandwidth);
  return info;
}

riffle_info facts_of(const Setting& s) {
  riffle_info info;
  info.add("name", s.name);
  info.add("options", kind_of(s.options));
  info.add("type", type_of(s));
  info.add("default", setting_text(s, riffle_options().part(s.options)));
  info.add("words", s.words);
  info.add("low", s.low);
  info.add("high", s.high);
  info.add("low_open", s.above_low);
  info.add("high_open", s.below_high);
  info.add("range", s.range);
  info.add("expected", expected_of(s));
  info.add("flag", s.flag);
  info.add("group", s.group);
  info.add("help", s.help);
  info.add("json", s.json);
  info.add("spec", s.spec);
  info.add("comparison", s.comparison);
  info.add("selectors", words_of(s.selectors, "selection.selector"));
  info.add("bases", words_of(s.bases, "selection.base"));
  return info;
}

}  // namespace riffle

extern "C" {

const char* riffle_info_name(const riffle_info* info, size_t index) {
  return info && index < info->facts.size() ? info->facts[index].name.c_str() : nullptr;
}

riffle_info_kind riffle_info_kind_of(const riffle_info* info, const char* name) {
  const auto* fact = info && name ? info->find(name) : nullptr;
  return fact ? fact->kind : RIFFLE_INFO_NONE;
}

double riffle_info_number(const riffle_info* info, const char* name) {
  const auto* fact = info && name ? info->find(name) : nullptr;
  return fact && fact->kind != RIFFLE_INFO_TEXT ? fact->number : std::nan("");
}

const char* riffle_info_text(const riffle_info* info, const char* name) {
  const auto* fact = info && name ? info->find(name) : nullptr;
  return fact && fact->kind == RIFFLE_INFO_TEXT ? fact->text.c_str() : nullptr;
}

void riffle_info_free(riffle_info* info) { delete info; }

}  // extern "C"
