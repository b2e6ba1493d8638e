#include "cli/batch/format.h"

#include <nlohmann/json.hpp>
#include <stdexcept>

#include "riffle_request.h"

namespace riffle::cli {

BatchError refusal_of(const riffle_request* request, size_t line_number) {
  const Facts refusal(riffle_request_refusal(request));
  const std::string line = text_of("line %zu: ", line_number) + refusal.text("message");
  const std::string reason = refusal.text("reason"), custom_id = refusal.text("custom_id");
  if (reason == "unknown_field")
    return {"bad_request", line + " (--ignore-unknown answers the line without it)", custom_id};
  return {reason, line, custom_id};
}

// Names the form of a batch file in the error of a line that begins an array, or an object over
// several lines.
static std::string with_form(const std::string& error, std::string_view line) {
  const size_t begin = line.find_first_not_of(" \t");
  const std::string_view text = line.substr(std::min(begin, line.size()));
  const bool array = text.starts_with("[");
  if (!array && text != "{") return error;
  return error.substr(0, error.rfind(", expected ")) + ", expected one object on each line; to " +
         (array ? "convert an array: jq -c '.[]'" : "join the lines of each object: jq -c .") +
         " FILE >FILE.jsonl";
}

BatchRequest parse_batch_line(std::string_view line, size_t line_number,
                              const BatchDefaults& defaults) {
  uint32_t flags = defaults.ignore_unknown ? RIFFLE_REQUEST_IGNORE_UNKNOWN : 0;
  Options options = defaults.options;
  // Identical lines get different answers, so lines without a seed never share one.
  if (defaults.seed) options.set("seed", riffle_derived_seed(*defaults.seed, line_number));
  else flags |= RIFFLE_REQUEST_DRAW_SEED;
  riffle_request* made = nullptr;
  const riffle_status status = riffle_request_create(
      RIFFLE_REQUEST_BATCH_LINE, line.data(), line.size(), options.get(), flags, &made, nullptr, 0);
  RequestHandle handle(made);
  if (!handle) throw std::bad_alloc();
  if (status != RIFFLE_OK) {
    BatchError error = refusal_of(made, line_number);
    if (error.code == "bad_json") error.message = with_form(error.message, line);
    throw error;
  }
  Facts info(riffle_request_info(made));
  std::string custom_id = info.text("custom_id");
  return {std::move(custom_id), std::move(handle), std::move(info)};
}

RecordHead parse_record(std::string_view record) {
  const Json json = parse_json(record);
  if (!json.is_object())
    throw std::runtime_error(std::string("it is a JSON ") + json.type_name() +
                             ", expected an object");
  const auto member = [&](const char* key) -> const Json& {
    const auto it = json.find(key);
    if (it == json.end()) throw std::runtime_error(std::string("it has no member ") + key);
    return *it;
  };
  RecordHead head;
  const Json &line = member("line"), &id = member("custom_id"), &error = member("error"),
             &response = member("response");
  if (!line.is_number_unsigned() || line.get<uint64_t>() == 0)
    throw std::runtime_error("its member line is not a line number");
  if (!id.is_string() && !id.is_null())
    throw std::runtime_error("its member custom_id is not a string");
  if (error.is_null() == response.is_null())
    throw std::runtime_error("it is neither an answer nor an error");
  head.line = line.get<uint64_t>();
  if (id.is_string()) head.custom_id = id.get<std::string>();
  head.failed = !error.is_null();
  const auto text_at = [&](const char* pointer) {
    const Json::json_pointer at(pointer);
    return response.is_object() && response.contains(at) && response[at].is_string()
               ? response[at].get<std::string>()
               : "";
  };
  head.model = {text_at("/body/model"), text_at("/body/system_fingerprint")};
  return head;
}

}  // namespace riffle::cli
