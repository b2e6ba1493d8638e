#include "grammar/schema_values.h"

#include <map>

#include "grammar/schema_node.h"

namespace riffle::grammar {

bool is_true(const Json& value) { return value.is_boolean() && value.boolean(); }

std::string shown_value(const Json& value) {
  std::string text = value.dump();
  if (text.size() > 60) {
    size_t cut = 57;
    while (cut > 0 && (text[cut] & 0xc0) == 0x80) --cut;
    text = text.substr(0, cut) + "...";
  }
  return text;
}

std::optional<Decimal> decimal_of(const Json& number) { return Decimal::parse(number.dump()); }

static bool is_whole(const Json& number) {
  const std::optional<Decimal> d = decimal_of(number);
  return d && d->is_integer();
}

std::string canonical(const Json& value) {
  if (value.is_number()) {
    const std::optional<Decimal> d = decimal_of(value);
    return d ? (d->negative ? "-" : "") + d->whole + "." + d->fraction : value.dump();
  }
  if (value.is_array()) {
    std::string out = "[";
    for (const Json& v : value.elements()) out += canonical(v) + ",";
    return out + "]";
  }
  if (value.is_object()) {
    std::map<std::string, std::string> members;
    for (const auto& [key, v] : value.members()) members[key] = canonical(v);
    std::string out = "{";
    for (const auto& [key, text] : members) out += "\"" + json_string(key) + "\":" + text + ",";
    return out + "}";
  }
  return value.dump();
}

unsigned type_of(const Json& value) {
  if (value.is_null()) return SchemaNode::NULL_;
  if (value.is_boolean()) return SchemaNode::BOOLEAN;
  if (value.is_string()) return SchemaNode::STRING;
  if (value.is_array()) return SchemaNode::ARRAY;
  if (value.is_object()) return SchemaNode::OBJECT;
  return is_whole(value) ? SchemaNode::INTEGER : SchemaNode::FRACTION;
}

}  // namespace riffle::grammar
