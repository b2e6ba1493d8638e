// A grammar as a pushdown automaton over bytes. Its operations form a nondeterministic matcher;
// state_cache.h makes it deterministic, state by state, as texts need the states.
//
// A rule that calls another pushes a frame and pops it at the end. A repetition with limits pushes
// a frame that counts, and an object pushes one that holds the set of its members so far. So a
// limit of 300 costs no more operations than one of 3.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "grammar/expression.h"

namespace riffle::grammar {

using OpId = uint32_t;

struct Op {
  enum Kind : uint8_t {
    BYTES,   // one byte, by edges [first, first + n), which may overlap
    SPLIT,   // any of targets [first, first + n)
    CALL,    // the rule at `target`; then `next`
    RETURN,  // ends a rule
    LOOP,    // the body at `target`, min to max times; then `next`
    AGAIN,   // ends a body of the loop `target`
    PICK,    // members [`target`] of an object; then `next`
    PICKED,  // ends a member of the object `target`
    MORE,    // ends a separator of the object `target`
  };
  Kind kind = RETURN;
  bool tail = false;      // CALL: nothing but RETURN follows, so that no frame is needed
  bool nullable = false;  // LOOP: the body may be empty
  uint32_t first = 0, n = 0;
  OpId target = 0, next = 0;
  uint32_t min = 0, max = 0;
};

struct Edge {
  uint8_t low, high;
  OpId target;
};

struct MemberOps {
  std::vector<OpId> one;
  uint64_t required = 0;
  OpId extra = 0, separator = 0;
  bool has_extra = false, counts = false;
  uint32_t min = 0, max = kUnlimited;
};

struct Automaton {
  std::vector<Op> ops;
  std::vector<Edge> edges;
  std::vector<OpId> targets;
  std::vector<MemberOps> members;
  // Bytes that no edge distinguishes have the same class.
  std::array<uint8_t, 256> class_of{};
  std::vector<uint8_t> byte_of;  // one byte of each class
  bool has_loops = false, has_nullable_loops = false;

  std::span<const Edge> edges_of(const Op& op) const {
    return std::span(edges).subspan(op.first, op.n);
  }
};

// Names for errors: of the first rule of a JSON Schema, of the rule of a regular expression.
inline constexpr const char *kSchemaRule = "#", *kRegexRule = "the regular expression";

// Compiles expressions. entries: rules to begin with; *starts gets the first operation of each.
// Throws RIFFLE_BAD_ARGUMENT if a rule is left-recursive or an entry has no finite text,
// RIFFLE_UNSUPPORTED if the automaton becomes too large.
Automaton compile(const Expressions& expressions, std::span<const uint32_t> entries,
                  std::vector<OpId>* starts);

}  // namespace riffle::grammar
