// Functions of riffle.h, riffle_text.h and riffle_tools.h: models, their weights, tokens and
// conversations.
#include <algorithm>
#include <cmath>

#include "api/api_handles.h"
#include "chat/chat_template.h"
#include "import/load_model.h"
#include "import/read_config.h"
#include "quantize/quantize_model.h"
#include "requests/conversation.h"
#include "text/tokenizer.h"

using namespace riffle;

namespace {

// Returns a conversation's tokens, and whether the answer begins inside reasoning.
std::pair<std::vector<int32_t>, bool> conversation_tokens(const riffle_model& model,
                                                          const riffle_message* messages,
                                                          size_t n_messages,
                                                          const riffle_options& options) {
  require(messages || !n_messages, "messages");
  std::vector<ChatMessage> list;
  for (size_t i = 0; i < n_messages; ++i) {
    require(messages[i].role, "a message's role");
    require(messages[i].content, "a message's content");
    const char* const reasoning = messages[i].reasoning;
    list.push_back({messages[i].role, messages[i].content, reasoning ? reasoning : ""});
  }
  const requests::ChatPrompt prompt = requests::chat_prompt(*model.model, list, options.chat);
  return {prompt.tokens, prompt.in_reasoning};
}

}  // namespace

extern "C" {

riffle_status riffle_model_load(const char* path, const riffle_options* options,
                                riffle_model** model, char* err, size_t err_size) {
  if (model) *model = nullptr;
  const riffle_options& all = options_or_defaults(options);
  const auto load = [&] {
    require(path, "path");
    require(model, "model");
    const ModelOptions& o = all.model;
    const auto progress = [&](riffle_phase phase) {
      return progress_of(phase, all.context.progress, all.context.progress_user);
    };
    auto m = std::make_unique<riffle_model>();
    // Names are checked before the work of loading.
    std::unique_ptr<const ChatTemplate> chat;
    if (!o.chat_template.empty())
      chat = std::make_unique<const ChatTemplate>(chat_family_named(o.chat_template));
    const WeightMix* mix = o.weights.empty() ? nullptr : &weight_mix_named(o.weights);
    m->model = load_model(path, progress(RIFFLE_PHASE_LOAD), std::move(chat));
    if (mix)
      quantize_weights(*m->model, *mix, all.context.n_threads, progress(RIFFLE_PHASE_QUANTIZE));
    m->info = facts_of(*m->model);
    *model = m.release();
  };
  return guarded(err, err_size, load, all.context.setting_name);
}

void riffle_model_free(riffle_model* model) { delete model; }

const char* riffle_model_error(const riffle_model* model) {
  return model ? model->error : "model is NULL";
}

const riffle_info* riffle_model_info(const riffle_model* model) {
  return model ? &model->info : nullptr;
}

// ---- weights

const char* riffle_weight_type_name(size_t index) {
  return index < weight_mixes().size() ? weight_mixes()[index].name : nullptr;
}

riffle_status riffle_quantize(const char* path, const char* out, const riffle_options* options,
                              riffle_info** result, char* err, size_t err_size) {
  if (result) *result = nullptr;
  return guarded(err, err_size, [&] {
    require(path, "path");
    require(out, "out");
    const riffle_options& o = options_or_defaults(options);
    const std::string type = o.model.weights.empty() ? "q4_k_m" : o.model.weights;
    const QuantizedFile q = quantize_file(
        path, out, weight_mix_named(type), o.context.n_threads, o.quantize.overwrite,
        progress_of(RIFFLE_PHASE_QUANTIZE, o.context.progress, o.context.progress_user));
    if (!result) return;
    auto info = std::make_unique<riffle_info>();
    info->add("n_params", q.n_params);
    info->add("weight_bytes_in", q.weight_bytes_in);
    info->add("weight_bytes_out", q.weight_bytes_out);
    info->add("file_bytes", q.file_bytes);
    info->add("n_fallback", q.sums.n_fallback);
    info->add("relative_error", q.sums.norm > 0 ? std::sqrt(q.sums.error / q.sums.norm) : 0.0);
    *result = info.release();
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

riffle_status riffle_chat_prompt(riffle_model* model, const riffle_message* messages,
                                 size_t n_messages, const riffle_options* options, int32_t* tokens,
                                 size_t capacity, size_t* n_tokens, bool* in_reasoning) {
  return on_model(model, [&] {
    require(n_tokens, "n_tokens");
    const auto [ids, begun] =
        conversation_tokens(*model, messages, n_messages, options_or_defaults(options));
    if (in_reasoning) *in_reasoning = begun;
    hand_out(ids.data(), ids.size(), tokens, capacity, n_tokens);
  });
}

// ---- one question

namespace {

struct Handles {
  void operator()(riffle_context* context) const { riffle_context_free(context); }
  void operator()(riffle_session* session) const { riffle_session_free(session); }
};

struct TextSink {
  riffle_text_fn show;
  void* user;
  static bool on_token(void* self, size_t, const riffle_token* token) {
    const auto* sink = static_cast<const TextSink*>(self);
    return !sink->show || token->text_len == 0 ||
           sink->show(sink->user, token->text, token->text_len);
  }
};

}  // namespace

riffle_status riffle_ask(riffle_model* model, const riffle_message* messages, size_t n_messages,
                         const riffle_options* options, riffle_text_fn on_text, void* user,
                         char* err, size_t err_size) {
  riffle_context* made = nullptr;
  const riffle_status created = riffle_context_create(model, options, &made, err, err_size);
  if (created != RIFFLE_OK) return created;
  const std::unique_ptr<riffle_context, Handles> context(made);
  const auto answer = [&] {
    riffle_options o = options_or_defaults(options);
    const auto [tokens, begun] = conversation_tokens(*model, messages, n_messages, o);
    o.answer.trim_start = true;
    const bool may_reason = o.chat.thinking != ThinkingRule::OFF;
    o.answer.reasoning = begun        ? ReasoningRule::BEGUN
                         : may_reason ? ReasoningRule::ALLOWED
                                      : ReasoningRule::NONE;
    const auto must = [&](riffle_status status) {
      if (status != RIFFLE_OK) throw Error(status, context->error);
    };
    riffle_session* session = nullptr;
    must(riffle_session_create(context.get(), &session));
    const std::unique_ptr<riffle_session, Handles> freed(session);
    must(riffle_prefill_to(session, tokens.data(), tokens.size(), o.context.progress,
                           o.context.progress_user));
    TextSink sink{on_text, user};
    must(riffle_generate(session, &o, TextSink::on_token, &sink, nullptr));
  };
  return guarded(err, err_size, answer, context->setting_name);
}

}  // extern "C"
