#include "grammar/schema_node.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "grammar/reader.h"
#include "grammar/schema_values.h"
#include "util/error.h"
#include "util/utf8.h"

namespace riffle::grammar {
namespace {

constexpr int kDeepest = 64;           // nesting of schemas that apply to one value
constexpr size_t kMostNodes = 1024;    // alternatives
constexpr size_t kMostPairs = 200000;  // pairs of branches of oneOf that are compared
constexpr size_t kMostWork = 3000000;  // schemas read, counted for each alternative
constexpr int kDeepestTest = 4;  // nesting of members in the test whether two schemas are disjoint

bool known_annotation(const std::string& key) {
  static const std::set<std::string> names = {
      "$schema",       "$comment",    "$defs",        "definitions",     "$anchor",
      "title",         "description", "default",      "examples",        "example",
      "deprecated",    "readOnly",    "writeOnly",    "contentEncoding", "contentMediaType",
      "contentSchema", "$vocabulary", "discriminator"};
  return names.count(key) > 0 || key.starts_with("x-");
}

// Keywords that are read together with another one.
bool part_of_others(const std::string& key) {
  static const std::set<std::string> names = {
      "properties", "additionalProperties", "anyOf",          "oneOf",
      "items",      "prefixItems",          "additionalItems"};
  return names.count(key) > 0;
}

std::string token_of(const std::string& key) {
  return json_string(json_pointer_token(key));  // control characters are no part of an error text
}

}  // namespace

// Limits of the bytes of all places in the schema, and of the values of oneOf that are compared.
static constexpr size_t kMostPlaceBytes = size_t{64} << 20, kMostCompared = 2000000;

SchemaReader::SchemaReader(const Json& root) : root_(root) { places_[&root_] = "#"; }

void SchemaReader::note(const Json& schema, const std::string& place) {
  if (!places_.emplace(&schema, place).second) return;
  place_bytes_ += place.size();
  if (place_bytes_ > kMostPlaceBytes)
    throw Error(RIFFLE_UNSUPPORTED,
                "the schema: found names and nesting of more than 64 MiB, expected at most that "
                "much; use shorter names or less nesting");
}

const Json& SchemaReader::at(std::string_view pointer) {
  const Json* const schema = root_.at_pointer(pointer);
  if (!schema)
    throw Error(RIFFLE_BAD_ARGUMENT,
                "the schema: found nothing at #" + std::string(pointer) + ", expected a schema");
  note(*schema, "#" + std::string(pointer));
  return *schema;
}

std::string SchemaReader::place(const AllOf& schemas) const {
  if (schemas.empty()) return "#";
  const auto it = places_.find(schemas[0]);
  return it == places_.end() ? "#" : it->second;
}

// The schema may contain any text, so backquotes in it must not be read as settings.
void SchemaReader::unsupported(const Json& schema, const std::string& what) const {
  throw Error(RIFFLE_UNSUPPORTED, "at " + place({&schema}) + ": " + what);
}

void SchemaReader::too_many_alternatives(const Json& schema) const {
  unsupported(schema,
              format("found more than %zu alternatives, expected at most that many; use fewer "
                     "branches of anyOf and oneOf inside of allOf",
                     kMostNodes));
}

void SchemaReader::wrong(const Json& schema, const std::string& key, const Json& found,
                         const char* expected) const {
  throw Error(RIFFLE_BAD_ARGUMENT, "at " + place({&schema}) + (key.empty() ? "" : "/") +
                                       token_of(key) + ": found " + shown_value(found) +
                                       ", expected " + expected);
}

AllOf SchemaReader::all_of(std::vector<const Json*> schemas) {
  const auto always_holds = [](const Json& s) {
    return s.is_boolean() ? s.boolean() : s.is_object() && s.empty();
  };
  std::erase_if(schemas, [&](const Json* s) { return !s || always_holds(*s); });
  std::sort(schemas.begin(), schemas.end());
  schemas.erase(std::unique(schemas.begin(), schemas.end()), schemas.end());
  return schemas;
}

std::vector<SchemaNode> SchemaReader::nodes_of(const AllOf& schemas) {
  Nodes nodes(1);
  for (const Json* s : schemas) apply(*s, &nodes);
  return nodes;
}

void SchemaReader::apply(const Json& schema, Nodes* nodes) {
  if (schema.is_boolean()) {
    if (!schema.boolean()) nodes->clear();
    return;
  }
  if (!schema.is_object()) wrong(schema, "", schema, "an object, true or false");
  if ((work_ += nodes->size() + 1) > kMostWork)
    unsupported(schema,
                "found too many subschemas that apply to one value, expected fewer; use "
                "fewer $ref, anyOf and oneOf");
  if (++depth_ > kDeepest)
    unsupported(schema,
                format("found $ref and allOf nested deeper than %d levels, expected at most "
                       "that many; write their conditions into one schema",
                       kDeepest));
  for (const auto& [key, value] : schema.members()) {
    if (known_annotation(key) || part_of_others(key)) continue;
    apply_keyword(schema, key, value, nodes);
    if (nodes->size() > kMostNodes) too_many_alternatives(schema);
  }
  apply_properties(schema, nodes);
  apply_items(schema, nodes);
  // Applied last, when all other rules are known.
  if (schema.find("anyOf")) apply_branches(schema, "anyOf", false, nodes);
  if (schema.find("oneOf")) apply_branches(schema, "oneOf", true, nodes);
  --depth_;
}

void SchemaReader::apply_types(const Json& schema, const Json& value, Nodes* nodes) {
  static const std::map<std::string, unsigned> types = {
      {"null", SchemaNode::NULL_},      {"boolean", SchemaNode::BOOLEAN},
      {"integer", SchemaNode::INTEGER}, {"number", SchemaNode::INTEGER | SchemaNode::FRACTION},
      {"string", SchemaNode::STRING},   {"array", SchemaNode::ARRAY},
      {"object", SchemaNode::OBJECT}};
  unsigned mask = 0;
  const auto add = [&](const Json& name) {
    const auto it = name.is_string() ? types.find(name.string()) : types.end();
    if (it == types.end())
      wrong(schema, "type", name, "null, boolean, integer, number, string, array or object");
    mask |= it->second;
  };
  if (value.is_array() && value.empty())
    wrong(schema, "type", value, "the name of a type, or a list of such names");
  if (value.is_array())
    for (const Json& name : value.elements()) add(name);
  else add(value);
  if (const Json* const also = schema.find("nullable"); also && is_true(*also))
    mask |= SchemaNode::NULL_;
  for (SchemaNode& n : *nodes) n.types &= mask;
  std::erase_if(*nodes, [](const SchemaNode& n) { return n.types == 0; });
}

void SchemaReader::apply_properties(const Json& schema, Nodes* nodes) {
  SchemaNode::Properties rule;
  const std::string here = place({&schema});
  if (const Json* const all = schema.find("properties")) {
    if (!all->is_object()) wrong(schema, "properties", *all, "an object");
    for (const auto& [name, one] : all->members())
      note(one, here + "/properties/" + token_of(name));
    rule.properties = all;
  }
  if (const Json* const rest = schema.find("additionalProperties")) {
    note(*rest, here + "/additionalProperties");
    rule.rest = rest;
  }
  if (!rule.properties && !rule.rest) return;
  for (SchemaNode& n : *nodes) n.properties.push_back(rule);
}

void SchemaReader::apply_items(const Json& schema, Nodes* nodes) {
  SchemaNode::Items rule;
  const std::string here = place({&schema});
  const auto take_prefix = [&](const Json& list, const std::string& key) {
    for (size_t i = 0; i < list.size(); ++i) {
      note(list[i], here + "/" + key + "/" + std::to_string(i));
      rule.prefix.push_back(&list[i]);
    }
  };
  if (const Json* const prefix = schema.find("prefixItems")) {
    if (!prefix->is_array()) wrong(schema, "prefixItems", *prefix, "a list of schemas");
    take_prefix(*prefix, "prefixItems");
  }
  const char* rest = "items";
  if (const Json* const items = schema.find("items"); items && items->is_array()) {
    take_prefix(*items, "items");  // as drafts before 2020-12 have it
    rest = "additionalItems";
  }
  if (const Json* const others = schema.find(rest)) {
    note(*others, here + "/" + rest);
    rule.rest = others;
  }
  if (rule.prefix.empty() && !rule.rest) return;
  for (SchemaNode& n : *nodes) n.items.push_back(rule);
}

void SchemaReader::apply_branches(const Json& schema, const char* key, bool exclusive,
                                  Nodes* nodes) {
  const Json& branches = *schema.find(key);
  if (!branches.is_array() || branches.empty()) wrong(schema, key, branches, "a list of schemas");
  std::vector<Nodes> each;
  Nodes all;
  for (size_t i = 0; i < branches.size(); ++i) {
    note(branches[i], place({&schema}) + "/" + key + "/" + std::to_string(i));
    Nodes branch = *nodes;
    apply(branches[i], &branch);
    all.insert(all.end(), branch.begin(), branch.end());
    if (all.size() > kMostNodes) too_many_alternatives(schema);
    if (exclusive) each.push_back(std::move(branch));
  }
  size_t pairs = 0;
  if (exclusive && !comparing_)
    for (size_t i = 0; i < each.size(); ++i)
      for (size_t j = 0; j < i; ++j)
        for (const SchemaNode& a : each[i])
          for (const SchemaNode& b : each[j]) {
            if (++pairs > kMostPairs || !disjoint(a, b, 0, schema))
              unsupported(schema, format("found oneOf whose branches %zu and %zu may both fit a "
                                         "value, expected branches that exclude each other; use "
                                         "anyOf",
                                         j, i));
          }
  *nodes = std::move(all);
}

const Json& SchemaReader::target(const Json& schema, const Json& reference) {
  if (!reference.is_string()) wrong(schema, "$ref", reference, "a string");
  const std::string& text = reference.string();
  if (!text.starts_with("#") || (text.size() > 1 && text[1] != '/'))
    unsupported(schema, "found $ref " + shown_value(reference) +
                            ", expected a place in this schema, such as #/$defs/name");
  // Decodes %25 and the like, then reads a JSON pointer.
  std::string pointer;
  for (size_t i = 1; i < text.size(); ++i) {
    uint8_t code = 0;
    const char* const digits = text.data() + i + 1;
    if (text[i] == '%' && i + 2 < text.size() &&
        std::from_chars(digits, digits + 2, code, 16).ptr == digits + 2) {
      pointer += static_cast<char>(code);
      i += 2;
    } else {
      pointer += text[i];
    }
  }
  const Json* const to = root_.at_pointer(pointer);
  if (!to) wrong(schema, "$ref", reference, "a place that is in this schema");
  note(*to, "#" + pointer);
  return *to;
}

AllOf SchemaReader::item(const SchemaNode& node, size_t index) {
  std::vector<const Json*> all;
  for (const SchemaNode::Items& rule : node.items)
    all.push_back(index < rule.prefix.size() ? rule.prefix[index] : rule.rest);
  return all_of(std::move(all));
}

AllOf SchemaReader::rest_of_items(const SchemaNode& node) { return item(node, n_prefix(node)); }

size_t SchemaReader::n_prefix(const SchemaNode& node) {
  size_t n = 0;
  for (const SchemaNode::Items& rule : node.items) n = std::max(n, rule.prefix.size());
  return n;
}

AllOf SchemaReader::member(const SchemaNode& node, const std::string& name) {
  std::vector<const Json*> all;
  for (const SchemaNode::Properties& rule : node.properties) {
    const Json* const own = rule.properties ? rule.properties->find(name) : nullptr;
    all.push_back(own ? own : rule.rest);
  }
  return all_of(std::move(all));
}

AllOf SchemaReader::rest_of_members(const SchemaNode& node) {
  std::vector<const Json*> all;
  for (const SchemaNode::Properties& rule : node.properties) all.push_back(rule.rest);
  return all_of(std::move(all));
}

std::vector<std::string> SchemaReader::names(const SchemaNode& node) {
  std::vector<std::string> out;
  std::set<std::string> seen;
  for (const SchemaNode::Properties& rule : node.properties)
    if (rule.properties)
      for (const auto& [name, one] : rule.properties->members())
        if (seen.insert(name).second) out.push_back(name);
  for (const std::string& name : node.required)
    if (seen.insert(name).second) out.push_back(name);
  return out;
}

bool SchemaReader::holds(const SchemaNode& node, const Json& value, const AllOf& at) const {
  // Schemas inside are read again, which changes only the notes about places.
  auto& self = const_cast<SchemaReader&>(*this);
  const auto inside = [&](const AllOf& schemas, const Json& one) {
    if (schemas.empty()) return true;
    const Nodes nodes = self.nodes_of(schemas);
    return std::any_of(nodes.begin(), nodes.end(), [&](const SchemaNode& n) {
      const auto equal = [&](const Json& v) { return canonical(v) == canonical(one); };
      if (n.values && std::none_of(n.values->begin(), n.values->end(), equal)) return false;
      return holds(n, one, schemas);
    });
  };
  if (!(node.types & type_of(value))) return false;
  if (value.is_number()) {
    const std::optional<Decimal> d = decimal_of(value);
    if (!d || !node.range.holds(*d)) return false;
    for (const int64_t k : node.multiples) {
      int64_t rest = 0;
      for (const char c : d->whole) rest = (rest * 10 + (c - '0')) % k;
      if (rest != 0) return false;
    }
  } else if (value.is_string()) {
    const uint64_t n = char_count(value.string());
    if (n < node.min_length || n > node.max_length) return false;
    const auto& which = node.patterns.empty() ? node.formats : node.patterns;
    if (!which.empty() && !at.empty())
      unsupported(
          *which.begin()->second,
          "found enum or const together with pattern or format, expected only one of the two; "
          "list the valid values in enum");
  } else if (value.is_array()) {
    if (value.size() < node.min_items || value.size() > node.max_items) return false;
    for (size_t i = 0; i < value.size(); ++i)
      if (!inside(item(node, i), value[i])) return false;
  } else if (value.is_object()) {
    if (value.size() < node.min_properties || value.size() > node.max_properties) return false;
    for (const std::string& name : node.required)
      if (!value.find(name)) return false;
    for (const auto& [name, one] : value.members())
      if (!inside(member(node, name), one)) return false;
  }
  return true;
}

bool SchemaReader::apart(const AllOf& a, const AllOf& b, int depth, const Json& at) {
  if (depth > kDeepestTest) return false;
  // These schemas apply to a member, so references back to the object are not circular.
  const bool before = std::exchange(comparing_, true);
  const int depth_before = std::exchange(depth_, 0);
  std::set<const Json*> open_before;
  open_before.swap(open_);
  const Nodes x = nodes_of(a), y = nodes_of(b);
  open_.swap(open_before);
  depth_ = depth_before;
  comparing_ = before;
  if (x.size() * y.size() > kMostNodes) return false;
  for (const SchemaNode& m : x)
    for (const SchemaNode& n : y)
      if (!disjoint(m, n, depth, at)) return false;
  return true;
}

// Returns true if certainly no value belongs to both nodes.
bool SchemaReader::disjoint(const SchemaNode& a, const SchemaNode& b, int depth, const Json& at) {
  const unsigned common = a.types & b.types;
  if (common == 0) return true;
  if (a.values || b.values) {
    const SchemaNode &listed = a.values ? a : b, &other = a.values ? b : a;
    compared_ += listed.values->size() + (other.values ? other.values->size() : 0);
    if (compared_ > kMostCompared)
      unsupported(at,
                  format("found oneOf with more than %zu values to compare, expected at most that "
                         "many; use anyOf",
                         kMostCompared));
    std::set<std::string> others;
    if (other.values)
      for (const Json& v : *other.values) others.insert(canonical(v));
    return std::none_of(listed.values->begin(), listed.values->end(), [&](const Json& v) {
      return holds(listed, v, {}) &&
             (other.values ? others.count(canonical(v)) > 0 && holds(other, v, {})
                           : holds(other, v, {}));
    });
  }
  if (common & (SchemaNode::NULL_ | SchemaNode::BOOLEAN)) return false;
  if (common & (SchemaNode::INTEGER | SchemaNode::FRACTION)) {
    NumberRange both = a.range;
    if (b.range.low) both.raise(*b.range.low);
    if (b.range.high) both.lower(*b.range.high);
    if (!both.empty((common & SchemaNode::FRACTION) == 0)) return false;
  }
  const auto apart_counts = [](uint64_t min1, uint64_t max1, uint64_t min2, uint64_t max2) {
    return std::max(min1, min2) > std::min(max1, max2);
  };
  if ((common & SchemaNode::STRING) &&
      !apart_counts(a.min_length, a.max_length, b.min_length, b.max_length))
    return false;
  if ((common & SchemaNode::ARRAY) &&
      !apart_counts(a.min_items, a.max_items, b.min_items, b.max_items))
    return false;
  if (common & SchemaNode::OBJECT) {
    if (apart_counts(a.min_properties, a.max_properties, b.min_properties, b.max_properties))
      return true;
    std::set<std::string> there(a.required.begin(), a.required.end());
    there.insert(b.required.begin(), b.required.end());
    return std::any_of(there.begin(), there.end(), [&](const std::string& name) {
      return apart(member(a, name), member(b, name), depth + 1, at);
    });
  }
  return true;
}

}  // namespace riffle::grammar
