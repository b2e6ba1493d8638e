#include "requests/calls/call_grammar.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>

#include "requests/calls/call_arguments.h"
#include "requests/calls/json_scan.h"
#include "requests/marks.h"
#include "util/error.h"

namespace riffle::requests {
namespace {

using grammar::Expressions;
using grammar::ExprId;

constexpr uint32_t kMostCalls = 16;  // in a list

ExprId one_of(ToolList tools, Expressions* e, const std::function<ExprId(const Tool&)>& call) {
  std::vector<ExprId> ways;
  for (const Tool* const tool : tools) ways.push_back(call(*tool));
  return e->choice(std::move(ways));
}

ExprId object_call(const Tool& tool, const char* member, Expressions* e) {
  return e->sequence(
      {e->text("{\"name\": \"" + json_string(tool.name) + "\", \"" + member + "\": "),
       Arguments(tool, e).json(""), e->text("}")});
}

ExprId list_of(ExprId call, bool several, Expressions* e) {
  if (!several) return call;
  return e->sequence({call, e->repeat(e->sequence({e->text(", "), call}), 0, kMostCalls - 1)});
}

// The members of an object in the schema's order, with commas between those that are there.
ExprId ordered(const std::vector<Parameter>& all, const char* comma, Expressions* e,
               const std::function<ExprId(const Parameter&)>& member) {
  // From the last member on: the rest, if a member came before it or none did. A rule for each, so
  // that the grammar does not double with each member.
  ExprId later = Expressions::kEmpty, first = Expressions::kEmpty;
  for (size_t i = all.size(); i-- > 0;) {
    const ExprId one = e->rule(e->add_rule("member", member(all[i])));
    const ExprId next = e->sequence({e->text(comma), one, later});
    const ExprId begin = e->sequence({one, later});
    const bool must = all[i].required;
    first = e->rule(e->add_rule("members", must ? begin : e->choice({begin, first})));
    later = e->rule(e->add_rule("members", must ? next : e->choice({next, later})));
  }
  return first;
}

// Refuses names that the parser of the format does not read as they are.
void check_name(const Arguments& arguments, const Parameter& p, std::string_view wrong,
                bool edges) {
  const bool spaced = edges && (p.name.empty() || without_left(p.name).size() < p.name.size() ||
                                without_right(p.name).size() < p.name.size());
  if (spaced || p.name.find_first_of(wrong) != p.name.npos)
    arguments.refuse(p.place, "found the name \"" + json_string(p.name) +
                                  "\", expected letters, digits and _: this model writes names "
                                  "without quotes");
}

constexpr std::string_view kGemmaQuote = "<|\"|>";

// Arguments in Gemma 4's syntax.
class GemmaArguments {
 public:
  GemmaArguments(const Tool& tool, Expressions* e) : tool_(tool), arguments_(tool, e), e_(*e) {}
  ExprId all() { return members(arguments_.parameters()); }

 private:
  ExprId members(const std::vector<Parameter>& all) {
    return ordered(all, ",", &e_, [&](const Parameter& m) {
      // The quotation mark of strings may also stand around a key.
      const bool plain = m.name.find_first_of(" \t\r\n:,{}[]<") == m.name.npos && !m.name.empty();
      const std::string quote(plain ? "" : kGemmaQuote);
      if (m.name.find(kGemmaQuote) != m.name.npos) check_name(arguments_, m, "<", false);
      return e_.sequence({e_.text(quote + m.name + quote + ":"), value(m)});
    });
  }

  ExprId value(const Parameter& p) {
    if (p.schema->find("$ref")) return referred(p);
    if (p.schema->find("anyOf")) return alternatives(p);
    if (p.is("string")) return string(p);
    const Json* const type = p.schema->find("type");
    if ((!type || type->is_array()) && (p.schema->find("enum") || p.schema->find("const")))
      return listed(p);
    if (p.is("object"))
      return e_.sequence(
          {e_.text("{"), members(arguments_.members(*p.schema, p.place)), e_.text("}")});
    if (p.is("array")) return list(p);
    for (const char* const plain : {"integer", "number", "boolean", "null"})
      if (p.is(plain)) return arguments_.json(p.place);
    if (!type || !type->is_array())
      arguments_.refuse_unenforced(p.place, "a value without type, enum or const",
                                   "add one of them");
    std::vector<ExprId> ways;
    for (const Json& one : arguments_.list(*p.schema, p.place, "type"))
      ways.push_back(of_type(p, one));
    return e_.choice(std::move(ways));
  }

  // One of several types.
  ExprId of_type(const Parameter& p, const Json& type) {
    if (type.equals("null")) return e_.text("null");
    if (type.equals("boolean")) return e_.words({"true", "false"});
    if (type.equals("string")) return string(p);
    if (!type.equals("integer") && !type.equals("number"))
      arguments_.refuse(p.place, "found the type " + type.dump() +
                                     " in a list of types, expected "
                                     "string, integer, number, boolean or null");
    std::string text = "{\"type\":" + type.dump();
    for (const char* const limit :
         {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
      if (const Json* const n = p.schema->find(limit))
        text += ",\"" + std::string(limit) + "\":" + n->dump();
    return arguments_.json_of(text + "}", p.place);
  }

  ExprId string(const Parameter& p) {
    return e_.sequence({e_.text(kGemmaQuote), arguments_.text(p, "", kGemmaQuote)});
  }

  // Values of enum and const.
  ExprId listed(const Parameter& p) {
    const std::span<const Json> all = arguments_.list(*p.schema, p.place, "enum");
    const Json* const one = p.schema->find("const");
    const Json* const types = p.schema->find("type");
    std::vector<std::string> words;
    for (const Json& v : all.empty() ? std::span(one, 1) : all) {
      if (v.is_object() || v.is_array() || (!all.empty() && one) ||
          (v.is_string() && v.string().find(kGemmaQuote) != std::string::npos))
        arguments_.refuse(p.place, "found the value " + v.dump().substr(0, 60) +
                                       " of enum or const, expected strings, numbers, true, false "
                                       "or null in one of them");
      const char* const type = v.is_string()    ? "string"
                               : v.is_boolean() ? "boolean"
                               : v.is_null()    ? "null"
                               : v.is_integer() ? "integer"
                                                : "number";
      const auto fits = [&](const Json& t) {
        return t.equals(type) || (v.is_integer() && t.equals("number"));
      };
      if (types && std::none_of(types->elements().begin(), types->elements().end(), fits)) continue;
      const std::string quote(kGemmaQuote);
      words.push_back(v.is_string() ? quote + v.string() + quote : v.dump());
    }
    return e_.words(std::move(words));
  }

  ExprId alternatives(const Parameter& p) {
    alone(p, "anyOf");
    const std::span<const Json> all = arguments_.list(*p.schema, p.place, "anyOf");
    std::vector<ExprId> ways;
    for (size_t i = 0; i < all.size(); ++i)
      ways.push_back(value({p.name, &all[i], true, p.place + "/anyOf/" + std::to_string(i)}));
    return e_.choice(std::move(ways));
  }

  // A schema may refer to itself, so each place has a rule.
  ExprId referred(const Parameter& p) {
    alone(p, "$ref");
    const Json& to = *p.schema->find("$ref");
    const std::string place = to.is_string() ? to.string() : "";
    const Json* const schema =
        place.starts_with("#") ? tool_.parameters()->at_pointer(place.substr(1)) : nullptr;
    if (!schema)
      arguments_.refuse(p.place, "found $ref " + to.dump() +
                                     ", expected a place in this schema, such as #/$defs/name");
    const auto [known, fresh] = rules_.emplace(place, 0);
    if (fresh) {
      const uint32_t rule = known->second = e_.declare(place);
      e_.define(rule, value({p.name, schema, true, place.substr(1)}));
    }
    return e_.rule(rules_.at(place));
  }

  // Refuses a schema that has more than this keyword and notes.
  void alone(const Parameter& p, std::string_view keyword) {
    for (const auto& [key, more] : p.schema->members())
      if (key != keyword && key != "description" && key != "title" && key != "default" &&
          key != "examples" && key != "$comment")
        arguments_.refuse(p.place, "found \"" + json_string(key) + "\" with " +
                                       std::string(keyword) + ", expected " + std::string(keyword) +
                                       " alone");
  }

  ExprId list(const Parameter& p) {
    for (const char* const word :
         {"prefixItems", "contains", "uniqueItems", "enum", "const", "not", "allOf", "oneOf"})
      if (p.schema->find(word)) arguments_.refuse_unenforced(p.place, word);
    const Json* const items = p.schema->find("items");
    if (!items) arguments_.refuse(p.place, "found an array without items, expected items");
    const ExprId item = value({"", items, true, p.place + "/items"});
    const uint32_t low = arguments_.count(p, "minItems", 0),
                   high = arguments_.count(p, "maxItems", 1000);
    if (low > high) return Expressions::kNever;
    const ExprId some =
        e_.sequence({item, e_.repeat(e_.sequence({e_.text(","), item}), low > 1 ? low - 1 : 0,
                                     high > 0 ? high - 1 : 0)});
    return e_.sequence({e_.text("["),
                        high == 0  ? Expressions::kEmpty
                        : low == 0 ? e_.optional(some)
                                   : some,
                        e_.text("]")});
  }

  const Tool& tool_;
  Arguments arguments_;
  Expressions& e_;
  std::map<std::string, uint32_t> rules_;
};

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
    return e->sequence({e->text(tool.name + "[ARGS]"), Arguments(tool, e).json("")});
  });
}

// The beginnings of a call of Llama 3, as its releases write them, and the text up to the
// arguments.
static std::vector<std::array<std::string, 2>> llama_begins(const Tool& tool) {
  const std::string name = json_string(tool.name);
  return {{"{\"name\": \"" + name + "\"", ", \"parameters\": "},
          {"{\"type\": \"function\", \"name\": \"" + name + "\"", ", \"parameters\": "},
          {"{\"name\":\"" + name + "\"", ",\"parameters\":"}};
}

static ExprId llama_call(ToolList tools, Expressions* e) {
  return one_of(tools, e, [&](const Tool& tool) {
    std::vector<std::string> begins;
    for (const auto& [begin, more] : llama_begins(tool)) begins.push_back(begin + more);
    return e->sequence({e->words(std::move(begins)), Arguments(tool, e).json(""), e->text("}")});
  });
}

ExprId llama_grammar(ToolList tools, bool, Expressions* e) { return llama_call(tools, e); }

// Any text that has none of these words at its beginning, and no white space. words: sorted, equal
// in their first `at` bytes, ASCII.
static ExprId other_beginning(std::span<const std::string> words, size_t at, ExprId any,
                              Expressions* e) {
  if (words[0].size() == at) return Expressions::kNever;
  std::vector<grammar::CodeRange> known;
  if (at == 0) known = {{'\t', '\n'}, {'\r', '\r'}, {' ', ' '}};
  std::vector<ExprId> ways = {Expressions::kEmpty};
  for (size_t i = 0; i < words.size();) {
    const char c = words[i][at];
    size_t n = i;
    while (n < words.size() && words[n][at] == c) ++n;
    known.push_back({static_cast<uint8_t>(c), static_cast<uint8_t>(c)});
    ways.push_back(
        e->sequence({e->text({&c, 1}), other_beginning(words.subspan(i, n - i), at + 1, any, e)}));
    i = n;
  }
  const ExprId other = e->chars(grammar::inverted_ranges(grammar::normal_ranges(std::move(known))));
  ways.push_back(e->sequence({other, any}));
  return e->rule(e->add_rule("text", e->choice(std::move(ways))));
}

ExprId llama_answers(ToolList tools, bool several, ExprId text, Expressions* e) {
  constexpr const char* kTag = "<|python_tag|>";
  const ExprId one = llama_call(tools, e);
  const ExprId more = e->sequence({e->text("; "), one});
  const ExprId calls = several ? e->sequence({one, e->repeat(more, 0, kMostCalls - 1)}) : one;
  const ExprId spaces =
      e->repeat(e->chars({{'\t', '\n'}, {'\r', '\r'}, {' ', ' '}}), 0, grammar::kUnlimited);
  const ExprId tag = e->sequence({e->text(kTag), spaces});
  if (text != Expressions::kNever) return e->choice({text, e->sequence({e->optional(tag), calls})});
  std::vector<std::string> begins;
  for (const Tool* const tool : tools)
    for (const auto& [begin, behind] : llama_begins(*tool)) begins.push_back(begin);
  std::sort(begins.begin(), begins.end());
  const ExprId any = e->rule(
      e->add_rule("text", e->repeat(e->chars({{0, grammar::kLastCode}}), 0, grammar::kUnlimited)));
  const ExprId tagged = e->choice({calls, other_beginning(begins, 0, any, e)});
  begins.emplace_back(kTag);
  std::sort(begins.begin(), begins.end());
  return e->sequence(
      {spaces, e->choice({calls, e->sequence({tag, tagged}), other_beginning(begins, 0, any, e)})});
}

// The parameters of a call in tags, in the schema's order. wrong: characters that a name cannot
// have. edges: whether the parser drops white space around a name.
static ExprId tagged(const Tool& tool, std::string_view before, std::string_view behind_name,
                     std::string_view lead, std::string_view end, bool edges, Expressions* e) {
  Arguments arguments(tool, e);
  std::vector<ExprId> parts;
  for (const Parameter& p : arguments.parameters()) {
    check_name(arguments, p, behind_name.substr(0, 1), edges);
    const ExprId value =
        p.is("string")
            ? arguments.text(p, lead, end)
            : e->sequence({arguments.json(p.place), e->text(std::string(lead) + std::string(end))});
    const ExprId one = e->sequence(
        {e->text(std::string(before) + p.name + std::string(behind_name)), value, e->text("\n")});
    parts.push_back(p.required ? one : e->optional(one));
  }
  return e->sequence(std::move(parts));
}

ExprId xml_grammar(ToolList tools, bool, Expressions* e) {
  return one_of(tools, e, [&](const Tool& tool) {
    return e->sequence({e->text("\n<function=" + tool.name + ">\n"),
                        tagged(tool, "<parameter=", ">\n", "\n", "</parameter>", false, e),
                        e->text("</function>\n</tool_call>")});
  });
}

ExprId glm_grammar(ToolList tools, bool, Expressions* e) {
  return one_of(tools, e, [&](const Tool& tool) {
    return e->sequence(
        {e->text(tool.name + "\n"),
         tagged(tool, "<arg_key>", "</arg_key>\n<arg_value>", "", "</arg_value>", true, e),
         e->text("</tool_call>")});
  });
}

ExprId gemma_grammar(ToolList tools, bool, Expressions* e) {
  return one_of(tools, e, [&](const Tool& tool) {
    return e->sequence({e->text("call:" + tool.name + "{"), GemmaArguments(tool, e).all(),
                        e->text("}<tool_call|>")});
  });
}

ExprId lfm_grammar(ToolList tools, bool several, Expressions* e) {
  const ExprId call = one_of(tools, e, [&](const Tool& tool) {
    Arguments arguments(tool, e);
    const auto member = [&](const Parameter& p) {
      check_name(arguments, p, kNotInKeyword, true);
      const bool any = p.is("boolean") && !p.schema->find("enum") && !p.schema->find("const");
      return e->sequence(
          {e->text(p.name + "="), any ? e->words({"True", "False"}) : arguments.json(p.place)});
    };
    return e->sequence(
        {e->text(tool.name + "("), ordered(arguments.parameters(), ", ", e, member), e->text(")")});
  });
  return e->sequence({e->text("["), list_of(call, several, e), e->text("]<|tool_call_end|>")});
}

// Control tokens of gpt-oss stand here with kOnlyControl, since ReasoningSplit knows their ids
// only.

// Messages before the call or the answer: reasoning, and text for the user.
static ExprId harmony_before(Expressions* e) {
  const ExprId rest = e->sequence({e->until("\xff<|end|>"), e->text("\xff<|start|>assistant")});
  const ExprId header = e->words(
      {"\xff<|channel|>analysis\xff<|message|>", "\xff<|channel|>commentary\xff<|message|>"});
  return e->repeat(e->sequence({header, rest}), 0, grammar::kUnlimited);
}

// The model names the function in its channel's header, or before it.
static ExprId harmony_call(ToolList tools, Expressions* e) {
  const ExprId behind = e->sequence(
      {e->optional(e->words({" \xff<|constrain|>json", " json"})), e->text("\xff<|message|>")});
  return one_of(tools, e, [&](const Tool& tool) {
    const std::string to = " to=functions." + tool.name;
    std::vector<std::string> headers;
    for (const char* const channel : {"\xff<|channel|>commentary", "\xff<|channel|>analysis"}) {
      headers.push_back(channel + to);
      headers.push_back(to + channel);
    }
    return e->sequence({e->words(std::move(headers)), behind, Arguments(tool, e).json("")});
  });
}

ExprId harmony_grammar(ToolList tools, bool, Expressions* e) {
  return e->sequence({harmony_before(e), harmony_call(tools, e)});
}

ExprId harmony_answers(ToolList tools, bool, ExprId text, Expressions* e) {
  // A text that begins another message is no answer.
  const ExprId any = e->without("\xff<|channel|>");
  const ExprId answer =
      e->sequence({e->words({"\xff<|channel|>final", "\xff<|channel|>final \xff<|constrain|>json"}),
                   e->text("\xff<|message|>"), text == Expressions::kNever ? any : text});
  return e->sequence({harmony_before(e), e->choice({harmony_call(tools, e), answer})});
}

}  // namespace riffle::requests
