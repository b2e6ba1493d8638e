// The records of riffle batch (cli/batch/format.h).
#include <nlohmann/json.hpp>

#include "cli/batch/format.h"

namespace riffle::cli {

Json batch_error_record(size_t line_number, const BatchError& e) {
  return {{"id", text_of("line-%zu", line_number)},
          {"custom_id", e.custom_id.empty() ? Json(nullptr) : Json(e.custom_id)},
          {"line", line_number},
          {"response", nullptr},
          {"error", {{"code", e.code}, {"message", e.message}}}};
}

Json batch_answer_record(size_t line_number, const BatchRequest& request,
                         const std::string& model_name, const std::string& text,
                         const std::string& reasoning, const riffle_request_end& end) {
  const riffle_result& result = end.result;
  const riffle_stats& stats = end.stats;
  Json choice = {{"index", 0}};
  if (request.chat) choice["message"] = {{"role", "assistant"}, {"content", text}};
  else choice["text"] = text;
  if (!reasoning.empty()) choice["message"]["reasoning_content"] = reasoning;
  choice["finish_reason"] = result.finish == RIFFLE_FINISH_STOP ? "stop" : "length";
  const Json body = {{"object", request.chat ? "chat.completion" : "text_completion"},
                     {"model", model_name},
                     {"choices", Json::array({choice})},
                     {"usage",
                      {{"prompt_tokens", end.prompt_tokens},
                       {"completion_tokens", result.n_tokens},
                       {"total_tokens", end.prompt_tokens + static_cast<size_t>(result.n_tokens)}}},
                     {"riffle",
                      {{"finish", finish_name(result.finish)},
                       {"seed", request.sampling.seed},
                       {"reused_tokens", end.reused_tokens},
                       {"cached_tokens", end.loaded_tokens},
                       {"kv_read_pct", number(kv_read_pct(stats))},
                       {"pool_hit_pct", number(pool_hit_pct(stats))},
                       {"kv_blocks_total", stats.kv_blocks_total},
                       {"kv_blocks_read", stats.kv_blocks_read},
                       {"kv_tokens_total", stats.kv_tokens_total},
                       {"kv_tokens_read", stats.kv_tokens_read},
                       {"kv_bytes_read", stats.kv_bytes_read},
                       {"loaded_bytes", stats.loaded_bytes},
                       {"prefill_seconds", number(stats.prefill_seconds)},
                       {"decode_seconds", number(stats.decode_seconds)}}}};
  return {{"id", text_of("line-%zu", line_number)},
          {"custom_id", request.custom_id},
          {"line", line_number},
          {"response",
           {{"status_code", 200}, {"request_id", text_of("req-%zu", line_number)}, {"body", body}}},
          {"error", nullptr}};
}

}  // namespace riffle::cli
