#include "cli/batch/record.h"

#include <algorithm>
#include <cstring>
#include <ctime>
#include <nlohmann/json.hpp>

#include "cli/seed.h"

namespace riffle::cli {
namespace {

// Returns 104 random bits, so that no two records anywhere share an id.
std::string random_id() {
  return text_of("%013llx%013llx", static_cast<unsigned long long>(draw_seed()),
                 static_cast<unsigned long long>(draw_seed()));
}

// trimmed: leaves out white space at the beginning.
Json logprob_json(riffle_model* model, int32_t token, float logprob, bool trimmed) {
  std::string bytes = token_bytes(model, token);
  if (trimmed) bytes.erase(0, bytes.find_first_not_of(kSpaces));
  Json list = Json::array();
  for (const char c : bytes) list.push_back(static_cast<unsigned char>(c));
  return {{"token", bytes}, {"logprob", number(logprob)}, {"bytes", std::move(list)}};
}

// Returns logprobs in the form of OpenAI's chat completions, where the tokens together spell the
// text. So white space dropped at the beginning of the text is dropped here too.
Json chat_logprobs(riffle_model* model, const BatchChoice& choice) {
  Json content = Json::array();
  bool trimmed =
      choice.reasoning.empty() && (choice.text.empty() || !std::strchr(kSpaces, choice.text[0]));
  for (const TokenLogprobs& one : choice.logprobs) {
    Json entry = logprob_json(model, one.token, one.logprob, trimmed);
    entry["top_logprobs"] = Json::array();
    for (const riffle_logprob& top : one.top)
      entry["top_logprobs"].push_back(logprob_json(model, top.token, top.logprob, trimmed));
    trimmed = trimmed && entry["bytes"].empty();
    content.push_back(std::move(entry));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

// Returns logprobs in the form of OpenAI's completions.
Json prompt_logprobs(riffle_model* model, const std::vector<TokenLogprobs>& all) {
  Json tokens = Json::array(), logprobs = Json::array(), tops = Json::array(),
       offsets = Json::array();
  size_t offset = 0;  // in characters of the text
  for (const TokenLogprobs& one : all) {
    const std::string bytes = token_bytes(model, one.token);
    tokens.push_back(bytes);
    logprobs.push_back(number(one.logprob));
    Json top = Json::object();
    for (const riffle_logprob& t : one.top) top[token_bytes(model, t.token)] = number(t.logprob);
    tops.push_back(std::move(top));
    offsets.push_back(offset);
    offset += static_cast<size_t>(std::count_if(bytes.begin(), bytes.end(), [](char c) {
      return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
    }));
  }
  return {{"tokens", std::move(tokens)},
          {"token_logprobs", std::move(logprobs)},
          {"top_logprobs", std::move(tops)},
          {"text_offset", std::move(offsets)}};
}

Json choice_json(size_t index, const BatchRequest& request, riffle_model* model,
                 const BatchChoice& choice) {
  Json out = {{"index", index}};
  if (request.chat) {
    out["message"] = {{"role", "assistant"}, {"content", choice.text}, {"refusal", nullptr}};
    if (!choice.reasoning.empty()) out["message"]["reasoning_content"] = choice.reasoning;
  } else {
    out["text"] = choice.text;
  }
  out["logprobs"] = !request.answer.on("logprobs") ? Json(nullptr)
                    : request.chat                 ? chat_logprobs(model, choice)
                                                   : prompt_logprobs(model, choice.logprobs);
  out["finish_reason"] = choice.end.id("finish") == RIFFLE_FINISH_STOP ? "stop" : "length";
  return out;
}

// Adds up the figures of the choices. A prompt counts once, however many answers it has.
Facts sum_of(std::span<const BatchChoice> choices, size_t n) {
  Facts sum;
  double prompt = 0, reused = 0, loaded = 0;
  for (size_t i = 0; i < choices.size(); ++i) {
    const Facts& end = choices[i].end;
    sum.add(end);
    if (i % n != 0) continue;
    prompt += end.number("prompt_tokens");
    reused += end.number("reused_tokens");
    loaded += end.number("loaded_tokens");
  }
  sum.set("prompt_tokens", prompt);
  sum.set("reused_tokens", reused);
  sum.set("loaded_tokens", loaded);
  return sum;
}

}  // namespace

std::string batch_error_record(size_t line_number, const BatchError& e) {
  return dump(Json{{"id", "batch_req_" + random_id()},
                   {"custom_id", e.custom_id.empty() ? Json(nullptr) : Json(e.custom_id)},
                   {"line", line_number},
                   {"response", nullptr},
                   {"error", {{"code", e.code}, {"message", e.message}}}});
}

std::string batch_answer_record(size_t line_number, const BatchRequest& request,
                                riffle_model* model, const AnsweringModel& by,
                                std::span<const BatchChoice> choices) {
  const Facts sum = sum_of(choices, request.n);
  const int64_t prompt_tokens = sum.count("prompt_tokens"), answer_tokens = sum.count("n_tokens");
  Json list = Json::array(), finish = Json::array();
  for (const BatchChoice& choice : choices) {
    list.push_back(choice_json(list.size(), request, model, choice));
    finish.push_back(finish_name(static_cast<riffle_finish>(choice.end.id("finish"))));
  }
  const Json body = {
      {"id", (request.chat ? "chatcmpl-" : "cmpl-") + random_id()},
      {"object", request.chat ? "chat.completion" : "text_completion"},
      {"created", static_cast<int64_t>(std::time(nullptr))},
      {"model", by.name},
      {"system_fingerprint", by.fingerprint},
      {"choices", list},
      {"usage",
       {{"prompt_tokens", prompt_tokens},
        {"completion_tokens", answer_tokens},
        {"total_tokens", prompt_tokens + answer_tokens},
        {"prompt_tokens_details",
         {{"cached_tokens", sum.count("reused_tokens") + sum.count("loaded_tokens")}}}}},
      {"riffle",
       {{"finish", choices.size() == 1 ? finish[0] : finish},
        {"seed", request.answer.size("seed")},
        {"reused_tokens", sum.count("reused_tokens")},
        {"cached_tokens", sum.count("loaded_tokens")},
        {"kv_read_pct", number(kv_read_pct(sum))},
        {"pool_hit_pct", number(pool_hit_pct(sum))},
        {"kv_blocks_total", sum.count("kv_blocks_total")},
        {"kv_blocks_read", sum.count("kv_blocks_read")},
        {"kv_tokens_total", sum.count("kv_tokens_total")},
        {"kv_tokens_read", sum.count("kv_tokens_read")},
        {"kv_bytes_read", sum.count("kv_bytes_read")},
        {"loaded_bytes", sum.count("loaded_bytes")},
        {"prefill_seconds", number(sum.number("prefill_seconds"))},
        {"decode_seconds", number(sum.number("decode_seconds"))}}}};
  return dump(Json{
      {"id", "batch_req_" + random_id()},
      {"custom_id", request.custom_id},
      {"line", line_number},
      {"response", {{"status_code", 200}, {"request_id", "req_" + random_id()}, {"body", body}}},
      {"error", nullptr}});
}

}  // namespace riffle::cli
