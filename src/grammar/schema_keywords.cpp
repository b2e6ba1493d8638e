// Keywords of a schema that restrict a value directly.
#include <algorithm>
#include <utility>

#include "grammar/schema_node.h"
#include "grammar/schema_values.h"
#include "util/error.h"

namespace riffle::grammar {
namespace {

// Tells whether this schema of propertyNames allows every name.
bool allows_all_names(const Json& schema) {
  const Json* const type = schema.find("type");
  return is_true(schema) || (schema.is_object() && schema.empty()) ||
         (type && schema.size() == 1 && type->equals("string"));
}

// Formats that say how a string is used or shown, not which characters it has.
bool is_annotation(const std::string& format) {
  static const std::set<std::string> names = {"password", "binary", "path", "file-path",
                                              "directory-path"};
  return names.count(format) > 0;
}

template <class F>
void for_each(std::vector<SchemaNode>* nodes, F f) {
  for (SchemaNode& n : *nodes) f(n);
}

}  // namespace

uint64_t SchemaReader::count_of(const Json& schema, const char* key, const Json& value) const {
  const std::optional<Decimal> d = value.is_number() ? decimal_of(value) : std::nullopt;
  if (!d || !d->is_integer() || d->negative) wrong(schema, key, value, "a whole number from 0");
  return d->whole.size() > 9 ? 999999999 : static_cast<uint64_t>(d->whole_value());
}

NumberRange::Limit SchemaReader::limit_of(const Json& schema, const char* key,
                                          const Json& value) const {
  if (!value.is_number()) wrong(schema, key, value, "a number");
  const std::optional<Decimal> d = decimal_of(value);
  if (!d)
    unsupported(schema,
                "found " + std::string(key) + " with more than 400 digits, expected at most 400");
  return {*d, std::string_view(key).starts_with("exclusive")};
}

void SchemaReader::follow(const Json& schema, const Json& reference, Nodes* nodes) {
  const Json& to = target(schema, reference);
  if (!open_.insert(&to).second)
    unsupported(schema, "found $ref " + shown_value(reference) +
                            ", which refers to itself, expected another schema");
  apply(to, nodes);
  open_.erase(&to);
}

void SchemaReader::apply_all_of(const Json& schema, const Json& all, Nodes* nodes) {
  if (!all.is_array() || all.empty()) wrong(schema, "allOf", all, "a list of schemas");
  for (size_t i = 0; i < all.size(); ++i) {
    note(all[i], place({&schema}) + "/allOf/" + std::to_string(i));
    apply(all[i], nodes);
  }
}

void SchemaReader::apply_values(const Json& schema, const std::string& key, const Json& value,
                                Nodes* nodes) {
  if (key == "enum" && !value.is_array()) wrong(schema, key, value, "a list of values");
  std::vector<Json> listed;
  std::set<std::string> seen;
  const auto add = [&](const Json& v) {
    if (seen.insert(canonical(v)).second) listed.push_back(v);
  };
  if (key == "const") add(value);
  else
    for (const Json& v : value.elements()) add(v);
  const auto values = std::make_shared<const std::vector<Json>>(std::move(listed));
  for_each(nodes, [&](SchemaNode& n) {
    if (!n.values) {
      n.values = values;
      return;
    }
    std::vector<Json> both = *n.values;
    std::erase_if(both, [&](const Json& v) { return !seen.count(canonical(v)); });
    n.values = std::make_shared<const std::vector<Json>>(std::move(both));
  });
}

void SchemaReader::apply_multiple(const Json& schema, const Json& value, Nodes* nodes) {
  const std::optional<Decimal> d = value.is_number() ? decimal_of(value) : std::nullopt;
  if (!d || d->negative || d->is_zero()) wrong(schema, "multipleOf", value, "a number above 0");
  if (!d->is_integer() || d->whole.size() > 9)
    unsupported(schema, "found multipleOf " + shown_value(value) +
                            ", expected a whole number below 1000000000");
  for_each(nodes, [&](SchemaNode& n) {
    n.types &= ~static_cast<unsigned>(SchemaNode::FRACTION);
    if (d->whole == "1") return;
    n.multiples.push_back(d->whole_value());
    n.multiples_at = &schema;
  });
}

bool SchemaReader::apply_limit(const Json& schema, const std::string& key, const Json& value,
                               Nodes* nodes) {
  if (key == "minimum" || key == "exclusiveMinimum") {
    const NumberRange::Limit limit = limit_of(schema, key.c_str(), value);
    for_each(nodes, [&](SchemaNode& n) { n.range.raise(limit); });
    return true;
  }
  if (key == "maximum" || key == "exclusiveMaximum") {
    const NumberRange::Limit limit = limit_of(schema, key.c_str(), value);
    for_each(nodes, [&](SchemaNode& n) { n.range.lower(limit); });
    return true;
  }
  struct Count {
    const char *least, *most;
    uint64_t SchemaNode::*min, SchemaNode::*max;
    const Json* SchemaNode::*at;  // null: no error names its place
  };
  static constexpr Count counts[] = {
      {"minLength", "maxLength", &SchemaNode::min_length, &SchemaNode::max_length,
       &SchemaNode::lengths_at},
      {"minItems", "maxItems", &SchemaNode::min_items, &SchemaNode::max_items, nullptr},
      {"minProperties", "maxProperties", &SchemaNode::min_properties, &SchemaNode::max_properties,
       &SchemaNode::properties_at}};
  for (const Count& c : counts) {
    if (key != c.least && key != c.most) continue;
    const uint64_t n = count_of(schema, key.c_str(), value);
    for_each(nodes, [&](SchemaNode& node) {
      if (c.at) node.*c.at = &schema;
      if (key == c.least) node.*c.min = std::max(node.*c.min, n);
      else node.*c.max = std::min(node.*c.max, n);
    });
    return true;
  }
  return false;
}

void SchemaReader::apply_required(const Json& schema, const Json& value, Nodes* nodes) {
  if (!value.is_array()) wrong(schema, "required", value, "a list of names");
  for (const Json& name : value.elements()) {
    if (!name.is_string()) wrong(schema, "required", value, "a list of names");
    const std::string& n = name.string();
    for_each(nodes, [&](SchemaNode& node) {
      if (std::find(node.required.begin(), node.required.end(), n) == node.required.end())
        node.required.push_back(n);
    });
  }
}

// Refuses a keyword, unless it has no effect with this value.
void SchemaReader::check_without_effect(const Json& schema, const std::string& key,
                                        const Json& value) const {
  if (key == "nullable") {  // OpenAPI's; apply_types reads it
    if (!value.is_boolean()) wrong(schema, key, value, "true or false");
    if (is_true(value) && !schema.find("type"))
      unsupported(schema, "found nullable without type, expected both; use anyOf with type null");
    return;
  }
  if (key == "$id" && &schema == &root_) return;
  if (key == "uniqueItems" && value.is_boolean() && !value.boolean()) return;
  if (key == "propertyNames" && allows_all_names(value)) return;
  if ((key == "patternProperties" || key == "dependentRequired" || key == "dependentSchemas" ||
       key == "dependencies") &&
      value.is_object() && value.empty())
    return;
  const std::string name =
      key.size() > 60 ? format("of %zu characters", key.size()) : std::string(key);
  unsupported(schema,
              "found the keyword " + name + ", expected one that riffle-run(1) lists; remove it");
}

void SchemaReader::apply_keyword(const Json& schema, const std::string& key, const Json& value,
                                 Nodes* nodes) {
  if (key == "type") return apply_types(schema, value, nodes);
  if (key == "$ref") return follow(schema, value, nodes);
  if (key == "allOf") return apply_all_of(schema, value, nodes);
  if (key == "enum" || key == "const") return apply_values(schema, key, value, nodes);
  if (key == "multipleOf") return apply_multiple(schema, value, nodes);
  if (key == "required") return apply_required(schema, value, nodes);
  if (apply_limit(schema, key, value, nodes)) return;
  if (key != "pattern" && key != "format") return check_without_effect(schema, key, value);
  if (!value.is_string()) wrong(schema, key, value, "a string");
  const std::string& text = value.string();
  if (key == "format" && is_annotation(text)) return;
  for_each(nodes, [&](SchemaNode& n) {
    (key == "pattern" ? n.patterns : n.formats).emplace(text, &schema);
  });
}

}  // namespace riffle::grammar
