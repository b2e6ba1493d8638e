#include "chat/template_syntax.h"

#include <algorithm>

#include "chat/template_expressions.h"
#include "chat/template_lexer.h"

namespace riffle {
namespace {

using Token = TemplateToken;
using Tag = TemplateTag;
using Expression = TemplateExpression;
using ExpressionParser = TemplateExpressionParser;
using Statement = TemplateStatement;

class StatementParser {
 public:
  StatementParser(const std::vector<Tag>& tags, TemplateTree& tree) : tags_(tags), tree_(tree) {}

  void whole() { tree_.body = body({}); }

 private:
  static std::string first_word(const Tag& tag) {
    return tag.tokens.empty() || tag.tokens[0].kind != Token::NAME ? "" : tag.tokens[0].text;
  }
  ExpressionParser inside(const Tag& tag) const { return {tag, tree_, soft_}; }

  // Reads statements up to one of the closing words, whose tag is then current. Without such words:
  // up to the end.
  std::vector<int> body(std::initializer_list<const char*> closing) {
    const int line = at_ > 0 ? tags_[at_ - 1].line : 1;
    if (++nesting_ > kMaxTemplateNesting)
      bad_template(line, "found statements nested deeper than %d levels", kMaxTemplateNesting);
    std::vector<int> out;
    for (; at_ < tags_.size(); at_++) {
      const Tag& tag = tags_[at_];
      const std::string word = tag.kind == Tag::STATEMENT ? first_word(tag) : "";
      for (const char* end : closing) {
        if (word == end) {
          nesting_--;
          return out;
        }
      }
      Statement s = read(tag, word);
      s.line = tag.line;
      tree_.statements.push_back(std::move(s));
      out.push_back(static_cast<int>(tree_.statements.size()) - 1);
    }
    if (closing.size() > 0)
      bad_template(line, "found no {%% %s %%} up to the end", *(closing.end() - 1));
    nesting_--;
    return out;
  }
  // Reads a body in which an unknown filter is an error at once (hard) or only when it is evaluated
  // (soft).
  std::vector<int> body(std::initializer_list<const char*> closing, bool soft) {
    const bool before = std::exchange(soft_, soft);
    std::vector<int> out = body(closing);
    soft_ = before;
    return out;
  }
  void close() const {
    if (tags_[at_].tokens.size() != 1)
      bad_template(tags_[at_].line, "found text after %s, expected the end of the tag",
                   first_word(tags_[at_]).c_str());
  }

  Statement read(const Tag& tag, const std::string& word) {
    Statement s;
    if (tag.kind == Tag::TEXT) {
      s.text = tag.text;
      return s;
    }
    ExpressionParser in = inside(tag);
    if (tag.kind == Tag::OUTPUT) {
      s.kind = Statement::OUTPUT;
      s.expression = in.tuple();
      in.want_end();
      return s;
    }
    in.take_name(word.c_str());
    if (word == "if") read_if(&s);
    else if (word == "for") read_for(&s, in);
    else if (word == "set") read_set(&s, in);
    else if (word == "macro") read_macro(&s, in);
    else if (word == "call") read_call(&s, in);
    else if (word == "filter") read_filter(&s, in);
    else if (word == "with") read_with(&s, in);
    else if (word == "generation") {
      in.want_end();
      s.kind = Statement::SCOPE;
      at_++;
      s.bodies.push_back(body({"endgeneration"}, false));
      close();
    } else if (word == "break" || word == "continue") {
      in.want_end();
      if (loops_ == 0) bad_template(tag.line, "found %s outside of a loop", word.c_str());
      s.kind = word == "break" ? Statement::BREAK : Statement::CONTINUE;
    } else {
      bad_template(tag.line, "found the statement '%.60s', which riffle does not support here",
                   word.c_str());
    }
    return s;
  }

  void read_if(Statement* s) {
    s->kind = Statement::IF;
    const bool before = std::exchange(soft_, true);
    ExpressionParser first = inside(tags_[at_]);
    first.take_name("if");
    s->conditions.push_back(first.tuple(false));
    first.want_end();
    for (;;) {
      at_++;
      s->bodies.push_back(s->bodies.size() < s->conditions.size() ? body({"elif", "else", "endif"})
                                                                  : body({"endif"}));
      const std::string word = first_word(tags_[at_]);
      if (word != "elif") close();
      if (word == "endif") break;
      if (word == "else") continue;
      ExpressionParser next = inside(tags_[at_]);
      next.take_name("elif");
      s->conditions.push_back(next.tuple(false));
      next.want_end();
    }
    soft_ = before;
  }

  // Reads a, b or (a, b): names to which the parts of an item are assigned.
  void read_targets(Statement* s, ExpressionParser& in) {
    const bool bracket = in.take_sign("(");
    s->targets.push_back(in.want_name());
    while (in.take_sign(",")) {
      s->unpack = true;
      if (in.name("in") || in.sign("=") || in.sign(")")) break;
      s->targets.push_back(in.want_name());
    }
    if (bracket) in.want_sign(")");
    for (const std::string& target : s->targets) {
      for (const char* word : {"true", "false", "none", "True", "False", "None"}) {
        if (target == word) bad_template(tags_[at_].line, "found an assignment to %s", word);
      }
    }
  }

  void read_for(Statement* s, ExpressionParser& in) {
    s->kind = Statement::FOR;
    read_targets(s, in);
    if (!in.take_name("in")) in.wrong("in");
    s->expression = in.tuple(false);
    if (in.take_name("if")) s->condition = in.expression();
    if (in.name("recursive"))
      bad_template(tags_[at_].line, "found a recursive loop, which riffle does not support");
    in.want_end();
    at_++;
    loops_++;
    s->bodies.push_back(body({"else", "endfor"}, false));
    loops_--;
    close();
    s->bodies.emplace_back();
    if (first_word(tags_[at_]) == "endfor") return;
    at_++;
    s->bodies.back() = body({"endfor"}, false);
    close();
  }

  void read_set(Statement* s, ExpressionParser& in) {
    s->kind = Statement::SET;
    if (in.sign(".", 1)) {
      s->text = in.want_name();
      in.want_sign(".");
      s->attribute = in.want_name();
    } else {
      read_targets(s, in);
    }
    if (in.take_sign("=")) {
      s->expression = in.tuple();
      return in.want_end();
    }
    s->kind = Statement::SET_BLOCK;
    if (s->unpack) in.wrong("'='");
    s->expression = in.filters(in.make(Expression::NAME, kPrinted, {}), false);
    in.want_end();
    at_++;
    s->bodies.push_back(body({"endset"}, false));
    close();
  }

  // Reads the body of a macro, which is outside of the loops around the macro.
  std::vector<int> macro_body(const char* end) {
    const int loops = std::exchange(loops_, 0);
    at_++;
    std::vector<int> out = body({end}, false);
    loops_ = loops;
    close();
    return out;
  }

  void read_macro(Statement* s, ExpressionParser& in) {
    s->kind = Statement::MACRO;
    s->text = in.want_name();
    in.want_sign("(");
    s->parameters = in.parameters();
    in.want_end();
    s->bodies.push_back(macro_body("endmacro"));
  }

  void read_call(Statement* s, ExpressionParser& in) {
    s->kind = Statement::CALL_BLOCK;
    if (in.take_sign("(")) s->parameters = in.parameters();
    s->expression = in.expression();
    if (tree_.expressions[static_cast<size_t>(s->expression)].kind != Expression::CALL)
      bad_template(tags_[at_].line, "found {%% call %%} without a call");
    in.want_end();
    s->bodies.push_back(macro_body("endcall"));
  }

  void read_filter(Statement* s, ExpressionParser& in) {
    s->kind = Statement::FILTER_BLOCK;
    s->expression = in.filters(in.make(Expression::NAME, kPrinted, {}), true);
    in.want_end();
    at_++;
    s->bodies.push_back(body({"endfilter"}, false));
    close();
  }

  void read_with(Statement* s, ExpressionParser& in) {
    s->kind = Statement::SCOPE;
    while (!in.at_end()) {
      if (!s->targets.empty()) in.want_sign(",");
      s->targets.push_back(in.want_name());
      in.want_sign("=");
      s->conditions.push_back(in.expression());
    }
    at_++;
    s->bodies.push_back(body({"endwith"}, false));
    close();
  }

  const std::vector<Tag>& tags_;
  TemplateTree& tree_;
  size_t at_ = 0;
  int nesting_ = 0, loops_ = 0;
  bool soft_ = false;
};

}  // namespace

TemplateTree parse_template(std::string_view text) {
  TemplateTree tree;
  const std::vector<Tag> tags = cut_template(text);
  StatementParser(tags, tree).whole();
  return tree;
}

}  // namespace riffle
