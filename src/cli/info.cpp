// riffle info: facts of a model, and the memory that running it would take.
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

// The settings of the selection that change the memory plan.
constexpr const char* kPlanned[] = {"selector",    "rank",          "microbatch",
                                    "sink-blocks", "recent-blocks", "select-tokens",
                                    "init-tokens", "local-tokens"};

struct InfoOptions {
  CommonOptions common;
  bool plan = false;
  std::string shape, weights = "q8_0";  // shape "": a model file
  std::string file;                     // a session's file; "": none
};

struct WeightShare {
  std::string type;
  int64_t n_params = 0, bytes = 0;
};

// Returns the size of the matrices in each type of weights, the one with most bytes first.
std::vector<WeightShare> weight_shares(const Facts& model) {
  std::vector<WeightShare> shares;
  for (int64_t i = 0; i < model.count("n_weight_types"); ++i) {
    const std::string number = std::to_string(i);
    shares.push_back({model.text("weight_type_" + number), model.count("weight_params_" + number),
                      model.count("weight_bytes_" + number)});
  }
  return shares;
}

Json info_json(const Facts& i) {
  Json types = Json::array();
  for (const WeightShare& share : weight_shares(i))
    types.push_back({{"type", share.type}, {"n_params", share.n_params}, {"bytes", share.bytes}});
  return {
      {"name", i.text("name")},
      {"architecture", i.text("architecture")},
      {"format", i.text("format")},
      {"weight_type", i.text("weight_type")},
      {"weight_types", types},
      {"text_part", i.on("text_part")},
      {"mtp", i.on("mtp")},
      {"n_params", i.count("n_params")},
      {"weight_bytes", i.count("weight_bytes")},
      {"dim", i.count("dim")},
      {"hidden_dim", i.count("hidden_dim")},
      {"n_experts", i.count("n_experts")},
      {"n_experts_used", i.count("n_experts_used")},
      {"n_expert_layers", i.count("n_expert_layers")},
      {"expert_dim", i.count("expert_dim")},
      {"expert_params", i.count("expert_params")},
      {"expert_bytes", i.count("expert_bytes")},
      {"head_dim", i.count("head_dim")},
      {"n_layers", i.count("n_layers")},
      {"n_heads", i.count("n_heads")},
      {"n_kv_heads", i.count("n_kv_heads")},
      {"window_head_dim", i.count("window_head_dim")},
      {"window_n_heads", i.count("window_n_heads")},
      {"window_n_kv_heads", i.count("window_n_kv_heads")},
      {"latent_dim", i.count("latent_dim")},
      {"vocab_size", i.count("vocab_size")},
      {"n_ctx_train", i.count("n_ctx_train")},
      {"rope_theta", number(static_cast<float>(i.number("rope_theta")))},
      {"rope_scaling", i.text("rope_scaling")},
      {"sliding_window", i.count("sliding_window")},
      {"n_window_layers", i.count("n_window_layers")},
      {"n_recurrent_layers", i.count("n_recurrent_layers")},
      {"state_bytes", i.count("state_bytes")},
      {"qk_norm", i.text("qk_norm")},
      {"attention_sinks", i.on("attention_sinks")},
      {"attention_gate", i.on("attention_gate")},
      {"logit_softcap", number(static_cast<float>(i.number("logit_softcap")))},
      {"norm_eps", number(static_cast<float>(i.number("norm_eps")))},
      {"tied_output", i.on("tied_output")},
      {"bos_id", i.count("bos_id")},
      {"eos_id", i.count("eos_id")},
      {"chat_template", i.text("chat_template")},
      {"chat_template_name",
       i.text("chat_template_name").empty() ? Json(nullptr) : Json(i.text("chat_template_name"))}};
}

// Returns the buffers of the plan's sums, in bytes: {"activations": {"RoPE tables": 33554432, ...},
// ...}.
Json buffers_json(const Facts& p) {
  Json sums = Json::object();
  for (const char* sum : {"activations", "digests", "prompt", "prefill_kv"}) {
    Json buffers = Json::object();
    for (const auto& [name, bytes] : p.under(sum)) buffers[name] = static_cast<int64_t>(bytes);
    sums[sum] = buffers;
  }
  return sums;
}

Json plan_json(const Facts& p, riffle_status status, const std::string& error) {
  return {{"device", p.text("device")},
          {"device_note", p.text("device_note")},
          {"isa", p.text("isa")},
          {"n_ctx", p.count("n_ctx")},
          {"context_note", p.text("context_note")},
          {"threads", p.count("n_threads")},
          {"block_size", p.count("block_size")},
          {"weights", p.count("weights")},
          {"cpu_experts", p.count("cpu_experts")},
          {"host_experts", p.count("host_experts")},
          {"activations", p.count("activations")},
          {"digests", p.count("digests")},
          {"prefill_kv", p.count("prefill_kv")},
          {"prompt", p.count("prompt")},
          {"lent", p.count("lent")},
          {"prompt_host", p.count("prompt_host")},
          {"pool", p.count("pool")},
          {"total", p.count("total")},
          {"host_kv", p.count("host_kv")},
          {"host_states", p.count("host_states")},
          {"host_drafts", p.count("host_drafts")},
          {"host_memory", p.count("host_memory")},
          {"selector", p.text("selector")},
          {"everything_below", p.count("everything_below")},
          {"selector_note", p.text("selector_note")},
          {"selector_state", p.count("selector_state")},
          {"slots", p.count("slots")},
          {"min_slots", p.count("min_slots")},
          {"slot_bytes", p.count("slot_bytes")},
          {"min_gpu_mem", p.count("min_gpu_mem")},
          {"buffers", buffers_json(p)},
          {"fits", status == RIFFLE_OK},
          {"error", status == RIFFLE_OK ? Json(nullptr) : Json(error)}};
}

// Returns the number of parameters that a token uses: all except those of the experts to which it
// is not routed.
double token_params(const Facts& i) {
  return i.number("n_params") -
         i.number("expert_params") * (1 - i.number("n_experts_used") / i.number("n_experts"));
}

// "Q4_K 61%, Q6_K 39%": shares of the matrices' bytes. A share below half a percent is left out.
std::string types_text(const Facts& i) {
  const std::vector<WeightShare> shares = weight_shares(i);
  double total = 0;
  for (const WeightShare& share : shares) total += static_cast<double>(share.bytes);
  std::string text;
  for (const WeightShare& share : shares) {
    const double percent = 100 * static_cast<double>(share.bytes) / total;
    if (percent < 0.5) continue;
    if (&share != shares.data()) text += ", ";
    text += share.type;
    if (percent < 99.5) text += text_of(" %.0f%%", percent);
  }
  return text;
}

// " in 24 of 48 layers"; "" for all layers.
std::string in_layers(int n, const Facts& i) {
  return n == i.id("n_layers") ? "" : text_of(" in %d of %d layers", n, i.id("n_layers"));
}

// Facts about a model's tokenizer, as its vocabulary shows them.
struct TokenizerFacts {
  const char* kind = "none";  // found from the way its pieces mark a space
  int n_pieces = 0;
  std::vector<int32_t> end_ids;  // the tokens that end an answer
};

TokenizerFacts tokenizer_of(const riffle_model* model, const Facts& i) {
  constexpr const char *kSentencepiece = "\xE2\x96\x81",
                       *kByteLevel = "\xC4\xA0";  // U+2581, U+0120
  TokenizerFacts facts;
  int sentencepiece = 0, byte_level = 0;
  for (int32_t token = 0; token < i.id("vocab_size"); ++token) {
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
std::string tokenizer_text(const riffle_model* model, const Facts& i) {
  const TokenizerFacts facts = tokenizer_of(model, i);
  if (!facts.n_pieces) return facts.kind;
  std::string text = text_of("%s, %d pieces", facts.kind, facts.n_pieces);
  const std::pair<const char*, int32_t> tokens[] = {{"; BOS", i.id("bos_id")},
                                                    {", EOS", i.id("eos_id")}};
  for (const auto& [name, id] : tokens)
    if (const char* const piece = id < 0 ? nullptr : riffle_token_piece(model, id))
      text += text_of("%s %s (%d)", name, piece, id);
  return text;
}

// Lists the features that this model's attention has in addition to plain softmax attention.
std::string attention_text(const Facts& i) {
  std::vector<std::string> parts;
  const std::string norm = i.text("qk_norm");
  if (norm == "head") parts.push_back("norms of q and k in each head");
  if (norm == "whole") parts.push_back("norms of q and k over all heads");
  if (i.id("latent_dim") > 0)
    parts.push_back(text_of("multi-head latent: the first %d values of a key are the value",
                            i.id("latent_dim")));
  if (i.on("attention_sinks")) parts.push_back("sinks");
  if (i.on("attention_gate")) parts.push_back("output gate");
  return joined(parts);
}

void print_info(const riffle_model* model, const std::string& path, const std::string& gpu) {
  const Facts i = model_info(model);
  const auto count = [](long long v) { return std::to_string(v); };
  Table t({"model", path});
  t.add({"name", i.text("name").empty() ? "-" : i.text("name")});
  t.add({"format", i.text("format") + ", " + i.text("architecture")});
  t.add({"parameters", text_of("%.1f M", i.number("n_params") / 1e6)});
  t.add({"weights",
         text_of("%s, %s", human_bytes(i.number("weight_bytes")).c_str(), types_text(i).c_str())});
  if (i.on("text_part")) t.add({"images", "not read: riffle runs the text part of this model"});
  t.add({"layers", count(i.id("n_layers"))});
  if (i.on("mtp")) t.add({"MTP layer", "guesses tokens (--draft)"});
  t.add({"width", text_of("%d, feed-forward %d", i.id("dim"), i.id("hidden_dim"))});
  if (i.id("n_experts") > 0)
    t.add({"experts",
           text_of("%d a layer%s, width %d; a token uses %d of them and %.1f M of the parameters",
                   i.id("n_experts"), in_layers(i.id("n_expert_layers"), i).c_str(),
                   i.id("expert_dim"), i.id("n_experts_used"), token_params(i) / 1e6)});
  t.add({"heads",
         text_of("%d of %d, KV heads %d", i.id("n_heads"), i.id("head_dim"), i.id("n_kv_heads")) +
             (i.count("window_head_dim") > 0
                  ? text_of("; layers with a window: %d of %d, KV heads %d", i.id("window_n_heads"),
                            i.id("window_head_dim"), i.id("window_n_kv_heads"))
                  : "")});
  if (const std::string more = attention_text(i); !more.empty()) t.add({"attention", more});
  if (i.number("logit_softcap") > 0)
    t.add({"logit soft cap", text_of("%g", i.number("logit_softcap"))});
  t.add({"vocabulary",
         text_of("%d, output %s", i.id("vocab_size"), i.on("tied_output") ? "tied" : "separate")});
  t.add({"tokenizer", tokenizer_text(model, i)});
  t.add({"trained length", count(i.id("n_ctx_train"))});
  t.add({"RoPE base", text_of("%g", i.number("rope_theta"))});
  if (i.text("rope_scaling") != "none") t.add({"RoPE scaling", i.text("rope_scaling")});
  if (i.id("sliding_window") > 0)
    t.add({"sliding window", text_of("%d tokens%s", i.id("sliding_window"),
                                     in_layers(i.id("n_window_layers"), i).c_str())});
  if (i.id("n_recurrent_layers") > 0)
    t.add({"recurrent state", text_of("%s%s", human_bytes(i.number("state_bytes")).c_str(),
                                      in_layers(i.id("n_recurrent_layers"), i).c_str())});
  const std::string name = i.text("chat_template_name");
  t.add({"chat template", !name.empty()                      ? name
                          : !i.text("chat_template").empty() ? "cannot be evaluated"
                                                             : "none"});
  if (!gpu.empty()) t.add({"GPU", gpu});
  t.print_left();
}

// "62.3 MiB (RoPE tables 32.0 MiB, FFN 12.0 MiB)": a sum of the plan, with its largest buffers.
std::string sum_text(const Facts& p, const char* name) {
  constexpr double kLeastShare = 0.05;
  const double sum = p.number(name);
  std::string parts;
  for (const auto& [buffer, bytes] : p.under(name))
    if (bytes >= kLeastShare * sum && bytes > 0)
      parts += (parts.empty() ? "" : ", ") + buffer + " " + human_bytes(bytes);
  return human_bytes(sum) + (parts.empty() ? "" : " (" + parts + ")");
}

// Returns the memory of a prompt besides its KV, and where it comes from.
std::string prompt_text(const Facts& p) {
  const auto bytes = [&](const char* name) { return human_bytes(p.number(name)); };
  std::string text = sum_text(p, "prompt");
  if (p.count("lent"))
    text += text_of("; the pool lends %s while it is read", bytes("lent").c_str());
  if (p.count("prompt_host"))
    text += text_of("; up to %s in host memory", bytes("prompt_host").c_str());
  return text;
}

void print_plan(const Facts& p) {
  const auto bytes = [&](const char* name) { return human_bytes(p.number(name)); };
  Table t({"memory plan",
           text_of("%s (%s, %d threads), %d tokens in blocks of %d", p.text("device").c_str(),
                   p.text("isa").c_str(), p.id("n_threads"), p.id("n_ctx"), p.id("block_size"))});
  if (!p.text("device_note").empty())
    t.add({p.on("device_memory") ? "GPU" : "no GPU", p.text("device_note")});
  if (!p.text("context_note").empty()) t.add({"context", p.text("context_note")});
  const std::string note = p.text("selector_note"), prefix = "selector ";
  t.add({"selector", note.empty() ? p.text("selector") : note.substr(prefix.size())});
  t.add({"weights", bytes("weights")});
  if (p.count("cpu_experts") > 0)
    t.add({"experts", text_of("of %d layers in host memory, %s", p.id("cpu_experts"),
                              bytes("host_experts").c_str())});
  t.add({"activations", sum_text(p, "activations")});
  t.add({"digests", sum_text(p, "digests")});
  t.add({"prefill KV", bytes("prefill_kv")});
  if (p.count("prompt")) t.add({"a prompt", prompt_text(p)});
  t.add(
      {"pool", p.count("slots")
                   ? text_of("%s: %lld slots of %s, at least %lld", bytes("pool").c_str(),
                             static_cast<long long>(p.count("slots")), bytes("slot_bytes").c_str(),
                             static_cast<long long>(p.count("min_slots")))
                   : "none"});
  t.add({"total",
         bytes("total") + (p.count("min_gpu_mem")
                               ? text_of(", smallest --gpu-mem for %d tokens ", p.id("n_ctx")) +
                                     least_size(static_cast<uint64_t>(p.count("min_gpu_mem")))
                               : "")});
  const std::string states =
      p.count("host_states") ? text_of(" (%s of states)", bytes("host_states").c_str()) : "";
  t.add({"host KV", text_of("%s for a full session%s, of %s of memory", bytes("host_kv").c_str(),
                            states.c_str(), bytes("host_memory").c_str())});
  t.add({"selector state", p.count("selector_state")
                               ? bytes("selector_state") + " in host memory for a full session"
                               : "none"});
  if (!p.on("device_memory") || p.on("integrated"))
    t.add({"with a full session",
           human_bytes(p.number("total") + p.number("host_kv") + p.number("selector_state")) +
               ", all in host memory"});
  t.print_left();
}

// Returns the GPU that device auto uses, or why it uses none; "" if this riffle has no GPU support.
std::string gpu_text(riffle_model* model, const Options& options) {
  Options o = options;
  o.set("device", "auto");
  return plan_of(model, o).text("device_note");  // a plan that does not fit has the note too
}

// The memory plan, and whether it fits: RIFFLE_OK, RIFFLE_OUT_OF_MEMORY or RIFFLE_NO_SLOT. Other
// errors are thrown as Exit.
struct Planned {
  Facts plan;
  riffle_status status = RIFFLE_OK;
  std::string error;
};

Planned plan_for(riffle_model* model, const Options& options) {
  Planned p;
  p.plan = plan_of(model, options, &p.status, &p.error);
  if (p.status != RIFFLE_OK && p.status != RIFFLE_OUT_OF_MEMORY && p.status != RIFFLE_NO_SLOT)
    throw Exit(p.status == RIFFLE_BAD_ARGUMENT ? EXIT_USAGE : exit_code_of(p.status), p.error);
  return p;
}

int session_info(const InfoOptions& o) {
  const SessionFile file(o.file);
  const Facts i = file.info();
  // Files of other programs and of batch --prefix-cache hold only a session, without riffle's text.
  const bool has_text = file.has_text();
  const SavedText text = has_text ? file.text() : SavedText{};
  if (o.common.json) {
    print_json({{"path", o.file},
                {"kind", !has_text   ? "session"
                         : text.chat ? "chat"
                                     : "document"},
                {"model", i.text("model")},
                {"architecture", i.text("architecture")},
                {"n_tokens", i.count("n_tokens")},
                {"n_layers", i.count("n_layers")},
                {"n_kv_heads", i.count("n_kv_heads")},
                {"head_dim", i.count("head_dim")},
                {"vocab_size", i.count("vocab_size")},
                {"kv", i.text("kv")},
                {"block", i.count("block_size")},
                {"state", i.text("state")},
                {"messages", text.messages.size()},
                {"document_bytes", text.document.size()},
                {"file_bytes", i.count("file_bytes")},
                {"kv_bytes", i.count("kv_bytes")},
                {"n_states", i.count("n_states")},
                {"state_bytes", i.count("state_bytes")},
                {"created", i.count("created")},
                {"saved", i.count("saved")},
                {"saves", i.count("saves")},
                {"newest_damaged", i.on("newest_damaged")},
                {"version", riffle_version()}});
    return EXIT_OK;
  }
  Table t({"session", o.file});
  t.add({"holds", file.holds()});
  t.add({"tokens", std::to_string(i.count("n_tokens"))});
  if (i.on("chose_tiles")) t.add({"prompts", "read chosen key tiles (--prefill-selector tiles)"});
  t.add(
      {"model", (i.text("model").empty() ? "-" : i.text("model")) + ", " + i.text("architecture")});
  t.add({"KV", text_of("%s in blocks of %d tokens, %s", i.text("kv").c_str(), i.id("block_size"),
                       human_bytes(i.number("kv_bytes")).c_str())});
  if (!i.text("state").empty()) t.add({"learnt scores", i.text("state")});
  t.add({"file", human_bytes(i.number("file_bytes"))});
  t.add({"first saved", date_text(i.count("created"))});
  t.add({"last saved", text_of("%s, save %llu", date_text(i.count("saved")).c_str(),
                               static_cast<unsigned long long>(i.count("saves")))});
  if (i.on("newest_damaged")) t.add({"damaged", "the newest save; this is the one before"});
  t.print_left();
  return EXIT_OK;
}

int info_main(InfoOptions& o) {
  if (!o.file.empty()) return session_info(o);

  const bool is_file = o.shape.empty();
  std::string name;
  const Model model = is_file ? load_model(o.common) : shape_model(o.shape, o.weights, name);
  if (is_file) name = o.common.model_path;
  const Facts info = model_info(model.get());
  std::optional<Planned> planned;
  // Values that this machine or the model does not support are refused without --plan too.
  const bool asks = settings_json("context", o.common.options) != settings_json("context", {});
  if (o.plan || asks) planned = plan_for(model.get(), o.common.options);
  if (o.common.json) {
    Json out = {{"path", is_file ? Json(o.common.model_path) : Json(nullptr)}};
    out.update(info_json(info));
    const TokenizerFacts tokenizer = tokenizer_of(model.get(), info);
    out["tokenizer"] = {
        {"kind", tokenizer.kind}, {"n_pieces", tokenizer.n_pieces}, {"end_ids", tokenizer.end_ids}};
    if (o.plan) out["plan"] = plan_json(planned->plan, planned->status, planned->error);
    out["version"] = riffle_version();
    print_json(out);
  } else {
    print_info(model.get(), name, o.plan ? "" : gpu_text(model.get(), o.common.options));
    if (o.plan) write_out("\n");
    if (o.plan) print_plan(planned->plan);
  }
  if (o.plan && planned->status != RIFFLE_OK) throw Exit(EXIT_MEMORY, planned->error);
  return EXIT_OK;
}

void add_shape_flags(CLI::App& command, InfoOptions& o) {
  const Flag shape =
      add_text(command, "--shape", o.shape,
               "plan for the shape of a known model, without its file; the end of riffle bench "
               "--help-all lists the names")
          .value("NAME")
          .excludes(flag_named(command, "--model"));
  add_text(command, "--weights", o.weights,
           "type of the shape's weights: q8_0, q6_k, q5_k, q4_k, q5_1, q5_0, q4_1, q4_0, "
           "bf16, f16, f32")
      .value("TYPE")
      .needs(shape)
      .shows_default();
}

}  // namespace

void add_info(CLI::App& app, Command& chosen) {
  auto o = std::make_shared<InfoOptions>();
  CLI::App& command =
      add_command(app, "info", "Show facts of a model and, with --plan, the memory that it needs");
  add_common_flags(command, o->common, CONTEXT_FLAGS | JSON_FLAG);
  for (const SettingRow* s : settings_of("selection"))
    if (std::find(std::begin(kPlanned), std::end(kPlanned), s->name) != std::end(kPlanned))
      add_selection_flag(command, *s, o->common);
  add_text(command, "file", o->file, "show the contents of this session file; needs no model")
      .value("FILE");
  add_switch(command, "--plan", o->plan,
             "print the memory that a run with these flags would take, without allocating it");
  if (has_shapes()) add_shape_flags(command, *o);
  when_parsed(command, [o, &chosen] { chosen = [o] { return info_main(*o); }; });
}

}  // namespace riffle::cli
