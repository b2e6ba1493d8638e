// The syntax of Jinja templates: parses text into a tree of statements and expressions. Nothing is
// evaluated here.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace riffle {

// An expression; operands are indices into TemplateTree::expressions; -1: left out.
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
  int depth = 1;  // depth of the tree that begins here
  std::string text;
  int64_t number = 0;
  double real = 0;
  std::vector<int> operands;
  std::vector<std::pair<std::string, int>> keywords;  // "*", "**": those of a list, of a dict
  std::vector<std::string> names;                     // COMPARE: == != < <= > >= in, "not in"
};

// A statement; bodies are lists of indices into TemplateTree::statements.
struct TemplateStatement {
  enum Kind {
    TEXT,          // prints text
    OUTPUT,        // prints expression
    SET,           // targets = expression, or text.attribute = expression
    SET_BLOCK,     // targets[0] or text.attribute = output of bodies[0], through expression's
                   // filters
    FOR,           // for targets in expression if condition (-1: none): bodies[0], else bodies[1]
    IF,            // conditions[i]: bodies[i]; an extra body is the else
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
  bool unpack = false;               // also if there is only one target: (x,)
  int expression = -1, condition = -1;
  std::vector<int> conditions;
  std::vector<std::pair<std::string, int>> parameters;  // name, default (-1: none)
  std::vector<std::vector<int>> bodies;
};

// Name of the body's output in expressions of SET_BLOCK and FILTER_BLOCK.
inline constexpr const char* kPrinted = " printed";

struct TemplateTree {
  std::vector<TemplateExpression> expressions;
  std::vector<TemplateStatement> statements;
  std::vector<int> body;
};

// Throws Error RIFFLE_UNSUPPORTED, which names the line, for text that is not a template, for
// statements and filters that riffle does not support, and for nesting far deeper than real
// templates have.
TemplateTree parse_template(std::string_view text);

// Tell whether template_filters.cpp and template_tests.cpp have a filter or test of this name.
bool is_template_filter(std::string_view name);
bool is_template_test(std::string_view name);

}  // namespace riffle
