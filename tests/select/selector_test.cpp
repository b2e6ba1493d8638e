// Selectors against brute force in float64, on synthetic keys: properties 3 to 5 and 8
// of src/select/README.md.
#include "select/selector.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <numeric>
#include <random>
#include <set>

#include "api/options.h"
#include "tests/option_text.h"
#include "tests/select/key_scene.h"
#include "tests/select/selectors_here.h"
#include "util/error.h"
#include "util/settings.h"

using namespace riffle;
using namespace riffle::test;

TEST_CASE("dense reads every block in order", "[select]") {
  const KeyScene scene(4, 1000, 1, {});
  CHECK(read_blocks(*make_selector(settings(SelectorKind::DENSE)), scene) == scene.all());
}

TEST_CASE("selection settings out of range are refused by name", "[select]") {
  const auto refused = [](auto&& change, const char* field) {
    check_refused(SelectorKind::SHARE, change, field);
  };
  refused([](auto& s) { s.selector = static_cast<SelectorKind>(99); }, "selector");
  refused([](auto& s) { s.sink_blocks = -1; }, "sink-blocks");
  refused([](auto& s) { s.recent_blocks = -1; }, "recent-blocks");
  refused([](auto& s) { s.dense_layers = -1; }, "dense-layers");
  refused([](auto& s) { s.share = 1; }, "share");
  refused([](auto& s) { s.share = -0.1f; }, "share");
}

// Tries values on either side of the ends of each range in the table: the library and the C
// interface refuse the same values.
TEST_CASE(
    "each setting is taken up to the ends of its range, and refused beyond by name, value and "
    "range",
    "[select]") {
  int fields = 0;
  std::set<size_t> offsets;
  for (const Setting& f : riffle::settings()) {
    if (f.options != OptionsKind::SELECTION) continue;
    ++fields;
    offsets.insert(f.offset);
    INFO(f.id << ": " << f.range);
    const bool whole = f.type == MemberType::INT32;
    const auto check = [&](double v) {
      Selection s;
      char* at = reinterpret_cast<char*>(&s) + f.offset;
      const auto i = static_cast<int32_t>(v);
      const auto x = static_cast<float>(v);
      std::memcpy(at, whole ? static_cast<const void*>(&i) : &x, 4);
      if (v == v) CHECK(setting_value(f, &s) == (whole ? double(i) : double(x)));
      try {
        check_selection(s);
      } catch (const Error& e) {
        return std::string(e.what());
      }
      return std::string();
    };
    const auto next = [&](double v, int way) {
      return whole ? v + way : double(std::nextafter(static_cast<float>(v), way * 3e38f));
    };
    const auto refused = [&](double v) {
      const std::string text = check(v);
      CHECK(text.find(std::string(f.name) + " is ") == 0);
      CHECK(text.find(std::string("expected ") + f.range) != std::string::npos);
      Selection s;
      const double held = setting_value(f, &s);
      const std::string given = whole ? format("%.0f", v) : format("%.9g", v);
      CHECK_THROWS_AS(set_setting_text(f, &s, given), Error);
      CHECK(setting_value(f, &s) == held);
    };
    CHECK(f.low < f.high);
    refused(next(f.low, -1));
    refused(next(f.high, 1));
    if (f.above_low) refused(f.low);
    CHECK(check(f.above_low ? next(f.low, 1) : f.low).empty());
    if (f.below_high) refused(f.high);
    CHECK(check(f.below_high || !whole ? next(f.high, -1) : f.high).empty());
    if (!whole) refused(std::nan(""));
    CHECK(f.selectors != 0);
    for (const SelectorKind twilight : here({SelectorKind::TWILIGHT}))
      CHECK((f.bases != 0) == ((f.selectors >> int(twilight) & 1) != 0));
  }
  // Every member is in the table, each at its own offset: all members have 4 bytes. In the core's
  // table, those of papers' selectors are missing.
  if (is_here(SelectorKind::PSA)) CHECK(sizeof(Selection) == 4 * size_t(fields));
  else CHECK(sizeof(Selection) > 4 * size_t(fields));
  CHECK(offsets.size() == size_t(fields));
}

TEST_CASE("defaults of all options lie in the ranges of the table, and names are unique",
          "[select]") {
  const riffle_options defaults;
  std::set<std::string> ids, names, flags;
  for (const Setting& f : riffle::settings()) {
    INFO(f.id);
    riffle_options other;
    const std::string text = setting_text(f, defaults.part(f.options));
    if (f.type != MemberType::TEXT)
      CHECK(setting_allows(f, setting_value(f, defaults.part(f.options))));
    set_setting_text(f, other.part(f.options), text);
    CHECK(setting_text(f, other.part(f.options)) == text);
    CHECK(ids.insert(f.id).second);
    CHECK(names.insert(f.name).second);
    CHECK(setting_named(f.name) == &f);
    if (*f.help) CHECK(flags.insert(f.flag).second);
  }
  const Selection selection;
  CHECK(selection.epsilon == 0.9f);
  CHECK(selection.share == 0.002f);
  CHECK(ContextOptions().block_size == 16);
  CHECK(SchedulerOptions().working_set_steps == 0);
}

TEST_CASE("a setting out of its range is shown with all its digits", "[select]") {
  SchedulerOptions o;
  o.max_inject_tokens = (int64_t{1} << 53) + 1;
  std::string text;
  try {
    check_settings(OptionsKind::SCHEDULER, &o);
  } catch (const Error& e) {
    text = e.what();
  }
  CHECK(text ==
        "scheduler options: max-inject-tokens is 9007199254740993, expected 0 to 1099511627776");
}

TEST_CASE("texts call settings as the caller does", "[select]") {
  const auto flag = [](const char* id) -> const char* {
    return std::string(id) == "gpu-mem" ? "--gpu-mem" : nullptr;
  };
  CHECK(name_settings("`gpu_mem` is 1, and `slots` 2", flag) == "--gpu-mem is 1, and slots 2");
  CHECK(name_settings("`selection.share`", nullptr) == "share");
  CHECK(name_settings("a ` in `file` of `n_ctx", flag) == "a ` in `file` of `n_ctx");
  CHECK(name_settings("`file` `gpu_mem`", flag) == "`file` --gpu-mem");
  const Error e(RIFFLE_BAD_ARGUMENT, "`gpu_mem` is short", Error::Text::NAMES_SETTINGS);
  CHECK(std::string(e.what()) == "gpu-mem is short");
  CHECK(e.text(flag) == "--gpu-mem is short");
  const std::string file = "a`slots`.gguf";
  try {
    fail(RIFFLE_IO, "%s: not there", file.c_str());
  } catch (const Error& plain) {
    CHECK(plain.text(flag) == "a`slots`.gguf: not there");
    CHECK(std::string(plain.what()) == "a`slots`.gguf: not there");
  }
}

TEST_CASE("settings that the table keeps from a selector change nothing of its plan", "[select]") {
  const KeyScene scene(4, 900, 3, {});
  for (const SelectorKind kind :
       here({SelectorKind::DENSE, SelectorKind::PSA, SelectorKind::TOPK})) {
    Selection s = settings(kind);
    const std::vector<int> want = read_blocks(*make_selector(s), scene);
    for (const Setting& f : riffle::settings()) {
      if (f.options != OptionsKind::SELECTION) continue;
      const bool whole = f.type == MemberType::INT32;
      if (f.selectors >> int(kind) & 1 || f.offset == offsetof(Selection, digest)) continue;
      INFO("selector " << kind << ", " << f.id);
      Selection other = s;
      char* at = reinterpret_cast<char*>(&other) + f.offset;
      const double held = setting_value(f, &s);
      const double v = held == f.low ? f.low + 1 : (f.low + held) / 2;
      const auto i = static_cast<int32_t>(whole ? std::max(f.low, std::floor(v)) : 0);
      const auto x = static_cast<float>(v);
      std::memcpy(at, whole ? static_cast<const void*>(&i) : &x, 4);
      CHECK(read_blocks(*make_selector(other), scene) == want);
    }
  }
}
