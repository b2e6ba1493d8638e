// Jinja, statement by statement: facts found by the jinja2 package, and templates that have no end.
#include "chat/template_interpreter.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <nlohmann/json.hpp>

#include "tests/text/vocabulary.h"

using namespace riffle;
using namespace riffle_test;

namespace {

using Json = nlohmann::ordered_json;

Value value_of(const Json& json) {
  switch (json.type()) {
    case Json::value_t::boolean: return Value::boolean(json.get<bool>());
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned: return Value::integer(json.get<int64_t>());
    case Json::value_t::number_float: return Value::real(json.get<double>());
    case Json::value_t::string: return Value::string(json.get<std::string>());
    case Json::value_t::array: {
      std::vector<Value> items;
      for (const Json& item : json) items.push_back(value_of(item));
      return Value::list(std::move(items));
    }
    case Json::value_t::object: {
      Entries entries;
      for (const auto& [key, item] : json.items())
        entries.emplace_back(Value::string(key), value_of(item));
      return Value::dict(std::move(entries));
    }
    default: return Value::none();
  }
}

// The text, or nothing for an error, whose text is *said.
std::optional<std::string> rendered(const std::string& text, const TemplateInput& input = {},
                                    std::string* said = nullptr) {
  try {
    return JinjaTemplate(text).render(input).str();
  } catch (const Error& e) {
    if (said) *said = e.what();
    CHECK(std::string(e.what()).find('\n') == std::string::npos);
    return std::nullopt;
  }
}

std::string times(int n, const std::string& text) {
  std::string out;
  for (int i = 0; i < n; i++) out += text;
  return out;
}

}  // namespace

TEST_CASE("snippets print what Jinja prints, or are errors where they are", "[chat]") {
  const Json json = Json::parse(read_file("tests/golden/template_facts.json"));
  TemplateInput input;
  for (const auto& [name, value] : json["variables"].items())
    input.variables.emplace_back(name, value_of(value));
  REQUIRE(json["facts"].size() > 600);
  for (const Json& fact : json["facts"]) {
    INFO(fact[0].dump());
    const std::optional<std::string> text = rendered(fact[0], input);
    CHECK(text.has_value() == fact[1].is_string());
    if (text && fact[1].is_string()) CHECK(*text == fact[1].get<std::string>());
  }
}

TEST_CASE("errors of templates name the line and what was found", "[chat]") {
  const auto says = [](const std::string& text, const char* what) {
    std::string said;
    CHECK_FALSE(rendered(text, {}, &said));
    INFO(said);
    CHECK(said.starts_with("the model's chat template"));
    CHECK(said.find(what) != std::string::npos);
  };
  says("a\n{{ x | nonsense }}", "line 2: found the filter 'nonsense'");
  says("a\n\n{{ nonsense(1) }}", "line 3: it calls 'nonsense', which is not defined");
  says("{{ x is nonsense }}", "test 'nonsense'");
  says("{% nonsense %}", "the statement 'nonsense'");
  says("{% include 'a' %}", "'include'");
  says("{% if a %}\n", "no {% endif %}");
  says("{{ 'a }}", "line 1: found a string that does not end");
  says("{{ a.b.c }}", "'a' is undefined");
  says("{{ 1 + 'a' }}", "int + str");
  says("{{ [].append(1) }}", "list.append(), which the immutable sandbox");
  says("{{ $ }}", "the character '$'");
  says("{{ 99999999999999999999 }}", "64 bits");
  says("{{ 2 ** 70 }}", "64 bits");
  says("{{ raise_exception('a\tb\n' ~ 'x' * 1000) }}", "refuses the conversation: a b xxx");
  says("\xFF", "not UTF-8");
}

TEST_CASE("templates that loop, nest or grow without end stop at a bound", "[chat]") {
  const auto stops = [](const std::string& text) {
    INFO(text.substr(0, 200));
    const auto start = std::chrono::steady_clock::now();
    CHECK_FALSE(rendered(text));
    CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(20));
  };
  const std::string forever = "{% for i in range(99999) %}", end = "{% endfor %}";
  stops(forever + forever + forever + end + end + end);
  stops(forever + forever + times(20, "{{ i }}") + end + end);
  stops(forever + forever + std::string(1000, 'x') + end + end);
  stops("{% set ns = namespace(a='x') %}" + forever + "{% set ns.a = ns.a + ns.a %}" + end);
  stops("{% set ns = namespace(a=['x']) %}" + forever + "{% set ns.a = ns.a + ns.a %}" + end);
  stops("{% set ns = namespace(a=[]) %}" + forever + "{% set ns.a = [ns.a] %}" + end);
  stops("{% set ns = namespace(a={}) %}" + forever + "{% set ns.a = {'a': ns.a} %}" + end);
  stops("{% set ns = namespace() %}" + forever +
        "{% for x in [ns.x] %}{% set ns.x = loop %}{% endfor %}" + end);
  stops("{% set ns = namespace(a='x') %}" + forever + "{% set ns.a = ns.a.upper %}" + end);
  stops("{{ '%i' % 4e72 }}");
  stops("{{ '%d' % -1e19 }}");
  stops("{% macro f(i) %}{{ f(i) }}{% endmacro %}{{ f(1) }}");
  stops("{% macro f(i) %}{{ f(i) ~ f(i) }}{% endmacro %}{{ f(1) }}");
  stops("{% macro f() %}{% call f() %}{{ caller() }}{% endcall %}{% endmacro %}{{ f() }}");
  for (const char* text :
       {"{{ 'x' * 999999999999 }}", "{{ [1] * 999999999999 }}", "{{ 'a'.ljust(99999999999) }}",
        "{{ '%999999999d' % 1 }}", "{{ '{:999999999}'.format('a') }}",
        "{{ range(999999999) | list }}", "{{ (range(99999) | list) * 99999 }}",
        "{% set a = 'aa' * 4000000 %}{{ a.replace('a', a) }}",
        "{% set a = 'a' * 4000000 %}{{ a.rfind('b' ~ a[1:]) }}",
        "{% set a = [1] * 90000 %}{{ a | unique | list }}{{ a | map('string') | sort | join }}"
        "{% for i in range(999) %}{% if a == a[1:] + [1] %}{% endif %}{% endfor %}"})
    stops(text);
  stops("{{ 'a' | map(" + times(60000, "'map', ") + "'upper') | list }}");
  for (const char* text :
       {"(", "[", "{1:", "-", "not ", "x[", "f(", "x|f(", "a if ", "x.y(", "a and "}) {
    stops("{{ " + times(1000, text));
    stops("{{ " + times(30000, text) + "x }}");
  }
  stops("{{ x" + times(4000, ".y") + " }}");
  stops("{{ 'a'" + times(1000, " + 'a'") + " }}");
  stops("{{ x" + times(1000, " | trim") + " }}");
  stops(times(1000, "{% if 1 %}") + times(1000, "{% endif %}"));
  stops(times(1000, "{% set x %}") + times(1000, "{% endset %}"));
  stops(times(300000, "{{"));
  stops(std::string(2 << 20, ' '));
}

TEST_CASE("pieces of templates that do not end or do not belong are errors", "[chat]") {
  for (const char* text : {"{% for",
                           "{{ 'a }}",
                           "{%",
                           "{% %}",
                           "{{}}",
                           "{#",
                           "{% endif %}",
                           "{% if x %}",
                           "{% else %}",
                           "{% for m in messages %}",
                           "{% for %}{% endfor %}",
                           "{% if %}{% endif %}",
                           "{% set %}",
                           "{% set x %}",
                           "{{ x[ }}",
                           "{{ ) }}",
                           "{{ 'a\\",
                           "{{ - }}",
                           "{% raw %}",
                           "{{ (] }}",
                           "{% for a.b in c %}{% endfor %}",
                           "{% set a.b.c = 1 %}",
                           "{% set 1 = 2 %}",
                           "{% set true = 1 %}",
                           "{% macro f %}{% endmacro %}",
                           "{% macro f( %}{% endmacro %}",
                           "{% call x %}{% endcall %}",
                           "{% if a %}{% else %}{% else %}{% endif %}",
                           "{% if a %}{% else %}{% elif b %}{% endif %}",
                           "{% endfor x %}",
                           "{{ a is }}",
                           "{{ a | }}",
                           "{{ a..b }}",
                           "{{ a[1:2:3:4] }}",
                           "{{ '\\N{x}' }}",
                           "{{ '\\xZZ' }}",
                           "{{ '\\ud800' }}",

                           "{{ a b }}",
                           "{{ f(a=1, 2) }}",
                           "{{ f(a=1, a=2) }}",
                           "{% break %}",
                           "{% with a %}{% endwith %}",
                           "{% filter %}{% endfilter %}",
                           "{% generation %}",
                           "{{ {1} }}",
                           "{{ a.'b' }}",
                           "{% set a, b %}{% endset %}"}) {
    INFO(text);
    CHECK_FALSE(rendered(text));
  }
  CHECK(rendered("") == "");
  CHECK(rendered("{") == "{");
  CHECK(rendered("{ { } }}") == "{ { } }}");
  CHECK(rendered(std::string("a\0b", 3)) == std::string("a\0b", 3));
}
