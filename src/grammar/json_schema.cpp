#include "grammar/json_schema.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "grammar/formats.h"
#include "grammar/json_pieces.h"
#include "grammar/ordered_members.h"
#include "grammar/reader.h"
#include "grammar/schema_node.h"
#include "util/error.h"

namespace riffle::grammar {
namespace {

// Limits of the schema's text.
constexpr JsonLimits kLimits{.depth = 100, .values = 2000000, .count_all = true, .exact = true};
constexpr size_t kMostRules = 100000;       // different subschemas
constexpr int64_t kMostMultiples = 100000;  // numbers that are listed one by one
constexpr int64_t kMostRemainders = 1000;   // remainders of a division digit by digit

Json parse(std::string_view text) {
  Reader reader(text);  // checks UTF-8
  try {
    return parse_json(text, kLimits);
  } catch (const JsonError& error) {
    if (error.kind != JsonError::SYNTAX) {
      const bool large = error.kind == JsonError::TOO_DEEP || error.kind == JsonError::TOO_MANY;
      throw Error(large ? RIFFLE_UNSUPPORTED : RIFFLE_BAD_ARGUMENT,
                  "the schema: " + text_of(error, kLimits));
    }
    // Grammars and schemas name places as line and column.
    reader.go_to(std::min(error.byte > 0 ? error.byte - 1 : 0, text.size()));
    reader.expected("JSON");
  }
}

class Schema {
 public:
  Schema(const Json& root, Expressions* e) : reader_(root), e_(*e), pieces_(e) {}

  uint32_t read(std::string_view pointer) {
    const uint32_t root = rule_of(SchemaReader::all_of({&reader_.at(pointer)}));
    while (!open_.empty()) {
      const auto [rule, schemas] = open_.back();
      open_.pop_back();
      e_.define(rule, value_of(schemas));
    }
    return root;
  }

 private:
  // Returns the rule of the values that are valid by all these schemas. It is defined later, so
  // that schemas may refer to themselves.
  uint32_t rule_of(const AllOf& schemas) {
    const auto it = rules_.find(schemas);
    if (it != rules_.end()) return it->second;
    if (rules_.size() == kMostRules)
      fail(RIFFLE_UNSUPPORTED,
           "the schema: found more than %zu different subschemas, expected at most that many; use "
           "fewer combinations of allOf, anyOf and oneOf",
           kMostRules);
    const uint32_t rule = e_.declare(reader_.place(schemas));
    rules_.emplace(schemas, rule);
    open_.emplace_back(rule, schemas);
    return rule;
  }
  ExprId value(const AllOf& schemas) {
    // A member with schema false is left out.
    if (schemas.size() == 1 && schemas[0]->is_boolean() && !schemas[0]->boolean())
      return Expressions::kNever;
    return e_.rule(rule_of(schemas));
  }

  ExprId value_of(const AllOf& schemas) {
    std::vector<ExprId> ways, objects;
    for (const SchemaNode& node : reader_.nodes_of(schemas))
      ways.push_back(node_expr(node, schemas, &objects));
    // All objects share one pair of braces. With a pair for each, there would be one way to read
    // the white space after the brace for each object.
    if (!objects.empty()) ways.push_back(braces(e_.choice(std::move(objects))));
    return e_.choice(std::move(ways));
  }

  // Returns the values of a node, except objects: appends the texts between their braces to
  // `objects`.
  ExprId node_expr(const SchemaNode& node, const AllOf& at, std::vector<ExprId>* objects) {
    std::vector<ExprId> ways;
    if (node.values) {
      std::vector<std::string> words;
      for (const Json& v : *node.values) {
        if (!reader_.holds(node, v, at)) continue;
        if (v.is_array() || v.is_object()) ways.push_back(constant(v));
        else words.push_back(v.is_real() ? number_text(v) : v.dump());
      }
      ways.push_back(e_.words(std::move(words)));
      return e_.choice(std::move(ways));
    }
    if (node.types & SchemaNode::NULL_) ways.push_back(e_.text("null"));
    if (node.types & SchemaNode::BOOLEAN) ways.push_back(e_.words({"true", "false"}));
    if (node.types & SchemaNode::FRACTION) ways.push_back(number_expr(node.range, false, &e_));
    else if (node.types & SchemaNode::INTEGER) ways.push_back(integer(node));
    if (node.types & SchemaNode::STRING) ways.push_back(string(node));
    if (node.types & SchemaNode::ARRAY) ways.push_back(array(node));
    if (node.types & SchemaNode::OBJECT) objects->push_back(object(node));
    return e_.choice(std::move(ways));
  }

  // Returns the text of a number. A whole number is written without a fraction, even if the schema
  // has 1.0.
  static std::string number_text(const Json& v) {
    const std::optional<Decimal> d = Decimal::parse(v.dump());
    return d && d->is_integer() && d->whole.size() <= kMostDigits
               ? (d->negative ? "-" : "") + d->whole
               : v.dump();
  }

  // Returns a value of enum or const. The members of an object may come in any order.
  ExprId constant(const Json& v) {
    if (v.is_array()) {
      std::vector<ExprId> parts{e_.text("["), pieces_.space()};
      for (size_t i = 0; i < v.size(); ++i) {
        if (i > 0) parts.push_back(pieces_.comma());
        parts.push_back(constant(v[i]));
      }
      parts.push_back(pieces_.space());
      parts.push_back(e_.text("]"));
      return e_.sequence(std::move(parts));
    }
    if (v.is_object()) {
      std::vector<OrderedMember> members;
      for (const auto& [key, one] : v.members())
        members.push_back({JsonPieces::key(key), behind_key(constant(one)), true});
      return braces(inside(members, Expressions::kNever, 0, kUnlimited));
    }
    if (v.is_string()) return pieces_.literal(v.string());
    return e_.text(v.is_real() ? number_text(v) : v.dump());
  }

  // ---- numbers

  ExprId integer(const SchemaNode& node) {
    if (node.multiples.empty()) return number_expr(node.range, true, &e_);
    int64_t step = 1;
    for (const int64_t k : node.multiples) {
      step = step / std::gcd(step, k) * k;
      if (step > 1000000000000)
        reader_.unsupported(*node.multiples_at,
                            "found values of multipleOf whose common multiple is above 10^12, "
                            "expected at most 10^12");
    }
    const auto& [low, high] = node.range;
    if (low && high && low->value.whole.size() < 16 && high->value.whole.size() < 16) {
      const auto number = [](const Decimal& d) {
        const int64_t whole = d.whole_value();
        return d.negative ? -whole : whole;
      };
      const int64_t first = number(low->value) / step - 1, last = number(high->value) / step + 1;
      if (last - first <= kMostMultiples) {
        std::vector<std::string> words;
        for (int64_t i = first; i <= last; ++i) {
          std::string text = std::to_string(i * step);
          if (node.range.holds(*Decimal::parse(text))) words.push_back(std::move(text));
        }
        return e_.words(std::move(words));
      }
    }
    if (low || high || step > kMostRemainders)
      reader_.unsupported(
          *node.multiples_at,
          format("found multipleOf %lld, expected at most %lld and no limits, or minimum and "
                 "maximum with at most %lld multiples between them",
                 static_cast<long long>(step), static_cast<long long>(kMostRemainders),
                 static_cast<long long>(kMostMultiples)));
    return multiples_of(step);
  }

  // Divides digit by digit, with a rule for each remainder.
  ExprId multiples_of(int64_t step) {
    std::vector<uint32_t> rules;
    for (int64_t r = 0; r < step; ++r) rules.push_back(e_.declare("multipleOf"));
    const auto next = [&](int64_t rest, int first) {
      std::vector<ExprId> ways;
      for (int d = first; d < 10; ++d)
        ways.push_back(e_.sequence({e_.text(std::to_string(d)),
                                    e_.rule(rules[static_cast<size_t>((rest * 10 + d) % step)])}));
      return ways;
    };
    for (int64_t r = 0; r < step; ++r) {
      std::vector<ExprId> ways = next(r, 0);
      if (r == 0) ways.push_back(Expressions::kEmpty);
      e_.define(rules[static_cast<size_t>(r)], e_.choice(std::move(ways)));
    }
    return e_.choice(
        {e_.text("0"), e_.sequence({e_.optional(e_.text("-")), e_.choice(next(0, 1))})});
  }

  // ---- strings

  ExprId string(const SchemaNode& node) {
    if (node.min_length > node.max_length) return Expressions::kNever;
    const auto min = static_cast<uint32_t>(node.min_length);
    const auto max =
        node.max_length >= kUnlimited ? kUnlimited : static_cast<uint32_t>(node.max_length);
    std::vector<std::pair<std::string, const Json*>> patterns(node.patterns.begin(),
                                                              node.patterns.end());
    for (const auto& [name, schema] : node.formats) {
      const char* const pattern = format_pattern(name);
      if (!pattern)
        reader_.unsupported(*schema, "found format " + Json(name).dump(true).substr(0, 60) +
                                         ", expected one of " + format_names() +
                                         "; use pattern, or leave format out");
      patterns.emplace_back(pattern, schema);
    }
    if (patterns.empty()) return pieces_.string(min, max);
    const Json& place = *patterns.back().second;
    if (patterns.size() > 1)
      reader_.unsupported(place,
                          "found more than one pattern or format for one string, expected one; "
                          "combine them in one pattern");
    Regex regex;
    try {
      regex = read_regex(patterns[0].first, pieces_.regex_options(), &e_);
    } catch (const Error& error) {
      throw Error(error.status(), "at " + reader_.place({&place}) + "/pattern: " + error.what());
    }
    if (regex.min >= min && (max == kUnlimited || regex.max <= max)) return pieces_.matching(regex);
    if (!regex.repeated)
      reader_.unsupported(*node.lengths_at,
                          "found minLength or maxLength together with a pattern or format that "
                          "has other lengths, expected a pattern of one class such as ^[a-z]+$; "
                          "write the lengths into the pattern");
    const auto limited = [](uint64_t n) {
      return n >= kUnlimited ? kUnlimited : static_cast<uint32_t>(n);
    };
    regex.expr = e_.repeat(*regex.repeated, std::max(min, limited(regex.min)),
                           std::min(max, limited(regex.max)));
    return pieces_.matching(regex);
  }

  // ---- arrays

  ExprId array(const SchemaNode& node) {
    if (node.min_items > node.max_items) return Expressions::kNever;
    const uint64_t n = std::min<uint64_t>(SchemaReader::n_prefix(node), node.max_items);
    const auto rest = [&](uint64_t done, uint64_t limit) {  // the items that follow
      return limit >= kUnlimited ? kUnlimited
                                 : static_cast<uint32_t>(limit > done ? limit - done : 0);
    };
    // Built from the last item with a schema of its own to the first.
    const ExprId item = value(SchemaReader::rest_of_items(node));
    ExprId more;
    if (n == 0) {
      const ExprId others = e_.repeat(e_.sequence({pieces_.comma(), item}), rest(1, node.min_items),
                                      rest(1, node.max_items));
      more = e_.sequence({item, others});
      if (node.max_items == 0) more = Expressions::kEmpty;
      else if (node.min_items == 0) more = e_.optional(more);
    } else {
      more = e_.repeat(e_.sequence({pieces_.comma(), item}), rest(n, node.min_items),
                       rest(n, node.max_items));
    }
    for (uint64_t i = n; i-- > 0;) {
      const ExprId one = value(SchemaReader::item(node, static_cast<size_t>(i)));
      more = e_.sequence({i > 0 ? pieces_.comma() : Expressions::kEmpty, one, more});
      if (i >= node.min_items) more = e_.optional(more);
      more = e_.rule(e_.add_rule("items", more));
    }
    return e_.sequence({e_.text("["), pieces_.space(), more, pieces_.space(), e_.text("]")});
  }

  // ---- objects

  ExprId behind_key(ExprId value) { return e_.sequence({e_.text(":"), pieces_.space(), value}); }

  // Returns the text between the braces.
  ExprId object(const SchemaNode& node) {
    const std::vector<std::string> names = SchemaReader::names(node);
    std::vector<OrderedMember> members;
    size_t n_required = 0;
    for (const std::string& name : names) {
      const bool required =
          std::find(node.required.begin(), node.required.end(), name) != node.required.end();
      n_required += required;
      const ExprId one = value(SchemaReader::member(node, name));
      if (one == Expressions::kNever && required) return Expressions::kNever;
      if (one != Expressions::kNever)
        members.push_back({JsonPieces::key(name), behind_key(one), required});
    }
    const ExprId other = value(SchemaReader::rest_of_members(node));
    const ExprId extra = other == Expressions::kNever
                             ? other
                             : e_.sequence({pieces_.other_than(names), behind_key(other)});
    // A repeated name is one property but two members. So additional members do not count towards a
    // minimum.
    uint64_t min = node.min_properties <= n_required ? 0 : node.min_properties;
    if (min > 1 && extra != Expressions::kNever)
      reader_.unsupported(*node.properties_at,
                          format("found minProperties %llu, expected at most 1, or as many "
                                 "required properties, or additionalProperties false",
                                 static_cast<unsigned long long>(min)));
    if (min > node.max_properties || n_required > node.max_properties ||
        (extra == Expressions::kNever && min > members.size()))
      return Expressions::kNever;
    const bool limited =
        node.max_properties < (extra == Expressions::kNever ? members.size() : kUnlimited);
    if (limited && node.max_properties > 60000)
      reader_.unsupported(*node.properties_at,
                          "found maxProperties above 60000, expected at most 60000");
    if (members.size() > Members::kMost && (min > 0 || limited))
      reader_.unsupported(*node.properties_at,
                          format("found minProperties or maxProperties with %zu properties, "
                                 "expected at most %zu properties",
                                 members.size(), Members::kMost));
    return inside(members, extra, static_cast<uint32_t>(min),
                  limited ? static_cast<uint32_t>(node.max_properties) : kUnlimited);
  }

  ExprId inside(const std::vector<OrderedMember>& members, ExprId extra, uint32_t min,
                uint32_t max) {
    if (members.size() > Members::kMost)
      return ordered_members(members, extra, pieces_.comma(), &e_);
    Members any_order;
    for (size_t i = 0; i < members.size(); ++i) {
      any_order.one.push_back(e_.sequence({e_.text(members[i].key), members[i].value}));
      if (members[i].required) any_order.required |= uint64_t{1} << i;
    }
    any_order.extra = extra;
    any_order.separator = pieces_.comma();
    any_order.min = min;
    any_order.max = max;
    return e_.members(std::move(any_order));
  }

  ExprId braces(ExprId inside) {
    return e_.sequence({e_.text("{"), pieces_.space(), inside, pieces_.space(), e_.text("}")});
  }

  SchemaReader reader_;
  Expressions& e_;
  JsonPieces pieces_;
  std::map<AllOf, uint32_t> rules_;
  std::vector<std::pair<uint32_t, AllOf>> open_;
};

}  // namespace

class JsonSchemaParts::Impl {
 public:
  Impl(std::string_view text, Expressions* out) : root_(parse(text)), schema_(root_, out) {}
  uint32_t rule(std::string_view pointer) { return schema_.read(pointer); }

 private:
  Json root_;
  Schema schema_;
};

JsonSchemaParts::JsonSchemaParts(std::string_view text, Expressions* out)
    : impl_(std::make_unique<Impl>(text, out)) {}
JsonSchemaParts::~JsonSchemaParts() = default;
uint32_t JsonSchemaParts::rule(std::string_view pointer) { return impl_->rule(pointer); }

uint32_t read_json_schema(std::string_view text, Expressions* out) {
  return JsonSchemaParts(text, out).rule("");
}

}  // namespace riffle::grammar
