// The syntax of Jinja templates: text to a tree of statements and expressions. Nothing is evaluated
// here.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace riffle {

// An expression; operands are indices into TemplateTree::expressions.
struct TemplateExpression {
  enum Kind {
    BAD,        // no expression, or one of a form that is not read
    STRING,     // text
    INTEGER,    // number
    NAME,       // text
    LIST,       // operands (a tuple is one too)
    ATTRIBUTE,  // operands[0] . text
    ITEM,       // operands[0] [ operands[1] ]
    SLICE,      // operands[0] [ operands[1] : operands[2] ], -1 where one is left out
    CALL,       // operands[0] ( operands[1].. ), then keywords
    FILTER,     // operands[0] | text ( operands[1].. )
    TEST,       // operands[0] is text ( operands[1].. )
    NOT,        // operands[0]
    MINUS,      // operands[0]
    BINARY,     // operands[0] text operands[1]; text: + - * / // % ** ~ and or
    COMPARE,    // operands[0] text operands[1]; text: == != < <= > >= in, "not in"
    CHOICE      // operands[0] if operands[1] else operands[2] (-1: none)
  };
  Kind kind = BAD;
  std::string text;
  int64_t number = 0;
  std::vector<int> operands;
  std::vector<std::pair<std::string, int>> keywords;  // CALL
  int depth = 1;                                      // of the tree under it
};

// A statement; bodies are lists of indices into TemplateTree::statements.
struct TemplateStatement {
  enum Kind {
    TEXT,    // prints text
    OUTPUT,  // prints expression
    SET,     // text = expression, or text.attribute = expression
    FOR,     // for text in expression if condition (-1: none): bodies[0], else bodies[1]
    IF,      // conditions[i]: bodies[i]; one body more is the else
    OTHER    // something that is not read: nobody knows what it prints
  };
  Kind kind = OTHER;
  std::string text, attribute;
  int expression = -1, condition = -1;
  std::vector<int> conditions;
  std::vector<std::vector<int>> bodies;
};

struct TemplateTree {
  std::vector<TemplateExpression> expressions;
  std::vector<TemplateStatement> statements;
  std::vector<int> body;
};

// Reads text as Hugging Face's transformers has Jinja read it (trim_blocks, lstrip_blocks). False
// if it is none, or too long (256 KiB) or too deep for any honest one. An expression that cannot be
// read is BAD and harms nothing but its place.
bool parse_template(std::string_view text, TemplateTree* tree);

// Python's str.strip() and its halves: all that Unicode calls white space, and the separators 1C to
// 1F.
std::string_view strip_left(std::string_view text);
std::string_view strip_right(std::string_view text);

}  // namespace riffle
