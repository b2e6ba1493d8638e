// Functions of riffle_request.h: requests in OpenAI's form, and answers in parts.
#include <memory>

#include "api/api_handles.h"
#include "requests/prepare.h"
#include "requests/response.h"
#include "requests/seed.h"
#include "riffle_request.h"

using namespace riffle;
using requests::Choice;
using requests::Refused;

struct riffle_request {
  requests::Request request;
  bool refused = false;
  std::vector<std::vector<int32_t>> prompts;
  std::vector<riffle_options> options;  // options of the answers
  std::optional<requests::Response> response;
  riffle_info info, refusal, answer;
  std::string error, json;
};

struct riffle_answer {
  requests::AnswerSplit split;
  requests::AnswerPart part;
};

namespace {

void set_fact(riffle_info* info, const char* name, auto value) {
  std::erase_if(info->facts, [&](const riffle_info::Fact& f) { return f.name == name; });
  info->add(name, value);
}

void add_names(riffle_info* info, const std::string& kind, const std::vector<std::string>& names) {
  info->add("n_" + kind, names.size());
  for (size_t i = 0; i < names.size(); ++i) info->add(kind + "_" + std::to_string(i), names[i]);
}

riffle_info facts_of(const requests::Request& r) {
  riffle_info info;
  info.add("chat", r.chat);
  info.add("n_prompts", r.n_prompts());
  info.add("n", r.n);
  info.add("n_answers", r.n_answers());
  info.add("stream", r.stream);
  info.add("include_usage", r.include_usage);
  info.add("model", r.model);
  info.add("custom_id", r.custom_id);
  info.add("logprobs", r.answer.sampling.logprobs);
  info.add("limit_field", r.answer.limit_field ? r.answer.limit_field : "");
  info.add("n_tools", r.tools.tools.size());
  info.add("asks_effort", r.asks_effort);
  info.add("asks_thinking", r.asks_thinking);
  add_names(&info, "ignored", r.ignored.without_effect);
  add_names(&info, "unknown", r.ignored.unknown);
  return info;
}

riffle_info refusal_of(const std::string& message, const requests::Reason& reason,
                       const std::string& param, const std::string& custom_id) {
  const bool memory = reason.status == RIFFLE_OUT_OF_MEMORY;
  const bool server = memory || reason.status == RIFFLE_INTERNAL;
  riffle_info info;
  info.add("message", message);
  info.add("code", reason.code);
  info.add("param", param);
  info.add("type", server ? "server_error" : "invalid_request_error");
  info.add("http_status", memory ? 503 : server ? 500 : 400);
  info.add("reason", reason.name);
  info.add("custom_id", custom_id);
  return info;
}

// Returns the reason for an error that names no field.
requests::Reason reason_of(riffle_status status) {
  switch (status) {
    case RIFFLE_OUT_OF_MEMORY: return {"oom", "", status};
    case RIFFLE_INTERNAL: return {"error", "", status};
    default: return {"bad_request", "", status};
  }
}

// Runs a function that may refuse the request, and keeps the facts of its refusal.
template <class Body>
void refusing(riffle_request* r, Body&& body) {
  const auto keep = [&](const char* message, const requests::Reason& reason,
                        const std::string& param) {
    r->refused = true;
    r->error = message;
    r->refusal = refusal_of(message, reason, param, r->request.custom_id);
  };
  try {
    body();
  } catch (const Refused& e) {
    keep(e.what(), e.reason(), e.param());
    throw;
  } catch (const Error& e) {
    keep(e.what(), reason_of(e.status()), "");
    throw;
  } catch (const std::bad_alloc&) {
    keep("out of memory", reason_of(RIFFLE_OUT_OF_MEMORY), "");
    throw;
  } catch (const std::exception& e) {
    keep(e.what(), reason_of(RIFFLE_INTERNAL), "");
    throw;
  }
}

template <class Body>
riffle_status on_request(riffle_request* r, Body&& body) {
  if (!r) return RIFFLE_BAD_ARGUMENT;
  ErrorText text = "";
  const riffle_status status = guarded(text, sizeof text, body);
  if (status != RIFFLE_OK) guarded(nullptr, 0, [&] { r->error = text; });
  return status;
}

// Returns the answer; throws RIFFLE_BAD_ARGUMENT if there is none or it has ended.
Choice& open_choice(riffle_request* r, size_t answer) {
  if (!r->response)
    fail(RIFFLE_BAD_ARGUMENT, "the request is not prepared, expected riffle_request_prepare first");
  if (answer >= r->response->size())
    fail(RIFFLE_BAD_ARGUMENT, "answer is %zu, expected less than %zu", answer, r->response->size());
  Choice& choice = r->response->choice(answer);
  if (choice.ended) fail(RIFFLE_BAD_ARGUMENT, "answer %zu has ended", answer);
  return choice;
}

void hand_json(riffle_request* r, std::string json, riffle_json* out) {
  r->json = std::move(json);
  if (out)
    *out = r->json.empty() ? riffle_json{nullptr, 0} : riffle_json{r->json.c_str(), r->json.size()};
}

requests::AnswerSplit split_of(const Model& model, bool in_reasoning) {
  return requests::AnswerSplit(requests::answer_form(model, nullptr, nullptr), in_reasoning);
}

const char* const kFitted[] = {"", "joined", "moved"};

void prepare_request(riffle_request* r, riffle_model* model) {
  const requests::Answering by{
      *model->model, model->grammars,
      [&](riffle_grammar_kind kind, std::string_view text) { return compiled(model, kind, text); },
      [&](std::span<const std::string_view> markers) { return tokens_of(model, markers); }};
  requests::Prepared made = requests::prepare(&r->request, by);
  std::vector<size_t> lengths;
  for (const auto& prompt : made.prompts) lengths.push_back(prompt.size());
  r->response.emplace(r->request, tokenizer_of(*model), made.form, made.in_reasoning, lengths);
  for (GenerateOptions& answer : made.answers) {
    r->options.emplace_back();
    r->options.back().answer = std::move(answer);
  }
  r->prompts = std::move(made.prompts);
  set_fact(&r->info, "fitted", kFitted[static_cast<size_t>(made.fitted)]);
  set_fact(&r->info, "in_reasoning", made.in_reasoning);
  size_t tokens = 0;
  for (const size_t length : lengths) tokens += length;
  set_fact(&r->info, "prompt_tokens", tokens);
}

}  // namespace

extern "C" {

riffle_status riffle_request_create(riffle_request_kind kind, const char* text, size_t text_len,
                                    const riffle_options* options, uint32_t flags,
                                    riffle_request** request, char* err, size_t err_size) {
  if (request) *request = nullptr;
  return guarded(err, err_size, [&] {
    require(request, "request");
    require(text || !text_len, "text");
    const uint32_t known = RIFFLE_REQUEST_IGNORE_UNKNOWN | RIFFLE_REQUEST_DRAW_SEED;
    if (kind < RIFFLE_REQUEST_CHAT || kind > RIFFLE_REQUEST_BATCH_LINE)
      fail(RIFFLE_BAD_ARGUMENT, "kind is %d, expected 0 to 2", static_cast<int>(kind));
    if (flags & ~known) fail(RIFFLE_BAD_ARGUMENT, "flags are %u, expected 0 to %u", flags, known);
    auto made = std::make_unique<riffle_request>();
    riffle_request* const r = made.get();
    *request = made.release();  // it keeps the facts of a refusal
    refusing(r, [&] {
      const riffle_options& o = options_or_defaults(options);
      requests::parse_request(kind, {text ? text : "", text_len}, flags, o.answer, o.chat,
                              &r->request);
      r->info = facts_of(r->request);
    });
  });
}

riffle_status riffle_request_prepare(riffle_request* request, riffle_model* model, char* err,
                                     size_t err_size) {
  return guarded(err, err_size, [&] {
    require(request, "request");
    require(model, "model");
    if (request->refused) fail(RIFFLE_BAD_ARGUMENT, "the request has been refused");
    if (request->response) fail(RIFFLE_BAD_ARGUMENT, "the request has been prepared already");
    refusing(request, [&] { prepare_request(request, model); });
  });
}

void riffle_request_free(riffle_request* request) { delete request; }

const char* riffle_request_error(const riffle_request* request) {
  return request ? request->error.c_str() : "request is NULL";
}

const riffle_info* riffle_request_refusal(const riffle_request* request) {
  return request && request->refused ? &request->refusal : nullptr;
}

const riffle_info* riffle_request_info(const riffle_request* request) {
  return request ? &request->info : nullptr;
}

const int32_t* riffle_request_tokens(const riffle_request* request, size_t answer,
                                     size_t* n_tokens) {
  if (n_tokens) *n_tokens = 0;
  const size_t prompt = request ? answer / request->request.n : 0;
  if (!request || prompt >= request->prompts.size()) return nullptr;
  if (n_tokens) *n_tokens = request->prompts[prompt].size();
  return request->prompts[prompt].data();
}

const riffle_options* riffle_request_options(const riffle_request* request, size_t answer) {
  return request && answer < request->options.size() ? &request->options[answer] : nullptr;
}

void riffle_request_drop_prompts(riffle_request* request) {
  if (!request) return;
  request->prompts = {};
  request->options = {};
}

riffle_status riffle_request_set_names(riffle_request* request, const char* model,
                                       const char* system_fingerprint) {
  return on_request(request, [&] {
    require(model, "model");
    if (!request->response)
      fail(RIFFLE_BAD_ARGUMENT,
           "the request is not prepared, expected riffle_request_prepare first");
    request->response->model = model;
    request->response->fingerprinted = system_fingerprint != nullptr;
    request->response->fingerprint = system_fingerprint ? system_fingerprint : "";
  });
}

riffle_status riffle_request_token(riffle_request* request, size_t answer,
                                   const riffle_token* token, riffle_json* chunk) {
  if (chunk) *chunk = {};
  return on_request(request, [&] {
    require(token, "token");
    (void)open_choice(request, answer);
    if (token->id >= 0 && !request->response->knows(token->id))
      fail(RIFFLE_BAD_ARGUMENT, "token %d is not in the vocabulary", token->id);
    hand_json(request, request->response->token(answer, *token, chunk != nullptr), chunk);
  });
}

riffle_status riffle_request_part(riffle_request* request, riffle_answer_part* part) {
  if (part) *part = {"", 0, "", 0};
  return on_request(request, [&] {
    require(part, "part");
    if (!request->response) return;
    const auto& [reasoning, content, calls] = request->response->last();
    *part = {reasoning.data(), reasoning.size(), content.data(), content.size()};
  });
}

riffle_status riffle_request_end(riffle_request* request, size_t answer,
                                 const riffle_result* result, size_t cached_tokens,
                                 riffle_json* chunk) {
  if (chunk) *chunk = {};
  return on_request(request, [&] {
    require(result, "result");
    (void)open_choice(request, answer);
    hand_json(request, request->response->end(answer, *result, cached_tokens, chunk != nullptr),
              chunk);
  });
}

riffle_status riffle_request_usage(riffle_request* request, riffle_json* chunk) {
  if (chunk) *chunk = {};
  return on_request(request, [&] {
    require(chunk, "chunk");
    hand_json(request, request->response ? request->response->usage_chunk() : "", chunk);
  });
}

riffle_status riffle_request_response(riffle_request* request, riffle_json* body) {
  if (body) *body = {};
  return on_request(request, [&] {
    require(body, "body");
    if (!request->response || !request->response->all_ended())
      fail(RIFFLE_BAD_ARGUMENT, "an answer has not ended, expected riffle_request_end first");
    hand_json(request, request->response->whole(), body);
  });
}

const riffle_info* riffle_request_answer(riffle_request* request, size_t answer) {
  const riffle_info* facts = nullptr;
  guarded(nullptr, 0, [&] {
    if (!request || !request->response || answer >= request->response->size()) return;
    const Choice& choice = request->response->choice(answer);
    riffle_info info;
    info.add("content", choice.content);
    info.add("reasoning", choice.reasoning);
    info.add("n_tool_calls", choice.calls.size());
    info.add("n_ended_calls", choice.calls.size() - (choice.open ? 1 : 0));
    info.add("finish_reason", choice.finish_reason());
    info.add("tool_error", choice.tool_error);
    request->answer = std::move(info);
    facts = &request->answer;
  });
  return facts;
}

bool riffle_request_call(riffle_request* request, size_t answer, size_t index,
                         riffle_tool_call* call) {
  if (!request || !request->response || answer >= request->response->size() || !call) return false;
  const auto& calls = request->response->choice(answer).calls;
  if (index >= calls.size()) return false;
  const requests::ToolCall& one = calls[index];
  *call = {one.id.c_str(), one.name.c_str(), one.arguments.c_str(), one.error.c_str()};
  return true;
}

// ---- answers in parts

riffle_status riffle_answer_create(riffle_model* model, bool in_reasoning, riffle_answer** answer,
                                   char* err, size_t err_size) {
  if (answer) *answer = nullptr;
  return guarded(err, err_size, [&] {
    require(model, "model");
    require(answer, "answer");
    *answer = new riffle_answer{split_of(*model->model, in_reasoning), {}};
  });
}

void riffle_answer_free(riffle_answer* answer) { delete answer; }

riffle_status riffle_answer_token(riffle_answer* answer, const riffle_token* token,
                                  riffle_answer_part* part) {
  if (!answer || !part) return RIFFLE_BAD_ARGUMENT;
  return guarded(nullptr, 0, [&] {
    answer->part = token ? answer->split.put(token->id, {token->text, token->text_len})
                         : answer->split.finish();
    const auto& [reasoning, content, calls] = answer->part;
    *part = {reasoning.data(), reasoning.size(), content.data(), content.size()};
  });
}

// ---- seeds and ids

uint64_t riffle_random_seed(void) {
  uint64_t seed = 0;
  guarded(nullptr, 0, [&] { seed = requests::draw_seed(); });
  return seed;
}

uint64_t riffle_derived_seed(uint64_t seed, uint64_t n) { return requests::derived_seed(seed, n); }

void riffle_random_id(char* id, size_t size) {
  if (!id || !size) return;
  *id = 0;
  guarded(nullptr, 0, [&] { copy_text(id, size, requests::random_id().c_str()); });
}

}  // extern "C"
