// riffle.h: models, their weights, tokens and conversations.
#include <algorithm>
#include <cmath>

#include "api/api_handles.h"
#include "api/struct_sizes.h"
#include "chat/chat_template.h"
#include "import/load_model.h"
#include "import/read_config.h"
#include "quantize/quantize_model.h"
#include "text/tokenizer.h"

using namespace riffle;

namespace {

constexpr std::string_view kEfforts[] = {"low", "medium", "high"};

ChatOptions chat_options_of(const riffle_chat_options& o) {
  ChatOptions out;
  switch (o.thinking) {
    case RIFFLE_THINKING_DEFAULT: break;
    case RIFFLE_THINKING_ON: out.thinking = Thinking::ON; break;
    case RIFFLE_THINKING_OFF: out.thinking = Thinking::OFF; break;
    default:
      fail(RIFFLE_BAD_ARGUMENT, "chat options: thinking is %d, expected 0 to 2",
           static_cast<int>(o.thinking));
  }
  if (o.reasoning_effort) {
    // Templates print the word outside of messages, so no other text may stand there.
    out.reasoning_effort = o.reasoning_effort;
    if (std::find(std::begin(kEfforts), std::end(kEfforts), out.reasoning_effort) ==
        std::end(kEfforts))
      fail(RIFFLE_BAD_ARGUMENT,
           "chat options: reasoning_effort is '%.40s', expected low, medium or high",
           o.reasoning_effort);
  }
  TemplateDate date;
  if (!o.date) return out;
  if (!read_date(o.date, &date))
    fail(RIFFLE_BAD_ARGUMENT, "chat options: date is '%.40s', expected one such as 2026-11-23",
         o.date);
  out.date = date;
  return out;
}

riffle_model_info info_of(const riffle_model& model) {
  riffle_model_info info{};
  const Model& m = *model.model;
  const Config& c = m.config;
  info.name = c.name.c_str();
  info.architecture = c.architecture.c_str();
  info.format = m.format.c_str();
  info.weight_types = model.weight_types.data();
  info.n_weight_types = model.weight_types.size();
  info.weight_type = info.n_weight_types ? info.weight_types[0].type : "";
  info.text_part = c.text_part;
  info.dim = c.dim;
  info.hidden_dim = c.hidden_dim;
  info.head_dim = c.head_dim;
  info.n_layers = c.n_layers;
  info.n_heads = c.n_heads;
  info.n_kv_heads = c.n_kv_heads;
  info.vocab_size = c.vocab_size;
  info.n_ctx_train = c.n_ctx;
  info.rope_theta = c.ropes[0].theta;
  info.norm_eps = c.norm_eps;
  info.tied_output = c.tied_output;
  info.bos_id = c.bos_id;
  info.eos_id = c.eos_id;
  info.n_params = m.n_params;
  info.weight_bytes = m.weight_bytes;
  info.chat_template = m.chat_template.c_str();
  info.rope_scaling = model.rope_scaling.c_str();
  for (const LayerConfig& layer : c.layers) {
    info.sliding_window = std::max(info.sliding_window, layer.window);
    info.n_window_layers += layer.window > 0;
    info.n_expert_layers += layer.has_experts;
  }
  info.qk_norm = c.qk_norm == QkNorm::NONE ? "none" : c.qk_norm == QkNorm::HEAD ? "head" : "whole";
  info.logit_softcap = c.logit_softcap;
  info.attention_sinks = c.sinks;
  info.attention_gate = c.attention_gate;
  info.chat_template_name = m.chat ? m.chat->name() : "";
  info.chat_thinking = m.chat && m.chat->knows_thinking();
  info.chat_effort = m.chat && m.chat->knows_effort();
  info.reasoning_begin = m.chat ? m.chat->reasoning_marks().begin.c_str() : "";
  info.reasoning_end = m.chat ? m.chat->reasoning_marks().end.c_str() : "";
  info.n_experts = c.experts.n;
  info.n_experts_used = c.experts.n_used;
  info.expert_dim = c.experts.hidden_dim;
  for (const LayerWeights& layer : m.weights.layers)
    for (const ExpertWeights& expert : layer.experts)
      for (const Tensor* t : {&expert.w1, &expert.w3, &expert.w2}) {
        info.expert_params += static_cast<uint64_t>(t->rows * t->cols);
        info.expert_bytes += static_cast<uint64_t>(t->bytes());
      }
  return info;
}

}  // namespace

extern "C" {

void riffle_model_defaults_sized(riffle_model_options* o, size_t struct_size) {
  give_defaults(o, struct_size, [](riffle_model_options&) {});
}

riffle_status riffle_model_load(const char* path, const riffle_model_options* options,
                                riffle_model** model, char* err, size_t err_size) {
  if (model) *model = nullptr;
  return guarded(err, err_size, [&] {
    require(path, "path");
    require(model, "model");
    const riffle_model_options o = known(options, riffle_model_defaults_sized, "model options");
    auto m = std::make_unique<riffle_model>();
    // Bad names are found before the work of loading.
    std::unique_ptr<const ChatTemplate> chat;
    if (o.chat_template)
      chat = std::make_unique<const ChatTemplate>(chat_family_named(o.chat_template));
    const WeightMix* mix = o.weights ? &weight_mix_named(o.weights) : nullptr;
    m->model = load_model(path, progress_of(RIFFLE_PHASE_LOAD, o.progress, o.progress_user),
                          std::move(chat));
    if (mix)
      quantize_weights(*m->model, *mix, o.n_threads,
                       progress_of(RIFFLE_PHASE_QUANTIZE, o.progress, o.progress_user));
    name_parts(*m);
    *model = m.release();
  });
}

void riffle_model_free(riffle_model* model) { delete model; }

const char* riffle_model_error(const riffle_model* model) {
  return model ? model->error : "model is NULL";
}

riffle_status riffle_model_get_info(const riffle_model* model, riffle_model_info* info) {
  if (!model || !info) return RIFFLE_BAD_ARGUMENT;
  return guarded(nullptr, 0, [&] { give(info, info_of(*model), "model info"); });
}

// ---- weights

const char* riffle_weight_type_name(size_t index) {
  return index < weight_mixes().size() ? weight_mixes()[index].name : nullptr;
}

void riffle_quantize_defaults_sized(riffle_quantize_options* o, size_t struct_size) {
  give_defaults(o, struct_size, [](riffle_quantize_options&) {});
}

riffle_status riffle_quantize(const char* path, const char* out,
                              const riffle_quantize_options* options,
                              riffle_quantize_result* result, char* err, size_t err_size) {
  return guarded(err, err_size, [&] {
    require(path, "path");
    require(out, "out");
    const riffle_quantize_options o =
        known(options, riffle_quantize_defaults_sized, "quantize options");
    if (result) check_size<riffle_quantize_result>(result->struct_size, "quantize result");
    const QuantizedFile q =
        quantize_file(path, out, weight_mix_named(o.type ? o.type : "q4_k_m"), o.n_threads,
                      o.overwrite, progress_of(RIFFLE_PHASE_QUANTIZE, o.progress, o.progress_user));
    if (!result) return;
    riffle_quantize_result all{};
    all.n_params = q.n_params;
    all.weight_bytes_in = q.weight_bytes_in;
    all.weight_bytes_out = q.weight_bytes_out;
    all.file_bytes = q.file_bytes;
    all.n_fallback = q.sums.n_fallback;
    all.relative_error = q.sums.norm > 0 ? std::sqrt(q.sums.error / q.sums.norm) : 0;
    give(result, all, "quantize result");
  });
}

// ---- tokens

riffle_status riffle_tokenize(riffle_model* model, const char* text, size_t text_len,
                              uint32_t flags, int32_t* tokens, size_t capacity, size_t* n_tokens) {
  return on_model(model, [&] {
    require(text || !text_len, "text");
    require(n_tokens, "n_tokens");
    const auto ids = tokenizer_of(*model).encode(
        {text ? text : "", text_len}, flags & RIFFLE_TOKENIZE_BOS, flags & RIFFLE_TOKENIZE_SPECIAL);
    hand_out(ids.data(), ids.size(), tokens, capacity, n_tokens);
  });
}

riffle_status riffle_detokenize(riffle_model* model, const int32_t* tokens, size_t n_tokens,
                                char* text, size_t capacity, size_t* text_len) {
  return on_model(model, [&] {
    require(tokens || !n_tokens, "tokens");
    require(text_len, "text_len");
    const Tokenizer& tokenizer = tokenizer_of(*model);
    for (size_t i = 0; i < n_tokens; ++i)
      if (!tokenizer.piece(tokens[i]))
        fail(RIFFLE_BAD_ARGUMENT, "tokens[%zu] is %d, which is not in the vocabulary", i,
             tokens[i]);
    const std::string out = tokenizer.decode(tokens, n_tokens);
    hand_out(out.data(), out.size(), text, capacity, text_len);
  });
}

const char* riffle_token_piece(const riffle_model* model, int32_t token) {
  return model && model->model->tokenizer ? model->model->tokenizer->piece(token) : nullptr;
}

riffle_status riffle_token_bytes(riffle_model* model, int32_t token, char* bytes, size_t capacity,
                                 size_t* n_bytes) {
  return on_model(model, [&] {
    require(n_bytes, "n_bytes");
    const Tokenizer& tokenizer = tokenizer_of(*model);
    if (!tokenizer.piece(token))
      fail(RIFFLE_BAD_ARGUMENT, "token %d is not in the vocabulary", token);
    const std::string out = tokenizer.bytes(token);
    hand_out(out.data(), out.size(), bytes, capacity, n_bytes);
  });
}

bool riffle_is_end_token(const riffle_model* model, int32_t token) {
  return model && model->model->config.ends_answer(token);
}

const char* riffle_chat_template_name(size_t index) {
  return index < chat_families().size() ? chat_families()[index].name : nullptr;
}

void riffle_chat_defaults_sized(riffle_chat_options* o, size_t struct_size) {
  give_defaults(o, struct_size, [](riffle_chat_options&) {});
}

riffle_status riffle_chat_tokens(riffle_model* model, const riffle_message* messages,
                                 size_t n_messages, int32_t* tokens, size_t capacity,
                                 size_t* n_tokens) {
  return riffle_chat_prompt(model, messages, n_messages, nullptr, tokens, capacity, n_tokens,
                            nullptr);
}

riffle_status riffle_chat_prompt(riffle_model* model, const riffle_message* messages,
                                 size_t n_messages, const riffle_chat_options* options,
                                 int32_t* tokens, size_t capacity, size_t* n_tokens,
                                 bool* in_reasoning) {
  return on_model(model, [&] {
    require(messages || !n_messages, "messages");
    require(n_tokens, "n_tokens");
    const riffle_chat_options o = known(options, riffle_chat_defaults_sized, "chat options");
    std::vector<ChatMessage> list;
    for (size_t i = 0; i < n_messages; ++i) {
      require(messages[i].role, "a message's role");
      require(messages[i].content, "a message's content");
      const char* const reasoning = o.reasoning ? o.reasoning[i] : nullptr;
      list.push_back({messages[i].role, messages[i].content, reasoning ? reasoning : ""});
    }
    const ChatOptions chat_options = chat_options_of(o);
    const Tokenizer& tokenizer = tokenizer_of(*model);
    const Model& m = *model->model;
    if (!m.chat) {
      fail(RIFFLE_UNSUPPORTED,
           "%s; --chat-template NAME (riffle_model_options.chat_template) sets one: %s",
           m.chat_template.empty() ? "the model carries no chat template" : m.chat_error.c_str(),
           chat_family_names().c_str());
    }
    const SourcedText text = m.chat->text(tokenizer, list, chat_options);
    if (in_reasoning) *in_reasoning = m.chat->begins_reasoning(text, list);
    const auto ids = m.chat->tokens(tokenizer, text);
    hand_out(ids.data(), ids.size(), tokens, capacity, n_tokens);
  });
}

}  // extern "C"
