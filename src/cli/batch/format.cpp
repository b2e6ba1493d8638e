#include "cli/batch/format.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>

#include "cli/batch/fields.h"
#include "cli/batch/json_line.h"
#include "cli/seed.h"

namespace riffle::cli {
namespace {

// Azure's batch files leave the version out.
constexpr std::string_view kCompletions[] = {"/v1/completions", "/completions"};
constexpr std::string_view kChat[] = {"/v1/chat/completions", "/chat/completions"};

bool is_one_of(std::span<const std::string_view> list, const std::string& text) {
  return std::find(list.begin(), list.end(), text) != list.end();
}

constexpr FieldUse kLineFields[] = {{"custom_id", Use::HONOURED},
                                    {"method", Use::HONOURED},
                                    {"url", Use::HONOURED},
                                    {"body", Use::HONOURED}};

// Runs first: other checks would report fields as unknown that are in the line itself instead of in
// body.
void check_body(const Fields& f, const JsonIn& line) {
  const auto body = line.find("body");
  if (body != line.end() && body->is_object()) return;
  const char* const expected = "an object with messages or prompt";
  if (body != line.end()) f.wrong("body", *body, expected);
  for (const char* const name : {"messages", "prompt"})
    if (line.contains(name))
      f.fail("bad_request", std::string("field body is missing: found ") + name +
                                " in the line itself, expected it inside of body");
  f.fail("bad_request", std::string("field body is missing, expected ") + expected);
}

}  // namespace

BatchRequest parse_batch_line(std::string_view line, size_t line_number,
                              const BatchDefaults& defaults) {
  IgnoredFields ignored;
  const auto fields_of = [&](const std::string& custom_id) {
    return Fields(line_number, custom_id, defaults.ignore_unknown, &ignored);
  };
  const Fields unnamed = fields_of("");
  JsonIn json;
  try {
    json = parse_object(line);
  } catch (const BatchError& e) {
    fields_of(e.custom_id).fail(e.code.c_str(), e.message);
  }
  const auto id = json.find("custom_id");
  if (id == json.end()) unnamed.fail("missing_id", "field custom_id is missing");
  if (!id->is_string() || id->get_ref<const std::string&>().empty())
    unnamed.fail("missing_id",
                 "field custom_id is empty or not a string, expected a string with text");
  if (id->get_ref<const std::string&>().size() > kMaxNameBytes)
    unnamed.fail("missing_id", text_of("field custom_id is longer than %zu bytes", kMaxNameBytes));
  BatchRequest r;
  r.custom_id = id->get<std::string>();
  r.answer = defaults.answer;
  r.thinking = defaults.thinking;
  const Fields f = fields_of(r.custom_id);
  check_body(f, json);
  std::string url;
  const JsonIn* body = nullptr;
  for (const auto& [key, value] : json.items()) {
    if (!f.is_read(field_named(kLineFields, key), "", "", key, value)) continue;
    if (key == "method") {
      if (f.text(key, value) != "POST") f.wrong(key, value, "POST");
    } else if (key == "url") {
      url = f.text(key, value);
      if (!is_one_of(kCompletions, url) && !is_one_of(kChat, url))
        f.wrong(key, value, "/v1/completions or /v1/chat/completions");
    } else if (key == "body") {
      body = &value;
    }
  }
  // Identical lines get different answers, so lines without a seed never share one.
  if (!parse_body(f, *body, r))
    r.answer.set("seed", defaults.seed ? derived_seed(*defaults.seed, line_number) : draw_seed());
  if (!url.empty() && is_one_of(kChat, url) != r.chat)
    f.fail("bad_request",
           "field url is " + url + " but the body has " + (r.chat ? "messages" : "a prompt"));
  r.ignored = std::move(ignored);
  return r;
}

RecordHead parse_record(std::string_view record) {
  JsonIn json;
  try {
    json = parse_object(record);
  } catch (const BatchError& e) {
    throw std::runtime_error(e.message);
  }
  const auto member = [&](const char* key) -> const JsonIn& {
    const auto it = json.find(key);
    if (it == json.end()) throw std::runtime_error(std::string("it has no member ") + key);
    return *it;
  };
  RecordHead head;
  const JsonIn &line = member("line"), &id = member("custom_id"), &error = member("error"),
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
    const JsonIn::json_pointer at(pointer);
    return response.is_object() && response.contains(at) && response[at].is_string()
               ? response[at].get<std::string>()
               : "";
  };
  head.model = {text_at("/body/model"), text_at("/body/system_fingerprint")};
  return head;
}

}  // namespace riffle::cli
