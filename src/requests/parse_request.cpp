#include <array>

#include "requests/fields.h"
#include "requests/json_body.h"
#include "requests/seed.h"

namespace riffle::requests {
namespace {

// Azure's batch files leave the version out.
constexpr std::array<std::string_view, 2> kCompletions{"/v1/completions", "/completions"};
constexpr std::array<std::string_view, 2> kChat{"/v1/chat/completions", "/chat/completions"};

bool is_one_of(std::span<const std::string_view> list, const std::string& text) {
  return std::find(list.begin(), list.end(), text) != list.end();
}

constexpr FieldUse kLineFields[] = {{"custom_id", Use::HONOURED},
                                    {"method", Use::HONOURED},
                                    {"url", Use::HONOURED},
                                    {"body", Use::HONOURED}};

void check_id(const Fields& f, const Json& line) {
  const char* const field = "custom_id";
  const Json* const id = line.find(field);
  if (!id) f.fail(kMissingId, field, "field custom_id is missing, expected a string");
  if (!id->is_string() || id->string().empty())
    f.fail(kMissingId, field,
           "field custom_id is empty or not a string, expected a string with text");
  if (id->string().size() > kMaxNameBytes)
    f.fail(kMissingId, field,
           format("field custom_id is longer than %zu bytes, expected %zu at most", kMaxNameBytes,
                  kMaxNameBytes));
}

// Runs first: other checks would report fields as unknown that are in the line itself instead of in
// body.
void check_body(const Fields& f, const Json& line) {
  const Json* const body = line.find("body");
  if (body && body->is_object()) return;
  const char* const expected = "an object with messages or prompt";
  if (body) f.wrong("body", *body, expected);
  for (const char* const name : {"messages", "prompt"})
    if (line.find(name))
      f.fail(kMissing, "body",
             std::string("field body is missing: found ") + name +
                 " in the line itself, expected it inside of body");
  f.missing("body", expected);
}

// Parses a line of a batch. Returns true if its body has a seed of its own.
bool parse_line(const Fields& f, const Json& line, Request* r) {
  check_id(f, line);
  check_body(f, line);
  std::string url;
  const Json* body = nullptr;
  for (const Json::Member* const m : members_by_key(line)) {
    const auto& [key, value] = *m;
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
  const bool seeded = parse_body(f, *body, *r);
  if (!url.empty() && is_one_of(kChat, url) != r->chat)
    f.fail(kWrongValue, "url",
           "field url is " + url + " and the body has " + (r->chat ? "messages" : "a prompt") +
               ", expected both of one kind");
  return seeded;
}

}  // namespace

void parse_request(riffle_request_kind kind, std::string_view text, uint32_t flags,
                   const GenerateOptions& answer, const ConversationOptions& conversation,
                   Request* r) {
  r->kind = kind;
  r->answer = answer;
  r->conversation = conversation;
  const Json json = parse_object(text, &r->custom_id);
  const Fields f((flags & RIFFLE_REQUEST_IGNORE_UNKNOWN) != 0, &r->ignored);
  const bool line = kind == RIFFLE_REQUEST_BATCH_LINE;
  if (!line) r->custom_id.clear();
  const bool seeded = line ? parse_line(f, json, r) : parse_body(f, json, *r);
  if (!seeded && (flags & RIFFLE_REQUEST_DRAW_SEED)) r->answer.sampling.seed = draw_seed();
}

}  // namespace riffle::requests
