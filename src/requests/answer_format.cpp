#include "requests/answer_format.h"

#include <algorithm>

namespace riffle::requests {
namespace {

void set(const Fields& f, const std::string& field, riffle_grammar_kind kind, std::string text,
         Request& request) {
  if (request.grammar)
    f.fail(kWrongValue, field,
           "fields " + request.grammar->field + " and " + field + " are both given, expected one");
  request.grammar = AnswerGrammar{kind, std::move(text), field};
}

void read_schema(const Fields& f, const std::string& field, const Json& value, Request& request) {
  // vLLM takes a schema as an object, or as its text.
  if (value.is_string()) return set(f, field, RIFFLE_GRAMMAR_JSON_SCHEMA, value.string(), request);
  if (!value.is_object() && !value.is_boolean()) f.wrong(field, value, "a JSON Schema");
  set(f, field, RIFFLE_GRAMMAR_JSON_SCHEMA, value.dump(), request);
}

void read_text(const Fields& f, const std::string& field, const Json& value,
               riffle_grammar_kind kind, Request& request) {
  const std::string text = f.text(field, value);
  if (!text.empty()) set(f, field, kind, text, request);
}

// Reads a list of texts; the answer is one of them.
void read_choice(const Fields& f, const std::string& field, const Json& value, Request& request) {
  if (!value.is_array() || value.empty()) f.wrong(field, value, "a list of strings");
  std::string rule = "root ::= ";
  for (size_t i = 0; i < value.size(); ++i) {
    rule += i > 0 ? " | \"" : "\"";
    for (const char c : f.text(field + "[" + std::to_string(i) + "]", value[i])) {
      if (c == '\n') rule += "\\n";
      else if (c == '\r') rule += "\\r";
      else if (c == '"' || c == '\\') rule += std::string("\\") + c;
      else rule += c;
    }
    rule += '"';
  }
  set(f, field, RIFFLE_GRAMMAR_GBNF, std::move(rule), request);
}

void read_response_format(const Fields& f, const std::string& field, const Json& value,
                          Request& request) {
  const Json* const type = value.is_object() ? given(value, "type") : nullptr;
  if (!type || !type->is_string()) f.wrong(field, value, "an object with a type");
  // llama.cpp's servers take the schema next to the type.
  const Json* schema = given(value, "schema");
  std::string at = field + ".schema";
  if (type->equals("text")) return;
  if (type->equals("json_schema")) {
    if (const Json* const named = given(value, "json_schema")) {
      at = field + ".json_schema.schema";
      schema = named->is_object() ? given(*named, "schema") : nullptr;
    }
    if (!schema) f.missing(field + ".json_schema.schema");
  } else if (!type->equals("json_object")) {
    f.wrong(field + ".type", *type, "text, json_object or json_schema");
  }
  if (schema) return read_schema(f, at, *schema, request);
  set(f, field, RIFFLE_GRAMMAR_JSON_SCHEMA, R"({"type":"object"})", request);
}

void read_structured_outputs(const Fields& f, const std::string& field, const Json& value,
                             Request& request) {
  const char* const members = "choice, grammar, json, json_object or regex";
  if (!value.is_object()) f.wrong(field, value, "an object with " + std::string(members));
  const auto all = value.members();
  if (std::all_of(all.begin(), all.end(), [](const auto& one) { return one.value.is_null(); }))
    f.wrong(field, value, "one of " + std::string(members));
  for (const Json::Member* const m : members_by_key(value)) {
    const auto& [key, one] = *m;
    const std::string at = field + "." + key;
    if (one.is_null()) continue;
    if (key == "json") read_schema(f, at, one, request);
    else if (key == "regex") read_text(f, at, one, RIFFLE_GRAMMAR_REGEX, request);
    else if (key == "grammar") read_text(f, at, one, RIFFLE_GRAMMAR_GBNF, request);
    else if (key == "choice") read_choice(f, at, one, request);
    else if (key == "json_object" && f.truth(at, one))
      set(f, at, RIFFLE_GRAMMAR_JSON_SCHEMA, R"({"type":"object"})", request);
    else if (key != "json_object")
      f.fail(kUnsupported, at,
             "field " + field + "." + shown(key) + " is not supported, expected " + members);
  }
}

}  // namespace

void read_answer_format(const Fields& f, const std::string& field, const Json& value,
                        Request& request) {
  const std::string name = field.substr(field.rfind('.') + 1);
  if (name == "response_format") read_response_format(f, field, value, request);
  else if (name == "structured_outputs") read_structured_outputs(f, field, value, request);
  else if (name == "guided_choice") read_choice(f, field, value, request);
  else if (name == "guided_regex") read_text(f, field, value, RIFFLE_GRAMMAR_REGEX, request);
  else if (name == "guided_json" || name == "json_schema") read_schema(f, field, value, request);
  else read_text(f, field, value, RIFFLE_GRAMMAR_GBNF, request);
}

}  // namespace riffle::requests
