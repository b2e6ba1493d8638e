// Evaluates Jinja templates: prints the same as Hugging Face's transformers, with the source of
// each character, in bounded time and memory.
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "chat/template_date.h"
#include "chat/template_syntax.h"
#include "chat/template_value.h"

namespace riffle {

struct TemplateInput {
  std::vector<std::pair<std::string, Value>> variables;
  size_t bytes = 0;  // size of the conversation; the template's limits grow with it
  const TemplateDate* date = nullptr;  // for strftime_now(); without it, that call is an error
  // Value of `strftime_now is defined`. If false, a template with a default date uses that one, and
  // prints the same on every day.
  bool date_is_defined = false;
};

class JinjaTemplate {
 public:
  // Throws Error RIFFLE_UNSUPPORTED for text that is not a template.
  explicit JinjaTemplate(std::string_view text) : tree_(parse_template(text)) {}

  // Throws Error: RIFFLE_BAD_ARGUMENT if the template refuses the conversation (raise_exception),
  // RIFFLE_UNSUPPORTED if the template cannot be evaluated or exceeds a bound.
  SourcedText render(const TemplateInput& input) const;

  bool mentions(std::string_view name) const;  // true if it has this variable

 private:
  TemplateTree tree_;
};

}  // namespace riffle
