// A JSON Schema in normal form: alternatives, each of which has rules for the values of each type.
// Keywords that combine schemas (allOf, anyOf, oneOf, $ref) are gone. Schemas of members and items
// stay as they are, in lists of schemas that must all hold.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "grammar/json_pieces.h"
#include "grammar/number_range.h"
#include "util/json.h"

namespace riffle::grammar {

// Schemas that must all hold, sorted; schemas that always hold are left out.
using AllOf = std::vector<const Json*>;

struct SchemaNode {
  enum Type : unsigned {
    NULL_ = 1,
    BOOLEAN = 2,
    INTEGER = 4,
    FRACTION = 8,  // numbers with a fraction
    STRING = 16,
    ARRAY = 32,
    OBJECT = 64,
    ALL = 127,
  };
  unsigned types = ALL;
  std::shared_ptr<const std::vector<Json>> values;  // enum and const: one of these; null: any

  NumberRange range;
  std::vector<int64_t> multiples;  // multipleOf: whole numbers above 1
  const Json* multiples_at = nullptr;

  uint64_t min_length = 0, max_length = kUnlimited;
  std::map<std::string, const Json*> patterns, formats;  // each with the schema that contains it

  struct Items {
    std::vector<const Json*> prefix;
    const Json* rest = nullptr;  // null: any
  };
  std::vector<Items> items;  // all hold
  uint64_t min_items = 0, max_items = kUnlimited;

  struct Properties {
    const Json* properties = nullptr;  // an object
    const Json* rest = nullptr;        // additionalProperties; null: any
  };
  std::vector<Properties> properties;  // all hold
  std::vector<std::string> required;   // without repetitions
  uint64_t min_properties = 0, max_properties = kUnlimited;

  // Schemas that limit lengths and numbers of properties, for errors; null: none.
  const Json *lengths_at = nullptr, *properties_at = nullptr;
};

class SchemaReader {
 public:
  // root outlives the reader.
  explicit SchemaReader(const Json& root);

  // Returns the schema at a JSON pointer into the root. Throws RIFFLE_BAD_ARGUMENT.
  const Json& at(std::string_view pointer);
  // Throws RIFFLE_BAD_ARGUMENT (no schema) or RIFFLE_UNSUPPORTED, with the place in the schema.
  std::vector<SchemaNode> nodes_of(const AllOf& schemas);
  // Combines schemas that some node holds.
  static AllOf all_of(std::vector<const Json*> schemas);
  static AllOf item(const SchemaNode& node, size_t index);
  static AllOf rest_of_items(const SchemaNode& node);
  static AllOf member(const SchemaNode& node, const std::string& name);
  static AllOf rest_of_members(const SchemaNode& node);
  // Returns the names of all properties, required ones included, in order of first mention.
  static std::vector<std::string> names(const SchemaNode& node);
  static size_t n_prefix(const SchemaNode& node);

  // Returns the place of a schema that has been read, or of the first of several: "#/properties/a".
  // Errors about a keyword give the place of the schema that contains it.
  std::string place(const AllOf& schemas) const;
  [[noreturn]] void unsupported(const Json& schema, const std::string& what) const;
  [[noreturn]] void too_many_alternatives(const Json& schema) const;

  // Tells whether a value may belong to the node, checking only types, ranges and lengths.
  bool holds(const SchemaNode& node, const Json& value, const AllOf& at) const;

 private:
  using Nodes = std::vector<SchemaNode>;

  void apply(const Json& schema, Nodes* nodes);
  void apply_keyword(const Json& schema, const std::string& key, const Json& value, Nodes* nodes);
  void follow(const Json& schema, const Json& reference, Nodes* nodes);
  void apply_all_of(const Json& schema, const Json& all, Nodes* nodes);
  void apply_values(const Json& schema, const std::string& key, const Json& value, Nodes* nodes);
  void apply_multiple(const Json& schema, const Json& value, Nodes* nodes);
  // Returns false if the keyword sets no limit of numbers, lengths or counts.
  bool apply_limit(const Json& schema, const std::string& key, const Json& value, Nodes* nodes);
  void apply_required(const Json& schema, const Json& value, Nodes* nodes);
  void check_without_effect(const Json& schema, const std::string& key, const Json& value) const;
  void apply_types(const Json& schema, const Json& value, Nodes* nodes);
  void apply_properties(const Json& schema, Nodes* nodes);
  void apply_items(const Json& schema, Nodes* nodes);
  void apply_branches(const Json& schema, const char* key, bool exclusive, Nodes* nodes);
  const Json& target(const Json& schema, const Json& reference);
  bool disjoint(const SchemaNode& a, const SchemaNode& b, int depth, const Json& at);
  bool apart(const AllOf& a, const AllOf& b, int depth, const Json& at);
  void note(const Json& schema, const std::string& place);
  [[noreturn]] void wrong(const Json& schema, const std::string& key, const Json& found,
                          const char* expected) const;
  uint64_t count_of(const Json& schema, const char* key, const Json& value) const;
  NumberRange::Limit limit_of(const Json& schema, const char* key, const Json& value) const;

  const Json& root_;
  std::map<const Json*, std::string> places_;
  size_t place_bytes_ = 0, compared_ = 0;
  std::set<const Json*> open_;  // references that are being followed
  int depth_ = 0;
  bool comparing_ = false;  // true inside disjoint(), where branches of oneOf may overlap
  size_t work_ = 0;
};

}  // namespace riffle::grammar
