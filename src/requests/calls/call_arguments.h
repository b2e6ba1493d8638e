// The arguments of a function's calls, for grammars of each syntax.
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/expression.h"
#include "grammar/json_schema.h"
#include "requests/tools.h"
#include "util/error.h"

namespace riffle::requests {

// A parameter of a function whose arguments are not written as JSON.
struct Parameter {
  std::string name;
  const Json* schema;
  bool required;
  std::string place;  // a JSON pointer into the schema of the arguments

  bool is(const char* type) const {
    const Json* const t = schema->find("type");
    return t && t->equals(type);
  }
};

// The schema of one function's arguments, and the grammars of its parts.
class Arguments {
 public:
  Arguments(const Tool& tool, grammar::Expressions* e);
  // Returns the values at a place as JSON; "": all arguments.
  grammar::ExprId json(const std::string& place);
  // Returns the values of another schema as JSON.
  grammar::ExprId json_of(const std::string& text, const std::string& place);
  std::vector<Parameter> parameters() const {
    const Json* const schema = tool_.parameters();
    return schema && schema->is_object() ? members(*schema, "") : std::vector<Parameter>();
  }
  std::vector<Parameter> members(const Json& schema, const std::string& place) const;
  // Returns a count, such as maxLength; none: without the keyword.
  uint32_t count(const Parameter& p, const char* key, uint32_t none) const;
  // Returns the items of a keyword that has a list, such as enum. Without the keyword there are
  // none.
  std::span<const Json> list(const Json& schema, const std::string& place, const char* key) const;
  // Returns text without quotes, up to the mark, which is included. lead: text before the mark that
  // is not a part of the value.
  grammar::ExprId text(const Parameter& p, std::string_view lead, std::string_view mark);
  [[noreturn]] void refuse(const std::string& place, const std::string& text,
                           riffle_status status = RIFFLE_UNSUPPORTED) const {
    throw Error(status, "function \"" + json_string(tool_.name) + "\", parameters" +
                            json_string(place) + ": " + text);
  }
  // Refuses a part of the schema that only JSON's grammar can enforce.
  [[noreturn]] void refuse_unenforced(const std::string& place, const std::string& found,
                                      const char* cure = "remove it") const {
    refuse(place, "found " + found +
                      ", which riffle cannot enforce for this model (it does not write calls as "
                      "JSON); " +
                      cure);
  }

 private:
  [[noreturn]] void refused(const Error& error, const std::string& place) const {
    if (error.status() == RIFFLE_OUT_OF_MEMORY) throw error;
    refuse(place, error.what(), error.status());
  }
  std::optional<std::vector<std::string>> words(const Parameter& p) const;
  grammar::ExprId matching(const Parameter& p, std::vector<grammar::CodeRange> allowed);

  const Tool& tool_;
  grammar::Expressions& e_;
  std::unique_ptr<grammar::JsonSchemaParts> parts_;
};

}  // namespace riffle::requests
