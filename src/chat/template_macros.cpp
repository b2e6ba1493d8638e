#include "chat/template_macros.h"

namespace riffle {
namespace {

bool expression_uses(const TemplateSearch& search, int index, std::string_view name) {
  const TemplateDepth depth(search.depth);
  search.budget.step();
  const TemplateExpression& e = search.tree.expressions[static_cast<size_t>(index)];
  if (e.kind == TemplateExpression::NAME && e.text == name) return true;
  for (const int operand : e.operands) {
    if (operand >= 0 && expression_uses(search, operand, name)) return true;
  }
  for (const auto& keyword : e.keywords) {
    if (expression_uses(search, keyword.second, name)) return true;
  }
  return false;
}

bool statement_uses(const TemplateSearch& search, const TemplateStatement& s,
                    std::string_view name) {
  const TemplateDepth depth(search.depth);
  search.budget.step();
  const auto in = [&](int expression) {
    return expression >= 0 && expression_uses(search, expression, name);
  };
  if (in(s.expression) || in(s.condition)) return true;
  for (const int condition : s.conditions) {
    if (in(condition)) return true;
  }
  if (s.kind == TemplateStatement::MACRO) return false;
  for (const auto& body : s.bodies) {
    for (const int index : body) {
      if (statement_uses(search, search.tree.statements[static_cast<size_t>(index)], name))
        return true;
    }
  }
  return false;
}

}  // namespace

bool macro_uses(const TemplateSearch& search, const TemplateStatement& macro,
                std::string_view name) {
  bool found = false;
  for (const int index : macro.bodies[0])
    found =
        found || statement_uses(search, search.tree.statements[static_cast<size_t>(index)], name);
  return found;
}

}  // namespace riffle
