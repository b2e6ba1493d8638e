#include "requests/calls/call_grammar.h"

#include <algorithm>
#include <functional>

#include "grammar/json_schema.h"
#include "util/error.h"

namespace riffle::requests {
namespace {

using grammar::Expressions;
using grammar::ExprId;

constexpr uint32_t kMostCalls = 16;  // in a list

// Adds the place to an error about a schema.
[[noreturn]] void refuse(const Tool& tool, const std::string& place, const std::string& text,
                         riffle_status status = RIFFLE_UNSUPPORTED) {
  throw Error(status,
              "function \"" + json_string(tool.name) + "\", parameters" + place + ": " + text);
}

// Returns the schema of the arguments as text. Without a word about additionalProperties there are
// none: a call of an unknown parameter would fail.
std::string arguments_schema(const Tool& tool) {
  const Json* const schema = tool.parameters();
  if (!schema || schema->is_null())
    return R"({"type":"object","properties":{},"additionalProperties":false})";
  const std::string text = schema->dump();
  const auto has = [&](const char* key) { return schema->find(key) != nullptr; };
  const bool open = has("additionalProperties") || has("allOf") || has("anyOf") || has("oneOf") ||
                    has("$ref") || has("patternProperties");
  if (!schema->is_object() || open) return text;
  const char* const closed = "{\"additionalProperties\":false";
  return schema->empty() ? std::string(closed) + ",\"type\":\"object\"}"
                         : closed + ("," + text.substr(1));
}

ExprId schema_expr(const Tool& tool, const std::string& place, const std::string& text,
                   Expressions* e) {
  try {
    return e->rule(grammar::read_json_schema(text, e));
  } catch (const Error& error) {
    if (error.status() == RIFFLE_OUT_OF_MEMORY) throw;
    refuse(tool, place, error.what(), error.status());
  }
}

ExprId arguments_expr(const Tool& tool, Expressions* e) {
  return schema_expr(tool, "", arguments_schema(tool), e);
}

// A parameter of a function whose arguments are not written as JSON.
struct Parameter {
  std::string name;
  const Json* schema;
  bool required;
  std::string place;  // for errors

  bool is(const char* type) const {
    const Json* const t = schema->find("type");
    return t && t->equals(type);
  }
};

std::vector<Parameter> members_of(const Tool& tool, const Json& schema, const std::string& place) {
  std::vector<Parameter> out;
  for (const char* const word : {"allOf", "anyOf", "oneOf", "$ref", "patternProperties", "not",
                                 "if", "dependentRequired", "dependentSchemas", "minProperties"})
    if (schema.find(word))
      refuse(tool, place,
             std::string("found ") + word +
                 ", expected an object's properties: this model writes calls that "
                 "are no JSON");
  const Json* const properties = schema.find("properties");
  const Json* const required = schema.find("required");
  if (!properties) return out;
  for (const auto& [name, property] : properties->members()) {
    bool must = false;
    for (const Json& one : required ? required->elements() : std::span<const Json>())
      must = must || one.equals(name);
    out.push_back({name, &property, must, place + "/properties/" + name});
  }
  return out;
}

std::vector<Parameter> parameters_of(const Tool& tool) {
  const Json* const schema = tool.parameters();
  return schema && schema->is_object() ? members_of(tool, *schema, "") : std::vector<Parameter>();
}

// Returns the schema of a parameter as text, with the definitions that it may refer to.
std::string text_of(const Tool& tool, const Parameter& p) {
  std::string text = p.schema->dump();
  for (const char* const key : {"$defs", "definitions"})
    if (const Json* const defs = tool.parameters()->find(key); defs && p.schema->is_object())
      text = "{\"" + std::string(key) + "\":" + defs->dump() +
             (text == "{}" ? "}" : "," + text.substr(1));
  return text;
}

// Text without quotes, up to the mark, which is included. lead: text before the mark that is not a
// part of the value.
ExprId raw_text(const Tool& tool, const Parameter& p, std::string_view lead, std::string_view end,
                Expressions* e) {
  for (const char* const word : {"pattern", "format", "not", "allOf", "anyOf", "oneOf", "$ref"})
    if (p.schema->find(word))
      refuse(tool, p.place,
             std::string("found ") + word +
                 ", expected a string without it: this model writes strings "
                 "without quotes");
  std::vector<std::string> words;
  if (const Json* const one = p.schema->find("enum"))
    for (const Json& value : one->elements())
      if (value.is_string()) words.push_back(value.string());
  if (const Json* const one = p.schema->find("const"); one && one->is_string())
    words.push_back(one->string());
  const ExprId mark = e->text(std::string(lead) + std::string(end));
  if (!words.empty()) return e->sequence({e->words(std::move(words)), mark});
  const Json* const low = p.schema->find("minLength");
  const Json* const high = p.schema->find("maxLength");
  if (!low && !high) return e->until(end);
  // Characters that cannot begin the mark, so that its place is the text's end.
  const auto limit = [](const Json* n, uint32_t none) {
    return n && n->is_number() ? static_cast<uint32_t>(std::min(n->number(), 60000.0)) : none;
  };
  const auto first = static_cast<uint8_t>(end[0]);  // a printable character
  const ExprId any = e->chars({{0x20, first - 1u}, {first + 1u, grammar::kLastCode}});
  return e->sequence({e->repeat(any, limit(low, 0), limit(high, grammar::kUnlimited)), mark});
}

ExprId one_of(ToolList tools, Expressions* e, const std::function<ExprId(const Tool&)>& call) {
  std::vector<ExprId> ways;
  for (const Tool* const tool : tools) ways.push_back(call(*tool));
  return e->choice(std::move(ways));
}

ExprId object_call(const Tool& tool, const char* member, Expressions* e) {
  return e->sequence(
      {e->text("{\"name\": \"" + json_string(tool.name) + "\", \"" + member + "\": "),
       arguments_expr(tool, e), e->text("}")});
}

ExprId list_of(ExprId call, bool several, Expressions* e) {
  if (!several) return call;
  return e->sequence({call, e->repeat(e->sequence({e->text(", "), call}), 0, kMostCalls - 1)});
}

// The members of an object in the schema's order, with commas between those that are there.
ExprId ordered(const std::vector<Parameter>& all, const char* comma, Expressions* e,
               const std::function<ExprId(const Parameter&)>& member) {
  // From the last member on: the rest, if a member came before it or none did.
  ExprId later = Expressions::kEmpty, first = Expressions::kEmpty;
  for (size_t i = all.size(); i-- > 0;) {
    const ExprId one = member(all[i]);
    const ExprId next = e->sequence({e->text(comma), one, later});
    const ExprId begin = e->sequence({one, later});
    const bool must = all[i].required;
    first = must ? begin : e->choice({begin, first});
    later = must ? next : e->choice({next, later});
  }
  return first;
}

// A value of Gemma 4's syntax.
ExprId gemma_value(const Tool& tool, const Parameter& p, Expressions* e) {
  constexpr const char* kQuote = "<|\"|>";
  if (p.is("string")) return e->sequence({e->text(kQuote), raw_text(tool, p, "", kQuote, e)});
  if (p.is("object")) {
    const auto member = [&](const Parameter& m) {
      return e->sequence({e->text(m.name + ":"), gemma_value(tool, m, e)});
    };
    return e->sequence({e->text("{"), ordered(members_of(tool, *p.schema, p.place), ",", e, member),
                        e->text("}")});
  }
  if (p.is("array")) {
    const Json* const items = p.schema->find("items");
    if (!items) refuse(tool, p.place, "found an array without items, expected items");
    const ExprId item = gemma_value(tool, {"", items, true, p.place + "/items"}, e);
    const auto limit = [&](const char* key, uint32_t none) {
      const Json* const n = p.schema->find(key);
      return n && n->is_number() ? static_cast<uint32_t>(std::min(n->number(), 60000.0)) : none;
    };
    const uint32_t low = limit("minItems", 0), high = limit("maxItems", 1000);
    const ExprId some =
        e->sequence({item, e->repeat(e->sequence({e->text(","), item}), low > 1 ? low - 1 : 0,
                                     high > 0 ? high - 1 : 0)});
    return e->sequence({e->text("["),
                        high == 0  ? Expressions::kEmpty
                        : low == 0 ? e->optional(some)
                                   : some,
                        e->text("]")});
  }
  for (const char* const type : {"integer", "number", "boolean", "null"})
    if (p.is(type)) return schema_expr(tool, p.place, text_of(tool, p), e);
  refuse(tool, p.place,
         "found no type of one word, expected string, object, array, integer, "
         "number, boolean or null");
}

}  // namespace

ExprId hermes_grammar(ToolList tools, bool, Expressions* e) {
  return one_of(tools, e, [&](const Tool& tool) {
    return e->sequence(
        {e->text("\n"), object_call(tool, "arguments", e), e->text("\n</tool_call>")});
  });
}

ExprId mistral_list_grammar(ToolList tools, bool several, Expressions* e) {
  const ExprId call =
      one_of(tools, e, [&](const Tool& tool) { return object_call(tool, "arguments", e); });
  return e->sequence({e->text("["), list_of(call, several, e), e->text("]")});
}

ExprId mistral_grammar(ToolList tools, bool, Expressions* e) {
  return one_of(tools, e, [&](const Tool& tool) {
    return e->sequence({e->text(tool.name + "[ARGS]"), arguments_expr(tool, e)});
  });
}

ExprId llama_grammar(ToolList tools, bool, Expressions* e) {
  return one_of(tools, e, [&](const Tool& tool) { return object_call(tool, "parameters", e); });
}

// The parameters of a call in tags, in the schema's order.
static ExprId tagged(const Tool& tool, std::string_view before, std::string_view behind_name,
                     std::string_view lead, std::string_view end, Expressions* e) {
  std::vector<ExprId> parts;
  for (const Parameter& p : parameters_of(tool)) {
    const ExprId value = p.is("string")
                             ? raw_text(tool, p, lead, end, e)
                             : e->sequence({schema_expr(tool, p.place, text_of(tool, p), e),
                                            e->text(std::string(lead) + std::string(end))});
    const ExprId one = e->sequence(
        {e->text(std::string(before) + p.name + std::string(behind_name)), value, e->text("\n")});
    parts.push_back(p.required ? one : e->optional(one));
  }
  return e->sequence(std::move(parts));
}

ExprId xml_grammar(ToolList tools, bool, Expressions* e) {
  return one_of(tools, e, [&](const Tool& tool) {
    return e->sequence({e->text("\n<function=" + tool.name + ">\n"),
                        tagged(tool, "<parameter=", ">\n", "\n", "</parameter>", e),
                        e->text("</function>\n</tool_call>")});
  });
}

ExprId glm_grammar(ToolList tools, bool, Expressions* e) {
  return one_of(tools, e, [&](const Tool& tool) {
    return e->sequence({e->text(tool.name + "\n"),
                        tagged(tool, "<arg_key>", "</arg_key>\n<arg_value>", "", "</arg_value>", e),
                        e->text("</tool_call>")});
  });
}

ExprId gemma_grammar(ToolList tools, bool, Expressions* e) {
  return one_of(tools, e, [&](const Tool& tool) {
    const auto member = [&](const Parameter& p) {
      return e->sequence({e->text(p.name + ":"), gemma_value(tool, p, e)});
    };
    return e->sequence({e->text("call:" + tool.name + "{"),
                        ordered(parameters_of(tool), ",", e, member), e->text("}<tool_call|>")});
  });
}

ExprId lfm_grammar(ToolList tools, bool several, Expressions* e) {
  const ExprId call = one_of(tools, e, [&](const Tool& tool) {
    const auto member = [&](const Parameter& p) {
      const ExprId value = p.is("boolean") ? e->words({"True", "False"})
                                           : schema_expr(tool, p.place, text_of(tool, p), e);
      return e->sequence({e->text(p.name + "="), value});
    };
    return e->sequence(
        {e->text(tool.name + "("), ordered(parameters_of(tool), ", ", e, member), e->text(")")});
  });
  return e->sequence({e->text("["), list_of(call, several, e), e->text("]<|tool_call_end|>")});
}

ExprId harmony_grammar(ToolList tools, bool, Expressions* e) {
  const ExprId call = one_of(tools, e, [&](const Tool& tool) {
    return e->sequence({e->text("<|channel|>commentary to=functions." + tool.name +
                                " <|constrain|>json<|message|>"),
                        arguments_expr(tool, e)});
  });
  const ExprId thought = e->sequence({e->text("<|channel|>analysis<|message|>"),
                                      e->until("<|end|>"), e->text("<|start|>assistant")});
  return e->sequence({e->optional(thought), call});
}

}  // namespace riffle::requests
