// The struct behind riffle_info: facts by name.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "engine/plan/memory_plan.h"
#include "engine/schedule/scheduler.h"
#include "riffle.h"
#include "util/settings.h"
#include "util/stats.h"

struct riffle_info {
  struct Fact {
    std::string name;
    riffle_info_kind kind = RIFFLE_INFO_NONE;
    double number = 0;
    std::string text;
  };
  std::vector<Fact> facts;

  const Fact* find(std::string_view name) const;
  void add(std::string name, std::string text) {
    facts.push_back({std::move(name), RIFFLE_INFO_TEXT, 0, std::move(text)});
  }
  void add(std::string name, const char* text) { add(std::move(name), std::string(text)); }
  template <class Number>
  requires std::is_arithmetic_v<Number>
  void add(std::string name, Number value) {
    facts.push_back({std::move(name),
                     std::is_same_v<Number, bool>       ? RIFFLE_INFO_BOOL
                     : std::is_floating_point_v<Number> ? RIFFLE_INFO_REAL
                                                        : RIFFLE_INFO_INTEGER,
                     static_cast<double>(value), ""});
  }
};

namespace riffle {

riffle_info facts_of(Model& model);
riffle_info facts_of(const MemoryPlan& plan);
riffle_info facts_of(const Stats& stats);
riffle_info facts_of(const Iteration& iteration);
riffle_info facts_of(const RequestEnd& end);
riffle_info facts_of(const SessionFile& file);
riffle_info facts_of(const StepTiming& timing);
riffle_info facts_of(const Setting& setting);

}  // namespace riffle
