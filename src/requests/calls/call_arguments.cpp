#include "requests/calls/call_arguments.h"

#include <algorithm>
#include <cmath>

#include "grammar/formats.h"
#include "grammar/regex.h"
#include "util/json_file.h"

namespace riffle::requests {

using grammar::Expressions;
using grammar::ExprId;

namespace {

// Returns the schema of the arguments as text. Without a word about additionalProperties there are
// none: a call of an unknown parameter would fail. Arguments are an object, whatever the schema
// says.
std::string arguments_schema(const Tool& tool) {
  const Json* const schema = tool.parameters();
  if (!schema || !schema->is_object() || schema->empty())
    return R"({"type":"object","additionalProperties":false})";
  const auto has = [&](const char* key) { return schema->find(key) != nullptr; };
  std::string text = schema->dump().substr(1);
  if (!has("additionalProperties") && !has("allOf") && !has("anyOf") && !has("oneOf") &&
      !has("$ref") && !has("patternProperties"))
    text = "\"additionalProperties\":false," + text;
  return has("type") ? "{" + text : "{\"type\":\"object\"," + text;
}

}  // namespace

Arguments::Arguments(const Tool& tool, Expressions* e) : tool_(tool), e_(*e) {
  const Json* const schema = tool.parameters();
  const Json* const type = schema ? schema->find("type") : nullptr;
  if (type && !type->equals("object"))
    refuse("/type", "found " + shown(*type) + ", expected \"object\"");
  try {
    parts_ = std::make_unique<grammar::JsonSchemaParts>(arguments_schema(tool), e);
  } catch (const Error& error) {
    refused(error, "");
  }
}

ExprId Arguments::json(const std::string& place) {
  try {
    return e_.rule(parts_->rule(place));
  } catch (const Error& error) {
    refused(error, place);
  }
}

ExprId Arguments::json_of(const std::string& text, const std::string& place) {
  try {
    return e_.rule(grammar::read_json_schema(text, &e_));
  } catch (const Error& error) {
    refused(error, place);
  }
}

uint32_t Arguments::count(const Parameter& p, const char* key, uint32_t none) const {
  constexpr double kMost = 60000;
  const Json* const n = p.schema->find(key);
  if (!n) return none;
  const std::string place = p.place + "/" + key;
  if (!n->is_number() || n->number() < 0 || n->number() != std::floor(n->number()))
    refuse(place, "found " + shown(*n) + ", expected a whole number, 0 or more",
           RIFFLE_BAD_ARGUMENT);
  // A smaller maximum is kept too; a smaller minimum is not.
  if (n->number() > kMost && std::string_view(key).starts_with("min"))
    refuse(place, "found " + shown(*n) + ", expected at most 60000");
  return static_cast<uint32_t>(std::min(n->number(), kMost));
}

std::span<const Json> Arguments::list(const Json& schema, const std::string& place,
                                      const char* key) const {
  const Json* const items = schema.find(key);
  if (!items) return {};
  if (!items->is_array() || (items->elements().empty() && std::string_view(key) != "required"))
    refuse(place + "/" + key, "found " + shown(*items) + ", expected a list of values",
           RIFFLE_BAD_ARGUMENT);
  return items->elements();
}

std::vector<Parameter> Arguments::members(const Json& schema, const std::string& place) const {
  for (const char* const word :
       {"allOf", "anyOf", "oneOf", "$ref", "patternProperties", "not", "if", "dependentRequired",
        "dependentSchemas", "propertyNames", "enum", "const"})
    if (schema.find(word)) refuse_unenforced(place, word);
  std::vector<Parameter> out;
  const Json* const properties = schema.find("properties");
  if (properties && !properties->is_object())
    refuse(place + "/properties", "found " + shown(*properties) + ", expected an object",
           RIFFLE_BAD_ARGUMENT);
  const std::span<const Json> names = list(schema, place, "required");
  const auto is_required = [&](const std::string& name) {
    return std::any_of(names.begin(), names.end(), [&](const Json& n) { return n.equals(name); });
  };
  for (const Json& name : names)
    if (!name.is_string())
      refuse(place + "/required", "found " + shown(name) + ", expected names of members",
             RIFFLE_BAD_ARGUMENT);
    else if (!(properties && properties->find(name.string())))
      refuse(place, "found the required member \"" + json_string(name.string()) +
                        "\" without a property, expected a property of this name");
  const size_t n = properties ? properties->size() : 0;
  for (const char* const limit : {"minProperties", "maxProperties"})
    if (const Json* const most = schema.find(limit);
        most && most->is_number() &&
        (limit[1] == 'i' ? most->number() > static_cast<double>(names.size())
                         : most->number() < static_cast<double>(n)))
      refuse_unenforced(place, std::string(limit) + " " + most->dump());
  if (!properties) return out;
  for (const auto& [name, property] : properties->members())
    out.push_back(
        {name, &property, is_required(name), place + "/properties/" + json_pointer_token(name)});
  return out;
}

// Returns the texts of enum and const that the lengths allow; nullopt: neither is given.
std::optional<std::vector<std::string>> Arguments::words(const Parameter& p) const {
  const std::span<const Json> all = list(*p.schema, p.place, "enum");
  const Json* const one = p.schema->find("const");
  if (all.empty() && !one) return std::nullopt;
  std::vector<std::string> out;
  for (const Json& value : all.empty() ? std::span(one, 1) : all) {
    if (!value.is_string() || (one && !one->equals(value.string()))) continue;
    const auto n =
        static_cast<size_t>(std::count_if(value.string().begin(), value.string().end(), [](char c) {
          return (static_cast<uint8_t>(c) & 0xc0) != 0x80;
        }));
    if (n >= count(p, "minLength", 0) && n <= count(p, "maxLength", grammar::kUnlimited))
      out.push_back(value.string());
  }
  return out;
}

// Returns text that matches the pattern or the format, of characters that are allowed.
ExprId Arguments::matching(const Parameter& p, std::vector<grammar::CodeRange> allowed) {
  const Json* const format = p.schema->find("format");
  const Json* const given = p.schema->find("pattern");
  const char* const known =
      format && format->is_string() ? grammar::format_pattern(format->string()) : nullptr;
  if (format && (given || !known))
    refuse(p.place, given ? std::string("found pattern and format, expected one of them")
                          : "found format " + format->dump() + ", expected one of " +
                                grammar::format_names());
  if (given && !given->is_string())
    refuse(p.place, "found a pattern that is no string, expected a regular expression");
  grammar::RegexOptions options;
  options.search = true;
  options.chars = [&](const std::vector<grammar::CodeRange>& ranges) {
    return e_.chars(grammar::common_ranges(ranges, allowed));
  };
  try {
    const grammar::Regex regex = grammar::read_regex(given ? given->string() : known, options, &e_);
    const uint32_t low = count(p, "minLength", 0),
                   high = count(p, "maxLength", grammar::kUnlimited);
    if (regex.min < low || (high != grammar::kUnlimited && regex.max > high))
      refuse(p.place,
             "found minLength or maxLength together with a pattern or format that has "
             "other lengths; write the lengths into the pattern");
    return regex.expr;
  } catch (const Error& error) {
    refused(error, p.place);
  }
}

ExprId Arguments::text(const Parameter& p, std::string_view lead, std::string_view mark) {
  for (const char* const word : {"not", "allOf", "anyOf", "oneOf", "$ref"})
    if (p.schema->find(word)) refuse_unenforced(p.place, word);
  const ExprId end = e_.text(std::string(lead) + std::string(mark));
  const bool formed = p.schema->find("pattern") || p.schema->find("format");
  if (const auto listed = words(p)) {
    if (formed) refuse(p.place, "found enum or const with pattern or format, expected one of them");
    for (const std::string& word : *listed)
      if (word.find(mark) != word.npos)
        refuse(p.place, "found the value \"" + json_string(word) + "\", expected none with " +
                            std::string(mark) + ", which ends a value of this model");
    return e_.sequence({e_.words(*listed), end});
  }
  const uint32_t low = count(p, "minLength", 0), high = count(p, "maxLength", grammar::kUnlimited);
  if (!formed && low == 0 && high == grammar::kUnlimited) return e_.until(mark);
  // Characters that cannot begin the mark, so that its place is the text's end.
  const auto first = static_cast<uint8_t>(mark[0]);
  std::vector<grammar::CodeRange> allowed = {{0, first - 1u}, {first + 1u, grammar::kLastCode}};
  if (formed) return e_.sequence({matching(p, std::move(allowed)), end});
  if (low > high) return Expressions::kNever;
  allowed[0].low = 0x20;
  return e_.sequence({e_.repeat(e_.chars(std::move(allowed)), low, high), end});
}

}  // namespace riffle::requests
