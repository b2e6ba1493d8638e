// Values that a message tells the user to give: typed exactly as shown, they are taken.
#include <regex>

#include "cli/args.h"
#include "tests/engine/test_model.h"
#include "tests/select/selectors_here.h"

using namespace riffle;
using namespace riffle::test;
using riffle::cli::size_of;
using riffle::cli::Unit;

namespace {

struct Planner {
  riffle_model* model = nullptr;
  Planner() {
    REQUIRE(riffle_model_load(shipped_model(), nullptr, &model, nullptr, 0) == RIFFLE_OK);
  }
  ~Planner() { riffle_model_free(model); }
  Planner(const Planner&) = delete;
  Planner& operator=(const Planner&) = delete;

  riffle_status operator()(const ContextOptions& o, std::string& text,
                           MemoryPlan* plan = nullptr) const {
    MemoryPlan own{};
    char err[1024] = "";
    const riffle_status status = plan_memory(model, &o, &own, err, sizeof err);
    text = err;
    if (plan) *plan = own;
    return status;
  }
};

// The texts in parentheses of the pattern.
std::vector<std::string> found(const std::string& text, const std::string& pattern) {
  std::smatch match;
  INFO(text);
  REQUIRE(std::regex_search(text, match, std::regex(pattern)));
  return {match.begin() + 1, match.end()};
}

template <typename F>
void for_many_options(F&& f) {
  for (const SelectorKind selector :
       here({SelectorKind::AUTO, SelectorKind::DENSE, SelectorKind::PSA, SelectorKind::TOPK,
             SelectorKind::SHARE, SelectorKind::TOKENSELECT}))
    for (const int n_ctx : {0, 1, 777, 1024, 4097, 32768, 1000003, 1 << 28})
      for (const int block_size : {16, 64})
        for (const KvKind kv : {KvKind::F16, KvKind::F32, KvKind::Q8})
          for (const int sessions : {1, 3}) {
            ContextOptions o = options();
            o.device = DeviceKind::EMU;
            o.selection.selector = selector;
            o.n_ctx = n_ctx;
            o.block_size = block_size;
            o.kv_type = kv;
            o.n_sessions = sessions;
            INFO("selector " << selector << ", " << n_ctx << " tokens, blocks of " << block_size
                             << ", KV " << kv << ", " << sessions << " sessions");
            f(o);
          }
}

}  // namespace

TEST_CASE("the least sizes in errors are taken as they are shown", "[memory][given]") {
  const Planner planned;
  const std::string pattern = R"(needs? at least ([0-9.]+[MG]) \(([0-9]+) bytes\))";
  int gigabytes = 0;
  for_many_options([&](ContextOptions o) {
    for (const auto member : {&ContextOptions::gpu_mem, &ContextOptions::host_mem}) {
      ContextOptions given = o;
      std::string text;
      given.*member = 1;
      // Without gpu_mem emu's pool is for all blocks, which this machine may not hold.
      if (given.host_mem) given.device = DeviceKind::CPU;
      REQUIRE(planned(given, text) == RIFFLE_OUT_OF_MEMORY);
      for (const std::string& shown : found(text, pattern)) {
        INFO(text << "; given " << shown);
        CHECK(riffle::cli::size_without_unit(shown, Unit::BYTES).empty());
        const auto size = size_of(shown, Unit::BYTES);
        REQUIRE(size);
        given.*member = *size;
        std::string again;
        const riffle_status status = planned(given, again);
        INFO(again);
        CHECK(status == RIFFLE_OK);
        gigabytes += shown.ends_with("G");
      }
    }
  });
  CHECK(gigabytes > 0);
}

TEST_CASE("the smallest gpu_mem of a plan is taken as info prints it", "[memory][given]") {
  const Planner planned;
  for_many_options([&](ContextOptions o) {
    std::string text;
    MemoryPlan plan{};
    planned(o, text, &plan);  // also of a plan that does not fit
    o.gpu_mem = size_of(riffle::cli::least_size(plan.min_gpu_mem), Unit::BYTES).value();
    o.n_ctx = plan.n_ctx;
    const riffle_status status = planned(o, text);
    INFO(text);
    CHECK(status == RIFFLE_OK);
  });
}

TEST_CASE("the fewest slots in an error are enough", "[memory][given]") {
  const Planner planned;
  for_many_options([&](ContextOptions o) {
    std::string text;
    o.slots = 1;
    REQUIRE(planned(o, text) == RIFFLE_NO_SLOT);
    o.slots = std::stoll(found(text, "needs at least ([0-9]+)")[0]);
    const riffle_status status = planned(o, text);
    INFO(text);
    CHECK(status == RIFFLE_OK);
  });
}

TEST_CASE("bounds and examples of a setting's error are taken as they are shown", "[given]") {
  riffle_options options;
  for (const Setting& s : settings()) {
    if (*s.words || s.type == MemberType::BOOL || s.type == MemberType::TEXT) continue;
    const std::string text = expected_of(s);
    const std::regex number(R"((more than |less than |above )?(-?[0-9.]*[0-9][KMG]?))");
    for (std::sregex_iterator at(text.begin(), text.end(), number), end; at != end; ++at) {
      if ((*at)[1].matched) continue;  // not a value to give
      INFO(s.name << ": " << text << ": " << (*at)[2]);
      CHECK(riffle_options_set(&options, s.name, std::string((*at)[2]).c_str()) == RIFFLE_OK);
    }
  }
}
