// Search for names in the bodies of macros.
#pragma once
#include <string_view>

#include "chat/template_syntax.h"
#include "chat/template_value.h"

namespace riffle {

// Counts one level of nested expressions, statements and macros while it lives. Throws TemplateStop
// before a thread's stack runs out.
struct TemplateDepth {
  explicit TemplateDepth(int& depth) : depth(depth) {
    constexpr int kMaxDepth = 1200;
    if (++depth > kMaxDepth) template_stop(TemplateStop::LIMIT, "it nests or recurses too deep");
  }
  ~TemplateDepth() { depth--; }
  int& depth;
};

// The tree that is searched, and the state of the search.
struct TemplateSearch {
  const TemplateTree& tree;
  TemplateBudget& budget;
  int& depth;
};

// Returns whether a macro's body contains this name; only then does Jinja accept further arguments.
bool macro_uses(const TemplateSearch& search, const TemplateStatement& macro,
                std::string_view name);

}  // namespace riffle
