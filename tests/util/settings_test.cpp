// The table of settings: its rows fit the structs, and its texts fit the rows.
#include "util/settings.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <set>
#include <string>

#include "tests/select/selectors_here.h"
#include "util/error.h"

using namespace riffle;

TEST_CASE("each row of the settings has a name, an id and a range that holds its default") {
  const ModelOptions model;
  const ContextOptions context;
  const SchedulerOptions scheduler;
  const GenerateOptions answer;
  const ConversationOptions chat;
  const QuantizeOptions quantize;
  const auto part = [&](OptionsKind kind) -> const void* {
    switch (kind) {
      case OptionsKind::MODEL: return &model;
      case OptionsKind::CONTEXT: return &context;
      case OptionsKind::SELECTION: return &context.selection;
      case OptionsKind::SCHEDULER: return &scheduler;
      case OptionsKind::SAMPLING: return &answer.sampling;
      case OptionsKind::ANSWER: return &answer;
      case OptionsKind::CHAT: return &chat;
      case OptionsKind::QUANTIZE: break;
    }
    return &quantize;
  };
  std::set<std::string> ids;
  for (const Setting& s : settings()) {
    CAPTURE(s.id);
    CHECK(ids.insert(s.id).second);
    CHECK(*s.name);
    CHECK(std::string(s.name).find('_') == std::string::npos);
    CHECK(find_setting(s.id) == &s);
    CHECK(*expected_of(s).c_str());
    if (s.type == MemberType::TEXT) continue;
    CHECK(setting_allows(s, setting_value(s, part(s.options))));
    CHECK_FALSE(setting_allows(s, std::nan("")));
  }
  CHECK(ids.size() > (test::is_here(SelectorKind::PSA) ? 60 : 50));
}

TEST_CASE("a setting's text goes in and comes out") {
  Selection selection;
  const Setting& share = *setting_named("share");
  set_setting_text(share, &selection, "0.25");
  CHECK(selection.share == 0.25f);
  CHECK(setting_text(share, &selection) == "0.25");
  const Setting& selector = *setting_named("selector");
  set_setting_text(selector, &selection, "share");
  CHECK(selection.selector == SelectorKind::SHARE);
  CHECK(setting_text(selector, &selection) == "share");
  CHECK_THROWS_AS(set_setting_text(share, &selection, "x"), Error);
  CHECK_THROWS_AS(set_setting_text(selector, &selection, "SHARE "), Error);
  CHECK(selection.share == 0.25f);
  CHECK(selection.selector == SelectorKind::SHARE);
}

TEST_CASE("the word of a selector stands for its number") {
  const Setting& selector = *setting_named("selector");
  for (const SelectorKind kind : test::all_here()) {
    if (kind == SelectorKind::AUTO) continue;  // no selector of its own
    Selection named, read;
    named.selector = kind;
    set_setting_text(selector, &read, make_selector(named)->name());
    CHECK(read.selector == kind);
  }
}

TEST_CASE("settings are found by name, and near ones are offered") {
  CHECK(setting_named("gpu-mem") == find_setting("gpu_mem"));
  CHECK(setting_named("gpu_mem") == find_setting("gpu_mem"));
  CHECK(setting_named("gpu") == nullptr);
  CHECK(nearest_setting("selectr") == "selector");
  CHECK(nearest_setting("n_ctx") == "ctx");
  CHECK(nearest_setting("quux") == "");
}

TEST_CASE("texts of errors name settings as the caller does") {
  CHECK(name_settings("`gpu_mem` is 1 MiB", nullptr) == "gpu-mem is 1 MiB");
  const auto names = [](const char* name) -> const char* {
    return std::string(name) == "gpu-mem" ? "--gpu-mem" : nullptr;
  };
  CHECK(name_settings("`gpu_mem`, `n_ctx` and `other`", names) == "--gpu-mem, ctx and `other`");
}
