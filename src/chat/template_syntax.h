// The syntax of Jinja templates: text to a tree of statements and expressions. Nothing is evaluated
// here.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace riffle {

// An expression; operands are indices into TemplateTree::expressions, -1 for one that is left out.
struct TemplateExpression {
  enum Kind {
    STRING,     // text
    INTEGER,    // number
    REAL,       // real
    BOOL,       // number
    NONE,       //
    NAME,       // text
    LIST,       // operands
    TUPLE,      // operands
    DICT,       // operands: key, value, key, value, ...
    ATTRIBUTE,  // operands[0] . text
    ITEM,       // operands[0] [ operands[1] ]
    SLICE,      // operands[0] [ operands[1] : operands[2] : operands[3] ]
    CALL,       // operands[0] ( operands[1].. ), then keywords
    FILTER,     // operands[0] | text ( operands[1].., keywords )
    TEST,       // operands[0] is text ( operands[1].., keywords )
    NOT,        // operands[0]
    MINUS,      // operands[0]
    PLUS,       // operands[0]
    AND,        // operands[0], operands[1]
    OR,         // operands[0], operands[1]
    BINARY,     // operands[0] text operands[1]; text: + - * / // % ** ~
    COMPARE,    // operands[0] names[0] operands[1] names[1] operands[2] ...
    CHOICE      // operands[0] if operands[1] else operands[2]
  };
  Kind kind = NONE;
  int line = 1;
  int depth = 1;  // depth of the tree under it
  std::string text;
  int64_t number = 0;
  double real = 0;
  std::vector<int> operands;
  std::vector<std::pair<std::string, int>> keywords;  // "*" and "**": a list's, a dict's arguments
  std::vector<std::string> names;                     // COMPARE: == != < <= > >= in, "not in"
};

// A statement; bodies are lists of indices into TemplateTree::statements.
struct TemplateStatement {
  enum Kind {
    TEXT,          // prints text
    OUTPUT,        // prints expression
    SET,           // targets = expression, or text.attribute = expression
    SET_BLOCK,     // targets[0] or text.attribute = what bodies[0] prints, through expression's
                   // filters
    FOR,           // for targets in expression if condition (-1: none): bodies[0], else bodies[1]
    IF,            // conditions[i]: bodies[i]; one body more is the else
    MACRO,         // macro text(parameters): bodies[0]
    CALL_BLOCK,    // call(parameters) expression: bodies[0]
    FILTER_BLOCK,  // output of bodies[0], through expression's filters
    SCOPE,         // with targets = conditions: bodies[0]; generation is one too
    BREAK,
    CONTINUE
  };
  Kind kind = TEXT;
  int line = 1;
  std::string text, attribute;
  std::vector<std::string> targets;  // several: the value is unpacked
  bool unpack = false;               // also where targets has one: (x,)
  int expression = -1, condition = -1;
  std::vector<int> conditions;
  std::vector<std::pair<std::string, int>> parameters;  // name, default (-1: none)
  std::vector<std::vector<int>> bodies;
};

// In expressions of SET_BLOCK and FILTER_BLOCK: what the body has printed.
inline constexpr const char* kPrinted = " printed";

struct TemplateTree {
  std::vector<TemplateExpression> expressions;
  std::vector<TemplateStatement> statements;
  std::vector<int> body;
};

// Throws Error RIFFLE_UNSUPPORTED, which names the line, for text that is no template, for
// statements and filters that riffle does not know, and for nesting deeper than in any honest
// template.
TemplateTree parse_template(std::string_view text);

// Filters and tests that there are, in template_filters.cpp and template_tests.cpp.
bool is_template_filter(std::string_view name);
bool is_template_test(std::string_view name);

}  // namespace riffle
