// riffle info: facts of a model, and what running it would take.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>

#include "cli/common.h"
#include "cli/measure.h"
#include "cli/session.h"
#include "cli/settings.h"

namespace riffle::cli {
namespace {

// The settings of the selection that change what running takes.
constexpr const char* kPlanned[] = {"selection.selector",      "selection.rank",
                                    "selection.microbatch",    "selection.sink_blocks",
                                    "selection.recent_blocks", "selection.select_tokens",
                                    "selection.init_tokens",   "selection.local_tokens"};

struct InfoOptions {
  CommonOptions common;
  bool plan = false;
  std::string shape, weights = "q8_0";  // shape "": a model file
  std::string file;                     // a session's; "": none
};

Json info_json(const riffle_model_info& i) {
  Json types = Json::array();
  for (size_t t = 0; t < i.n_weight_types; ++t)
    types.push_back({{"type", i.weight_types[t].type},
                     {"n_params", i.weight_types[t].n_params},
                     {"bytes", i.weight_types[t].bytes}});
  return {
      {"name", i.name},
      {"architecture", i.architecture},
      {"format", i.format},
      {"weight_type", i.weight_type},
      {"weight_types", types},
      {"text_part", i.text_part},
      {"n_params", i.n_params},
      {"weight_bytes", i.weight_bytes},
      {"dim", i.dim},
      {"hidden_dim", i.hidden_dim},
      {"n_experts", i.n_experts},
      {"n_experts_used", i.n_experts_used},
      {"n_expert_layers", i.n_expert_layers},
      {"expert_dim", i.expert_dim},
      {"expert_params", i.expert_params},
      {"expert_bytes", i.expert_bytes},
      {"head_dim", i.head_dim},
      {"n_layers", i.n_layers},
      {"n_heads", i.n_heads},
      {"n_kv_heads", i.n_kv_heads},
      {"vocab_size", i.vocab_size},
      {"n_ctx_train", i.n_ctx_train},
      {"rope_theta", number(i.rope_theta)},
      {"rope_scaling", i.rope_scaling},
      {"sliding_window", i.sliding_window},
      {"n_window_layers", i.n_window_layers},
      {"qk_norm", i.qk_norm},
      {"attention_sinks", i.attention_sinks},
      {"attention_gate", i.attention_gate},
      {"logit_softcap", number(i.logit_softcap)},
      {"norm_eps", number(i.norm_eps)},
      {"tied_output", i.tied_output},
      {"bos_id", i.bos_id},
      {"eos_id", i.eos_id},
      {"chat_template", i.chat_template},
      {"chat_template_name", *i.chat_template_name ? Json(i.chat_template_name) : Json(nullptr)}};
}

Json plan_json(const riffle_plan& p, riffle_status status, const std::string& error) {
  return {{"device", p.device},
          {"device_note", p.device_note},
          {"isa", p.isa},
          {"n_ctx", p.n_ctx},
          {"context_note", p.context_note},
          {"threads", p.n_threads},
          {"block_size", p.block_size},
          {"weights", p.weights},
          {"cpu_experts", p.cpu_experts},
          {"host_experts", p.host_experts},
          {"activations", p.activations},
          {"digests", p.digests},
          {"prefill_kv", p.prefill_kv},
          {"prompt", p.prompt},
          {"lent", p.lent},
          {"prompt_host", p.prompt_host},
          {"pool", p.pool},
          {"total", p.total},
          {"host_kv", p.host_kv},
          {"host_memory", p.host_memory},
          {"selector", selector_name(p.selector)},
          {"everything_below", p.everything_below},
          {"selector_note", p.selector_note},
          {"selector_state", p.selector_state},
          {"slots", p.slots},
          {"min_slots", p.min_slots},
          {"slot_bytes", p.slot_bytes},
          {"min_gpu_mem", p.min_gpu_mem},
          {"fits", status == RIFFLE_OK},
          {"error", status == RIFFLE_OK ? Json(nullptr) : Json(error)}};
}

// Parameters that a token uses: all but those of the experts that it is not sent to.
double token_params(const riffle_model_info& i) {
  return static_cast<double>(i.n_params) -
         static_cast<double>(i.expert_params) * (1 - 1.0 * i.n_experts_used / i.n_experts);
}

// "Q4_K 61%, Q6_K 39%": shares of the matrices' bytes. A share below half a percent is left out.
std::string types_text(const riffle_model_info& i) {
  double total = 0;
  for (size_t t = 0; t < i.n_weight_types; ++t)
    total += static_cast<double>(i.weight_types[t].bytes);
  std::string text;
  for (size_t t = 0; t < i.n_weight_types; ++t) {
    const double percent = 100 * static_cast<double>(i.weight_types[t].bytes) / total;
    if (percent < 0.5) continue;
    if (t > 0) text += ", ";
    text += i.weight_types[t].type;
    if (percent < 99.5) text += text_of(" %.0f%%", percent);
  }
  return text;
}

// " in 24 of 48 layers"; "" for all layers.
std::string in_layers(int n, const riffle_model_info& i) {
  return n == i.n_layers ? "" : text_of(" in %d of %d layers", n, i.n_layers);
}

// How a model's text becomes tokens, as its vocabulary shows it.
struct TokenizerFacts {
  const char* kind = "none";  // its pieces mark a space as sentencepiece does, or as GPT-2's bytes
  int n_pieces = 0;
  std::vector<int32_t> end_ids;  // the tokens that end an answer
};

TokenizerFacts tokenizer_of(const riffle_model* model, const riffle_model_info& i) {
  constexpr const char *kSentencepiece = "\xE2\x96\x81",
                       *kByteLevel = "\xC4\xA0";  // U+2581, U+0120
  TokenizerFacts facts;
  int sentencepiece = 0, byte_level = 0;
  for (int32_t token = 0; token < i.vocab_size; ++token) {
    const char* const piece = riffle_token_piece(model, token);
    if (!piece) continue;
    ++facts.n_pieces;
    if (riffle_is_end_token(model, token)) facts.end_ids.push_back(token);
    sentencepiece += std::string_view(piece).starts_with(kSentencepiece);
    byte_level += std::string_view(piece).starts_with(kByteLevel);
  }
  if (facts.n_pieces)
    facts.kind = sentencepiece > byte_level ? "sentencepiece"
                 : byte_level > 0           ? "byte-level BPE"
                                            : "unmarked spaces";
  return facts;
}

// "sentencepiece, 8192 pieces; BOS <s> (1), EOS </s> (2)"
std::string tokenizer_text(const riffle_model* model, const riffle_model_info& i) {
  const TokenizerFacts facts = tokenizer_of(model, i);
  if (!facts.n_pieces) return facts.kind;
  std::string text = text_of("%s, %d pieces", facts.kind, facts.n_pieces);
  const std::pair<const char*, int32_t> tokens[] = {{"; BOS", i.bos_id}, {", EOS", i.eos_id}};
  for (const auto& [name, id] : tokens)
    if (const char* const piece = id < 0 ? nullptr : riffle_token_piece(model, id))
      text += text_of("%s %s (%d)", name, piece, id);
  return text;
}

// What attention has beyond products and softmax.
std::string attention_text(const riffle_model_info& i) {
  std::vector<std::string> parts;
  const std::string norm = i.qk_norm;
  if (norm == "head") parts.push_back("norms of q and k in each head");
  if (norm == "whole") parts.push_back("norms of q and k over all heads");
  if (i.attention_sinks) parts.push_back("sinks");
  if (i.attention_gate) parts.push_back("output gate");
  return joined(parts);
}

void print_info(const riffle_model* model, const std::string& path, const std::string& gpu) {
  const riffle_model_info i = model_info(model);
  const auto count = [](long long v) { return std::to_string(v); };
  Table t({"model", path});
  t.add({"name", *i.name ? i.name : "-"});
  t.add({"format", text_of("%s, %s", i.format, i.architecture)});
  t.add({"parameters", text_of("%.1f M", static_cast<double>(i.n_params) / 1e6)});
  t.add({"weights", text_of("%s, %s", human_bytes(static_cast<double>(i.weight_bytes)).c_str(),
                            types_text(i).c_str())});
  if (i.text_part) t.add({"images", "not read: riffle runs the text part of this model"});
  t.add({"layers", count(i.n_layers)});
  t.add({"width", text_of("%d, feed-forward %d", i.dim, i.hidden_dim)});
  if (i.n_experts > 0)
    t.add({"experts",
           text_of("%d a layer%s, width %d; a token uses %d of them and %.1f M of the parameters",
                   i.n_experts, in_layers(i.n_expert_layers, i).c_str(), i.expert_dim,
                   i.n_experts_used, token_params(i) / 1e6)});
  t.add({"heads", text_of("%d of %d, KV heads %d", i.n_heads, i.head_dim, i.n_kv_heads)});
  if (const std::string more = attention_text(i); !more.empty()) t.add({"attention", more});
  if (i.logit_softcap > 0) t.add({"logit soft cap", text_of("%g", i.logit_softcap)});
  t.add(
      {"vocabulary", text_of("%d, output %s", i.vocab_size, i.tied_output ? "tied" : "separate")});
  t.add({"tokenizer", tokenizer_text(model, i)});
  t.add({"trained length", count(i.n_ctx_train)});
  t.add({"RoPE base", text_of("%g", i.rope_theta)});
  if (std::string(i.rope_scaling) != "none") t.add({"RoPE scaling", i.rope_scaling});
  if (i.sliding_window > 0)
    t.add({"sliding window",
           text_of("%d tokens%s", i.sliding_window, in_layers(i.n_window_layers, i).c_str())});
  t.add({"chat template", *i.chat_template_name ? i.chat_template_name
                          : *i.chat_template    ? "cannot be evaluated"
                                                : "none"});
  if (!gpu.empty()) t.add({"GPU", gpu});
  t.print_left();
}

// What a prompt takes beside its KV, and from where.
std::string prompt_text(const riffle_plan& p) {
  const auto bytes = [](uint64_t v) { return human_bytes(static_cast<double>(v)); };
  std::string text = bytes(p.prompt);
  if (p.lent) text += text_of("; the pool lends %s while it is read", bytes(p.lent).c_str());
  if (p.prompt_host) text += text_of("; up to %s in host memory", bytes(p.prompt_host).c_str());
  return text;
}

void print_plan(const riffle_plan& p) {
  const auto bytes = [](uint64_t v) { return human_bytes(static_cast<double>(v)); };
  Table t({"memory plan", text_of("%s (%s, %d threads), %d tokens in blocks of %d", p.device, p.isa,
                                  p.n_threads, p.n_ctx, p.block_size)});
  if (*p.device_note) t.add({p.device == std::string("cuda") ? "GPU" : "no GPU", p.device_note});
  if (*p.context_note) t.add({"context", p.context_note});
  const std::string note = p.selector_note, prefix = "selector ";
  t.add({"selector", note.empty() ? selector_name(p.selector) : note.substr(prefix.size())});
  t.add({"weights", bytes(p.weights)});
  if (p.cpu_experts > 0)
    t.add({"experts", text_of("of %d layers in host memory, %s", p.cpu_experts,
                              bytes(p.host_experts).c_str())});
  t.add({"activations", bytes(p.activations)});
  t.add({"digests", bytes(p.digests)});
  t.add({"prefill KV", bytes(p.prefill_kv)});
  if (p.prompt) t.add({"a prompt", prompt_text(p)});
  t.add({"pool", p.slots ? text_of("%s: %lld slots of %s, at least %lld", bytes(p.pool).c_str(),
                                   static_cast<long long>(p.slots), bytes(p.slot_bytes).c_str(),
                                   static_cast<long long>(p.min_slots))
                         : "none"});
  t.add({"total",
         bytes(p.total) + (p.min_gpu_mem ? text_of(", smallest --gpu-mem for %d tokens ", p.n_ctx) +
                                               least_size(p.min_gpu_mem)
                                         : "")});
  t.add({"host KV", text_of("%s for a full session, of %s of memory", bytes(p.host_kv).c_str(),
                            bytes(p.host_memory).c_str())});
  t.add({"selector state", p.selector_state
                               ? bytes(p.selector_state) + " in host memory for a full session"
                               : "none"});
  if (p.device != std::string("cuda"))
    t.add({"with a full session",
           bytes(p.total + p.host_kv + p.selector_state) + ", all in host memory"});
  t.print_left();
}

// The GPU that device auto uses, or why it uses none; "" where riffle has no support for GPUs.
std::string gpu_text(riffle_model* model, const riffle_context_options& options) {
  riffle_plan plan{};
  plan.struct_size = sizeof plan;
  riffle_context_options o = options;
  o.device = RIFFLE_DEVICE_AUTO;
  riffle_plan_memory(model, &o, &plan, nullptr, 0);  // a plan that does not fit has the note too
  return plan.device_note;
}

// What running takes, and whether that fits: RIFFLE_OK, RIFFLE_OUT_OF_MEMORY or RIFFLE_NO_SLOT,
// with the plan filled in. Throws Exit for other errors.
struct Planned {
  riffle_plan plan{};
  riffle_status status = RIFFLE_OK;
  std::string error;
};

Planned plan_for(riffle_model* model, const riffle_context_options& options) {
  Planned p;
  p.plan.struct_size = sizeof p.plan;
  char err[1024] = "";
  p.status = riffle_plan_memory(model, &options, &p.plan, err, sizeof err);
  p.error = err;
  if (p.status != RIFFLE_OK && p.status != RIFFLE_OUT_OF_MEMORY && p.status != RIFFLE_NO_SLOT)
    throw Exit(p.status == RIFFLE_BAD_ARGUMENT ? EXIT_USAGE : exit_code_of(p.status), p.error);
  return p;
}

const char* kv_name(riffle_kv_type type) {
  return type == RIFFLE_KV_F16 ? "f16" : type == RIFFLE_KV_Q8 ? "q8" : "f32";
}

int session_info(const InfoOptions& o) {
  const SessionFile file(o.file);
  const riffle_session_file_info i = file.info();
  // Other programs' files, and those of batch --prefix-cache, have a session alone.
  const bool has_text = file.has_text();
  const SavedText text = has_text ? file.text() : SavedText{};
  if (o.common.json) {
    print_json({{"path", o.file},
                {"kind", !has_text   ? "session"
                         : text.chat ? "chat"
                                     : "document"},
                {"model", i.model},
                {"architecture", i.architecture},
                {"n_tokens", i.n_tokens},
                {"n_layers", i.n_layers},
                {"n_kv_heads", i.n_kv_heads},
                {"head_dim", i.head_dim},
                {"vocab_size", i.vocab_size},
                {"kv", kv_name(i.kv_type)},
                {"block", i.block_size},
                {"state", i.state},
                {"messages", text.messages.size()},
                {"document_bytes", text.document.size()},
                {"file_bytes", i.file_bytes},
                {"kv_bytes", i.kv_bytes},
                {"created", i.created},
                {"saved", i.saved},
                {"saves", i.saves},
                {"newest_damaged", i.newest_damaged},
                {"version", riffle_version()}});
    return EXIT_OK;
  }
  Table t({"session", o.file});
  t.add({"holds", file.holds()});
  t.add({"tokens", std::to_string(i.n_tokens)});
  t.add({"model", text_of("%s, %s", *i.model ? i.model : "-", i.architecture)});
  t.add({"KV", text_of("%s in blocks of %d tokens, %s", kv_name(i.kv_type), i.block_size,
                       human_bytes(static_cast<double>(i.kv_bytes)).c_str())});
  if (*i.state) t.add({"learnt scores", i.state});
  t.add({"file", human_bytes(static_cast<double>(i.file_bytes))});
  t.add({"first saved", date_text(i.created)});
  t.add({"last saved", text_of("%s, save %llu", date_text(i.saved).c_str(),
                               static_cast<unsigned long long>(i.saves))});
  if (i.newest_damaged) t.add({"damaged", "the newest save; this is the one before"});
  t.print_left();
  return EXIT_OK;
}

int info_main(InfoOptions& o) {
  if (!o.file.empty()) return session_info(o);

  const bool is_file = o.shape.empty();
  std::string name = o.common.model_path;
  const Model model = is_file ? load_model(o.common) : shape_model(o.shape, o.weights, name);
  const riffle_model_info info = model_info(model.get());
  std::optional<Planned> planned;
  if (o.plan) planned = plan_for(model.get(), o.common.context);
  if (o.common.json) {
    Json out = {{"path", is_file ? Json(o.common.model_path) : Json(nullptr)}};
    out.update(info_json(info));
    const TokenizerFacts tokenizer = tokenizer_of(model.get(), info);
    out["tokenizer"] = {
        {"kind", tokenizer.kind}, {"n_pieces", tokenizer.n_pieces}, {"end_ids", tokenizer.end_ids}};
    if (planned) out["plan"] = plan_json(planned->plan, planned->status, planned->error);
    out["version"] = riffle_version();
    print_json(out);
  } else {
    print_info(model.get(), name, planned ? "" : gpu_text(model.get(), o.common.context));
    if (planned) write_out("\n");
    if (planned) print_plan(planned->plan);
  }
  if (planned && planned->status != RIFFLE_OK) throw Exit(EXIT_MEMORY, planned->error);
  return EXIT_OK;
}

void add_shape_flags(CLI::App& sub, InfoOptions& o) {
  CLI::Option* shape =
      sub.add_option(
             "--shape", o.shape,
             "plan for the shape of a known model, without its file; bench --help-all lists them")
          ->type_name("NAME")
          ->excludes("--model");
  sub.add_option("--weights", o.weights,
                 "type of the shape's weights: q8_0, q6_k, q5_k, q4_k, q5_1, q5_0, q4_1, q4_0, "
                 "bf16, f16, f32")
      ->type_name("TYPE")
      ->needs(shape)
      ->capture_default_str();
}

}  // namespace

void add_info(CLI::App& app, Command& chosen) {
  auto o = std::make_shared<InfoOptions>();
  CLI::App* sub = app.add_subcommand(
      "info", "Facts of a model and, with --plan, the memory that running it takes");
  add_common_flags(*sub, o->common, CONTEXT_FLAGS | JSON_FLAG);
  for (const riffle_setting* s : settings_of(RIFFLE_OPTIONS_SELECTION))
    if (std::find(std::begin(kPlanned), std::end(kPlanned), std::string_view(s->id)) !=
        std::end(kPlanned))
      add_selection_flag(*sub, *s, o->common);
  sub->add_option("file", o->file, "file of a session: show its contents, without a model")
      ->type_name("FILE");
  sub->add_flag("--plan", o->plan,
                "print the memory that running with these flags takes; nothing is allocated");
  if (has_shapes()) add_shape_flags(*sub, *o);
  sub->final_callback([o, &chosen] { chosen = [o] { return info_main(*o); }; });
}

}  // namespace riffle::cli
