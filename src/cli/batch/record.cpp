#include "cli/batch/record.h"

#include <nlohmann/json.hpp>

#include "riffle_request.h"

namespace riffle::cli {
namespace {

std::string random_id() {
  char id[32];
  riffle_random_id(id, sizeof id);
  return id;
}

// Adds up the figures of the choices. A prompt counts once, however many answers it has.
Facts sum_of(std::span<const Facts> ends, size_t n) {
  Facts sum;
  double prompt = 0, reused = 0, loaded = 0;
  for (size_t i = 0; i < ends.size(); ++i) {
    const Facts& end = ends[i];
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

std::string batch_answer_record(size_t line_number, BatchRequest& request, uint64_t seed,
                                const AnsweringModel& by, std::span<const Facts> ends) {
  const Facts sum = sum_of(ends, static_cast<size_t>(request.info.count("n")));
  Json finish = Json::array();
  for (const Facts& end : ends)
    finish.push_back(finish_name(static_cast<riffle_finish>(end.id("finish"))));
  riffle_json body{};
  riffle_request* const r = request.handle.get();
  if (riffle_request_set_names(r, by.name.c_str(), by.fingerprint.c_str()) != RIFFLE_OK ||
      riffle_request_response(r, &body) != RIFFLE_OK)
    throw Exit(EXIT_RUN, riffle_request_error(r));
  const Json own = {{"finish", ends.size() == 1 ? finish[0] : finish},
                    {"seed", seed},
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
                    {"decode_seconds", number(sum.number("decode_seconds"))}};
  const std::string begin = dump(Json{{"id", "batch_req_" + random_id()},
                                      {"custom_id", request.custom_id},
                                      {"line", line_number}}),
                    response =
                        dump(Json{{"status_code", 200}, {"request_id", "req_" + random_id()}});
  const auto open = [](std::string_view object) {
    return std::string(object, 0, object.size() - 1);
  };
  return open(begin) + ",\"response\":" + open(response) +
         ",\"body\":" + open({body.data, body.len}) + ",\"riffle\":" + dump(own) +
         "}},\"error\":null}";
}

}  // namespace riffle::cli
