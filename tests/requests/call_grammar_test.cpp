// Grammars of calls: the texts of each format that are allowed, and their reading by its parser.
#include <catch2/catch.hpp>

#include "../grammar/vocabularies.h"
#include "requests/calls/formats.h"
#include "requests/tool_grammar.h"
#include "util/error.h"
#include "util/json.h"

using namespace riffle;
using namespace riffle::requests;
using grammar::Expressions;

namespace {

const CallFormat& format_of(const std::string& signs) {
  const CallFormat* const format = call_format(signs);
  REQUIRE(format);
  return *format;
}
const CallFormat& xml() { return format_of("<tool_call> <function="); }
const CallFormat& glm() { return format_of("<tool_call> <arg_key>"); }
const CallFormat& lfm() { return format_of("<|tool_call_start|>"); }
const CallFormat& gemma() { return format_of("<|tool_call>call:"); }
const CallFormat& hermes() { return format_of("<tool_call>"); }
const CallFormat& llama() { return format_of("\"parameters\": <|start_header_id|>"); }
const CallFormat& harmony() { return format_of("<|channel|>commentary functions."); }

// One function f with these parameters, and a function g without any.
ToolUse use_of(const std::string& parameters, ToolUse::Choice choice = ToolUse::REQUIRED) {
  ToolUse use;
  use.choice = choice;
  use.parallel = false;
  for (const std::string& one :
       {R"({"type":"function","function":{"name":"f","parameters":)" + parameters + "}}",
        std::string(R"({"type":"function","function":{"name":"g"}})")}) {
    const Json tool = parse_json(one, {.depth = 32, .values = 10000});
    use.tools.push_back({tool.at_pointer("/function/name")->string(), tool});
  }
  return use;
}

std::shared_ptr<const grammar::Grammar> made(const ToolUse& use, const CallFormat& format,
                                             const char* text = nullptr) {
  static const test::Vocabulary all = test::bytes();
  Expressions e;
  const grammar::ExprId own = text ? e.text(text) : Expressions::kNever;
  const uint32_t rule = e.add_rule("tools", tool_answers(use, format, own, &e));
  return std::make_shared<const grammar::Grammar>(std::move(e), rule, all.tokens,
                                                  grammar::ReasoningTokens{});
}

std::string refusal(const std::string& parameters, const CallFormat& format) {
  try {
    (void)made(use_of(parameters), format);
  } catch (const Error& e) {
    CHECK((e.status() == RIFFLE_UNSUPPORTED || e.status() == RIFFLE_BAD_ARGUMENT));
    return e.what();
  }
  return "none";
}

std::string object(const std::string& properties, const std::string& required = "") {
  return R"({"type":"object","properties":{)" + properties + R"(},"required":[)" + required + "]}";
}

class Arguments : public CallSink {
 public:
  void content(std::string_view) override { wrong = true; }
  void begin(std::string_view) override {}
  void arguments(std::string_view json) override { said += json; }
  void end() override {}
  void broken(const std::string&) override { wrong = true; }
  std::string said;
  bool wrong = false;
};

// The arguments of a text that is a call.
std::string read(const ToolUse& use, const CallFormat& format, const std::string& text) {
  const auto parser = format.parser(use);
  Arguments out;
  parser->put(text, &out);
  parser->finish(&out);
  return out.wrong ? "wrong" : out.said;
}

// Checks that the grammar allows the text, which the parser reads as these arguments.
void check(const CallFormat& format, const std::string& parameters, const std::string& text,
           const std::string& expected) {
  INFO(format.name << ": " << text);
  const ToolUse use = use_of(parameters);
  CHECK(test::accepts(made(use, format), text));
  CHECK(read(use, format, text) == expected);
}
void check_not(const CallFormat& format, const std::string& parameters, const std::string& text) {
  INFO(format.name << ": " << text);
  CHECK_FALSE(test::accepts(made(use_of(parameters), format), text));
}

std::string in_xml(const std::string& name, const std::string& value) {
  return "<tool_call>\n<function=f>\n<parameter=" + name + ">\n" + value +
         "\n</parameter>\n</function>\n</tool_call>";
}
std::string in_glm(const std::string& name, const std::string& value) {
  return "<tool_call>f\n<arg_key>" + name + "</arg_key>\n<arg_value>" + value +
         "</arg_value>\n</tool_call>";
}
std::string in_lfm(const std::string& inside) {
  return "<|tool_call_start|>[f(" + inside + ")]<|tool_call_end|>";
}
std::string in_gemma(const std::string& inside) {
  return "<|tool_call>call:f{" + inside + "}<tool_call|>";
}

}  // namespace

TEST_CASE("texts without quotes obey enum, const, lengths, pattern and format", "[requests]") {
  const std::string enumerated = object(R"("a":{"type":"string","enum":["x","yes","n\no"],)"
                                        R"("minLength":2})");
  check(xml(), enumerated, in_xml("a", "n\no"), "{\"a\": \"n\\no\"}");
  check(glm(), enumerated, in_glm("a", "yes"), "{\"a\": \"yes\"}");
  check_not(xml(), enumerated, in_xml("a", "x"));
  const std::string both = object(R"("a":{"type":"string","enum":["x","y"],"const":"y"})");
  check(gemma(), both, in_gemma("a:<|\"|>y<|\"|>"), "{\"a\":\"y\"}");
  check_not(gemma(), both, in_gemma("a:<|\"|>x<|\"|>"));
  const std::string pattern = object(R"("a":{"type":"string","pattern":"^[^b]{2,3}$"})");
  check(xml(), pattern, in_xml("a", "\na\n"), "{\"a\": \"\\na\\n\"}");
  check(glm(), pattern, in_glm("a", " \"/"), "{\"a\": \" \\\"/\"}");
  check_not(glm(), pattern, in_glm("a", "ab"));
  check_not(glm(), pattern, in_glm("a", "a<"));
  const std::string date = object(R"("a":{"type":"string","format":"date"})");
  check(gemma(), date, in_gemma("a:<|\"|>2026-11-30<|\"|>"), "{\"a\":\"2026-11-30\"}");
  check_not(gemma(), date, in_gemma("a:<|\"|>2026-11-3<|\"|>"));
  CHECK(refusal(object(R"("a":{"type":"string","enum":["</parameter>"]})"), xml()) ==
        "function \"f\", parameters/properties/a: found the value \"</parameter>\", expected none "
        "with </parameter>, which ends a value of this model");
  CHECK(
      refusal(object(R"("a":{"type":"string","format":"odd"})"), glm())
          .starts_with("function \"f\", parameters/properties/a: found format \"odd\", expected"));
}

TEST_CASE("names of parameters are read as they are, or refused", "[requests]") {
  const auto named = [](const std::string& name) {
    return object("\"" + name + R"(":{"type":"integer"})", "\"" + name + "\"");
  };
  check(lfm(), named("a b"), in_lfm("a b=3"), "{\"a b\": 3}");
  check(xml(), named("a<:="), in_xml("a<:=", "3"), "{\"a<:=\": 3}");
  check(glm(), named("a>:="), in_glm("a>:=", "3"), "{\"a>:=\": 3}");
  check(gemma(), named("a:}"), in_gemma("<|\"|>a:}<|\"|>:3"), "{\"a:}\":3}");
  const std::string wanted =
      ", expected letters, digits and _: this model writes names without "
      "quotes";
  for (const char* const name : {"a=b", "f(x)", "it's", " a"})
    CHECK(refusal(named(name), lfm()) == "function \"f\", parameters/properties/" +
                                             std::string(name) + ": found the name \"" + name +
                                             "\"" + wanted);
  CHECK(refusal(named("a>b"), xml()).ends_with("\"a>b\"" + wanted));
  CHECK(refusal(named("a<b"), glm()).ends_with("\"a<b\"" + wanted));
  CHECK(refusal(named("<|\\\"|>"), gemma()).ends_with(wanted));
}

TEST_CASE("schemas that calls without JSON cannot have are refused", "[requests]") {
  for (const CallFormat* const format : {&xml(), &glm(), &lfm(), &gemma()}) {
    INFO(format->name);
    CHECK(refusal(R"({"type":"object","properties":{},"required":["a"]})", *format) ==
          "function \"f\", parameters: found the required member \"a\" without a property, "
          "expected a property of this name");
    for (const char* const word : {"minProperties", "enum", "propertyNames"})
      CHECK(refusal(R"({"type":"object","properties":{"a":{"type":"integer"}},")" +
                        std::string(word) + "\":1}",
                    *format)
                .starts_with("function \"f\", parameters: found " + std::string(word)));
  }
  const std::string why =
      ", which riffle cannot enforce for this model (it does not write calls as JSON); ";
  const std::string f = "function \"f\", parameters";
  CHECK(refusal(R"({"type":"object","properties":{"a":{}},"minProperties":3})", xml()) ==
        f + ": found minProperties 3" + why + "remove it");
  CHECK(refusal(object(R"("a":{"type":"string","not":{}})"), xml()) ==
        f + "/properties/a: found not" + why + "remove it");
  CHECK(refusal(object(R"("a":{"type":"array","items":{"type":"null"},"prefixItems":[{}]})"),
                gemma()) == f + "/properties/a: found prefixItems" + why + "remove it");
  CHECK(refusal(object(R"("a":{"minimum":3})"), gemma()) ==
        f + "/properties/a: found a value without type, enum or const" + why + "add one of them");
}

TEST_CASE("schemas of the wrong form are refused, in every syntax of calls", "[requests]") {
  const std::string no_list = ", expected a list of values", f = "function \"f\", parameters";
  for (const CallFormat* const format : {&xml(), &glm(), &lfm(), &gemma()}) {
    INFO(format->name);
    CHECK(refusal(R"({"type":"object","properties":[]})", *format).find("/properties: found []") !=
          std::string::npos);
    CHECK(refusal(R"({"type":"object","properties":{},"required":"a"})", *format)
              .find("found \"a\"") != std::string::npos);
    for (const char* const wrong : {R"({"type":"string","enum":"abc"})", R"({"enum":{"a":1}})",
                                    R"({"anyOf":{"type":"string"}})", R"({"anyOf":"ab"})",
                                    R"({"type":"object","properties":7})",
                                    R"({"type":"object","properties":{},"required":{}})",
                                    R"({"type":"string","maxLength":"2"})"}) {
      INFO(wrong);
      CHECK(refusal(object(R"("a":)" + std::string(wrong)), *format) != "none");
    }
  }
  CHECK(refusal(object(R"("a":{"anyOf":{"type":"string"}})"), gemma()) ==
        f + "/properties/a/anyOf: found {\"type\":\"string\"}" + no_list);
  CHECK(refusal(object(R"("a":{"type":"string","enum":[]})"), xml()) ==
        f + "/properties/a/enum: found []" + no_list);
  CHECK(refusal(object(R"("a":{"type":"string","minLength":60001})"), gemma()) ==
        f + "/properties/a/minLength: found 60001, expected at most 60000");
  for (const CallFormat* const format : {&hermes(), &llama(), &xml(), &gemma(), &lfm()})
    CHECK(refusal(R"({"type":"array","items":{"type":"string"}})", *format) ==
          f + "/type: found \"array\", expected \"object\"");
}

TEST_CASE("Gemma 4's values are those of enum, anyOf, $ref and lists of types", "[requests]") {
  const std::string q = "<|\"|>";
  const std::string values = object(R"("a":{"enum":["x",1,null]})");
  check(gemma(), values, in_gemma("a:" + q + "x" + q), "{\"a\":\"x\"}");
  check(gemma(), values, in_gemma("a:null"), "{\"a\":null}");
  check_not(gemma(), values, in_gemma("a:2"));
  const std::string typed =
      object(R"("a":{"type":["string","integer","null"],"maximum":9,"maxLength":2})");
  check(gemma(), typed, in_gemma("a:" + q + "ab" + q), "{\"a\":\"ab\"}");
  check(gemma(), typed, in_gemma("a:-7"), "{\"a\":-7}");
  check_not(gemma(), typed, in_gemma("a:10"));
  check_not(gemma(), typed, in_gemma("a:\"a\""));
  check_not(gemma(), object(R"("a":{"type":["string","null"],"enum":["x",1]})"), in_gemma("a:1"));
  const std::string any = object(R"("a":{"anyOf":[{"type":"boolean"},{"type":"array","items":)"
                                 R"({"type":"string"}}],"title":"A"})");
  check(gemma(), any, in_gemma("a:true"), "{\"a\":true}");
  check(gemma(), any, in_gemma("a:[" + q + "b" + q + "]"), "{\"a\":[\"b\"]}");
  const std::string tree =
      R"({"type":"object","properties":{"n":{"$ref":"#/$defs/n"}},"$defs":{"n":{"type":"object",)"
      R"("properties":{"n":{"$ref":"#/$defs/n"}}}}})";
  check(gemma(), tree, in_gemma("n:{n:{n:{}}}"), "{\"n\":{\"n\":{\"n\":{}}}}");
  CHECK(refusal(object(R"("a":{"$ref":"#/b"})"), gemma()) ==
        "function \"f\", parameters/properties/a: found $ref \"#/b\", expected a place in this "
        "schema, such as #/$defs/name");
}

TEST_CASE("a reference to the whole schema is to the function's parameters", "[requests]") {
  const std::string tree = R"({"type":"object","properties":{"n":{"type":"integer"},)"
                           R"("below":{"type":"array","items":{"$ref":"#"}}},"required":["n"]})";
  check(xml(), tree,
        "<tool_call>\n<function=f>\n<parameter=n>\n1\n</parameter>\n<parameter=below>\n[{\"n\": "
        "2}]\n</parameter>\n</function>\n</tool_call>",
        "{\"n\": 1, \"below\": [{\"n\": 2}]}");
  check(lfm(), tree, in_lfm("n=1, below=[{\"n\": 2}]"), "{\"n\": 1, \"below\": [{\"n\": 2}]}");
  check_not(lfm(), tree, in_lfm("n=1, below=[[]]"));
}

TEST_CASE("arguments are an object, whatever the schema says", "[requests]") {
  const std::string call = "<tool_call>\n{\"name\": \"f\", \"arguments\": ";
  for (const char* const schema : {R"({"properties":{"a":{"type":"integer"}}})", "{}"}) {
    const auto g = made(use_of(schema), hermes());
    CHECK(test::accepts(g, call + "{}}\n</tool_call>"));
    CHECK_FALSE(test::begins(g, call + "3"));
  }
}

TEST_CASE("the end of a value in tags is not looked for in a JSON string", "[requests]") {
  const std::string list = object(R"("a":{"type":"array","items":{"type":"string"}})");
  check(xml(), list, in_xml("a", "[\"</parameter>\", \"\\\"</parameter>\"]"),
        "{\"a\": [\"</parameter>\", \"\\\"</parameter>\"]}");
  check(glm(), list, in_glm("a", "[\"</arg_value>\"]"), "{\"a\": [\"</arg_value>\"]}");
}

TEST_CASE("many optional parameters make no large grammar", "[requests]") {
  std::string properties;
  for (int i = 0; i < 200; ++i)
    properties += (i ? ",\"p" : "\"p") + std::to_string(i) + R"(":{"type":"integer"})";
  check(lfm(), object(properties), in_lfm("p3=1, p199=2"), "{\"p3\": 1, \"p199\": 2}");
  check(gemma(), object(properties), in_gemma("p0:1,p7:2"), "{\"p0\":1,\"p7\":2}");
  check_not(lfm(), object(properties), in_lfm("p7=1, p3=2"));
}

TEST_CASE("Llama 3 may call: its object is constrained once it names a tool", "[requests]") {
  const std::string n = object(R"("n":{"type":"integer"})", "\"n\"");
  const ToolUse use = use_of(n, ToolUse::AUTO);
  const auto g = made(use, llama());
  const std::string call = "{\"name\": \"f\", \"parameters\": {\"n\": 3}}";
  for (const std::string& text :
       {call, "\n " + call, "<|python_tag|>" + call, "<|python_tag|> " + call,
        "{\"type\": \"function\", " + call.substr(1),
        std::string("{\"name\":\"g\",\"parameters\":{}}")}) {
    INFO(text);
    CHECK(test::accepts(g, text));
    CHECK(read(use, llama(), text) != "wrong");
  }
  for (const char* const text :
       {"", "Hi", " Hi {\"name\": \"f\"", "{\"name\": \"Bob\", \"age\": 3}", "{\"name\": \"",
        "{\"a\": 1}", "{", "<|python_tag|>print(1)", "\xc3\xa9t\xc3\xa9"}) {
    INFO(text);
    CHECK(test::accepts(g, text));
  }
  for (const std::string& text :
       {std::string("{\"name\": \"f\"}"), std::string("{\"name\": \"f\", \"x"),
        std::string("{\"name\": \"f\", \"parameters\": {\"n\": \"")}) {
    INFO(text);
    CHECK_FALSE(test::begins(g, text));
    CHECK_FALSE(test::begins(g, "\n" + text));
    CHECK_FALSE(test::begins(g, "<|python_tag|> " + text));
  }
  CHECK_FALSE(test::begins(g, call + ";"));
  CHECK_FALSE(test::begins(g, call + " and"));
  ToolUse several = use_of(n, ToolUse::AUTO);
  several.parallel = true;
  CHECK(test::accepts(made(several, llama()), call + "; " + call));
  several.choice = ToolUse::REQUIRED;
  CHECK(test::accepts(made(several, llama()), call + "; " + call));
  // With a grammar for the answer.
  const auto typed = made(use, llama(), "yes");
  CHECK(test::accepts(typed, "yes"));
  CHECK(test::accepts(typed, call));
  CHECK_FALSE(test::begins(typed, "n"));
}

TEST_CASE("gpt-oss may call: the message to a function is constrained", "[requests]") {
  const std::string n = object(R"("n":{"type":"integer"})", "\"n\"");
  const auto g = made(use_of(n, ToolUse::AUTO), harmony());
  const std::string
      thought = "\xff<|channel|>analysis\xff<|message|>Hm.\xff<|end|>\xff<|start|>assistant",
      said = "\xff<|channel|>commentary\xff<|message|>I look.\xff<|end|>\xff<|start|>assistant",
      channel = "\xff<|channel|>commentary", to = " to=functions.f";
  const auto both = {channel + to + " \xff<|constrain|>json\xff<|message|>",
                     channel + to + "\xff<|message|>", to + channel + " json\xff<|message|>",
                     to + "\xff<|channel|>analysis\xff<|message|>"};
  const auto must = made(use_of(n), harmony());
  for (const std::string& header : both)
    for (const std::string& before : {std::string(), thought, thought + said}) {
      INFO(before + header);
      for (const auto& grammar : {g, must}) {
        CHECK(test::accepts(grammar, before + header + "{\"n\": 1}"));
        CHECK_FALSE(test::begins(grammar, before + header + "{\"n\": 1}x"));
        CHECK_FALSE(test::begins(grammar, before + header + "{\"n\": \""));
        CHECK_FALSE(test::begins(grammar, before + header + "no"));
      }
    }
  const std::string final = "\xff<|channel|>final\xff<|message|>";
  CHECK(test::accepts(g, thought + final + "It is <|odd|>.\n"));
  CHECK(test::accepts(g, final));
  CHECK_FALSE(test::accepts(g, final + "a" + channel));
  CHECK_FALSE(test::begins(must, final));
  CHECK_FALSE(test::begins(g, channel + " to=functions.h"));
  CHECK_FALSE(test::begins(g, "Hi"));
  CHECK_FALSE(test::begins(g, "<|channel|>"));  // text that spells a control token
  const auto typed = made(use_of(n, ToolUse::AUTO), harmony(), "yes");
  CHECK(test::accepts(typed, final + "yes"));
  CHECK(test::accepts(typed, "\xff<|channel|>final \xff<|constrain|>json\xff<|message|>yes"));
  CHECK_FALSE(test::begins(typed, final + "n"));
}
