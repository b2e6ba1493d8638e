// Options and facts by name (riffle.h, riffle_tools.h).
#include <catch2/catch.hpp>
#include <cmath>
#include <memory>
#include <set>
#include <string>

#include "riffle_grammar.h"
#include "riffle_steps.h"
#include "riffle_tools.h"
#include "tests/engine/test_model.h"
#include "tests/model/made_model.h"
#include "tests/select/selectors_here.h"

namespace {

using Options = std::unique_ptr<riffle_options, void (*)(riffle_options*)>;
using Model = std::unique_ptr<riffle_model, void (*)(riffle_model*)>;
using Context = std::unique_ptr<riffle_context, void (*)(riffle_context*)>;
using Info = std::unique_ptr<riffle_info, void (*)(riffle_info*)>;

Options make() { return {riffle_options_create(), riffle_options_free}; }

Model wide() {
  auto made = std::make_unique<riffle_model>();
  made->model = riffle::test::wide_model();
  riffle::materialize(*made->model);
  made->info = riffle::facts_of(*made->model);
  return {made.release(), riffle_model_free};
}

std::string value(const Options& o, const char* name) {
  const char* const text = riffle_options_get(o.get(), name);
  return text ? text : "(none)";
}

// The text of the refusal; "": it was accepted.
std::string refused(const Options& o, const char* name, const char* value) {
  const riffle_status status = riffle_options_set(o.get(), name, value);
  CHECK((status == RIFFLE_OK || status == RIFFLE_BAD_ARGUMENT));
  return status == RIFFLE_OK ? "" : riffle_options_error(o.get());
}

std::string text(const riffle_info* info, const char* name) {
  const char* const found = riffle_info_text(info, name);
  return found ? found : "(none)";
}

}  // namespace

TEST_CASE("options take the values of the table and give them back") {
  const Options o = make();
  std::set<std::string> names;
  size_t n = 0;
  for (; const riffle_info* row = riffle_setting_at(n); ++n) {
    const std::string name = text(row, "name");
    CAPTURE(name);
    CHECK(names.insert(name + " of " + text(row, "options")).second);
    const std::string standard = text(row, "default");
    CHECK(value(o, name.c_str()) == standard);
    CHECK(refused(o, name.c_str(), standard.c_str()) == "");
    CHECK(value(o, name.c_str()) == standard);
    // Words are the values; another is refused.
    const std::string words = text(row, "words"), type = text(row, "type");
    if (!words.empty()) {
      const std::string first = words.substr(0, words.find('|'));
      CHECK(refused(o, name.c_str(), first.c_str()) == "");
      CHECK(value(o, name.c_str()) == first);
    }
    if (type != "text") {
      const std::string before = value(o, name.c_str());
      CHECK(refused(o, name.c_str(), "no such value").find("expected ") != std::string::npos);
      CHECK(value(o, name.c_str()) == before);
    }
  }
  CHECK(n > (riffle::test::is_here(riffle::SelectorKind::PSA) ? 60 : 50));
  CHECK(riffle_setting_at(n) == nullptr);
}

TEST_CASE("options are written as the command's flags") {
  const Options o = make();
  CHECK(refused(o, "ctx", "32K") == "");
  CHECK(value(o, "ctx") == "32768");
  CHECK(refused(o, "gpu_mem", "12GiB") == "");
  CHECK(value(o, "gpu-mem") == "12884901888");
  CHECK(refused(o, "ignore-eos", "true") == "");
  CHECK(value(o, "ignore-eos") == "true");
  CHECK(refused(o, "selector", "auto") == "");
  CHECK(refused(o, "share", "0.1") == "");
  CHECK(value(o, "share") == "0.1");
  CHECK(refused(o, "seed", "18446744073709551615") == "");
  CHECK(value(o, "seed") == "18446744073709551615");
}

TEST_CASE("refusals name the option, the value and what is accepted") {
  const Options o = make();
  CHECK(refused(o, "selectr", "share") == "there is no option 'selectr'; the nearest is selector");
  CHECK(refused(o, "n_ctx", "1").find("the nearest is ctx") != std::string::npos);
  CHECK(refused(o, "quux", "1") == "there is no option 'quux'; riffle run --help-all lists them");
  CHECK(refused(o, "share", "-1").find("share: '-1': expected a number, ") == 0);
  CHECK(refused(o, "selector", "best").find("selector: 'best': expected one of dense, share") == 0);
  CHECK(
      refused(o, "gpu-mem", "12").find("gpu-mem: '12' is 12 bytes, expected a size such as 12G") ==
      0);
  CHECK(refused(o, "weights", "q3").find("q3") != std::string::npos);
  CHECK(refused(o, "date", "today") == "date: 'today': expected a date such as 2026-11-23");
  CHECK(refused(o, "temp", nullptr).find("value") != std::string::npos);
  CHECK(refused(o, nullptr, "1").find("name") != std::string::npos);
  CHECK(riffle_options_set(nullptr, "temp", "0") == RIFFLE_BAD_ARGUMENT);
  CHECK(riffle_options_get(o.get(), "quux") == nullptr);
  CHECK(riffle_options_get(o.get(), nullptr) == nullptr);
  CHECK(riffle_options_get(nullptr, "temp") == nullptr);
  riffle_options_set_names(o.get(), [](const char* name) -> const char* {
    return std::string_view(name) == "gpu-mem" ? "--gpu-mem" : nullptr;
  });
  CHECK(refused(o, "gpu-mem", "x").find("--gpu-mem: 'x'") == 0);
  CHECK(refused(o, "ctx", "x").find("ctx: 'x'") == 0);
  const char* const empty[] = {"a", ""};
  CHECK(riffle_options_set_stop(o.get(), empty, 2) == RIFFLE_BAD_ARGUMENT);
  CHECK(std::string(riffle_options_error(o.get())) == "stop[1] is empty, expected a text");
  CHECK(riffle_options_set_breakers(o.get(), empty, 2) == RIFFLE_BAD_ARGUMENT);
}

TEST_CASE("a copy of options is independent") {
  const Options first = make();
  CHECK(refused(first, "temp", "0.5") == "");
  CHECK(refused(first, "temp", "x") != "");
  const Options second{riffle_options_copy(first.get()), riffle_options_free};
  CHECK(std::string(riffle_options_error(second.get())).empty());
  CHECK(refused(second, "temp", "0.25") == "");
  CHECK(value(first, "temp") == "0.5");
  CHECK(value(second, "temp") == "0.25");
  const Options defaults{riffle_options_copy(nullptr), riffle_options_free};
  CHECK(value(defaults, "temp") == value(make(), "temp"));
}

TEST_CASE("facts have names, kinds and values") {
  const Model model = wide();
  const riffle_info* const info = riffle_model_info(model.get());
  REQUIRE(info);
  CHECK(riffle_info_kind_of(info, "n_layers") == RIFFLE_INFO_INTEGER);
  CHECK(riffle_info_number(info, "n_layers") > 0);
  CHECK(riffle_info_kind_of(info, "rope_theta") == RIFFLE_INFO_REAL);
  CHECK(riffle_info_kind_of(info, "tied_output") == RIFFLE_INFO_BOOL);
  CHECK(text(info, "format") == "made up");
  CHECK(std::isnan(riffle_info_number(info, "format")));
  CHECK(riffle_info_text(info, "n_layers") == nullptr);
  CHECK(riffle_info_kind_of(info, "n_layer") == RIFFLE_INFO_NONE);
  CHECK(std::isnan(riffle_info_number(info, "n_layer")));
  CHECK(riffle_info_text(info, "n_layer") == nullptr);
  std::set<std::string> names;
  for (size_t i = 0; const char* name = riffle_info_name(info, i); ++i) {
    CAPTURE(name);
    CHECK(names.insert(name).second);
    const riffle_info_kind kind = riffle_info_kind_of(info, name);
    CHECK(kind != RIFFLE_INFO_NONE);
    CHECK((riffle_info_text(info, name) != nullptr) == (kind == RIFFLE_INFO_TEXT));
  }
  CHECK(names.size() > 30);
  CHECK(riffle_info_name(info, names.size()) == nullptr);
  CHECK(riffle_info_name(nullptr, 0) == nullptr);
  CHECK(std::isnan(riffle_info_number(nullptr, "n_layers")));
  CHECK(riffle_info_text(info, nullptr) == nullptr);
  riffle_info_free(nullptr);
}

TEST_CASE("a plan is there also where memory is short") {
  const Model model = wide();
  const Options o = make();
  CHECK(refused(o, "device", "emu") == "");
  CHECK(refused(o, "ctx", "1024") == "");
  riffle_info* plan = nullptr;
  char err[512] = "";
  REQUIRE(riffle_plan_memory(model.get(), o.get(), &plan, err, sizeof err) == RIFFLE_OK);
  const Info whole(plan, riffle_info_free);
  CHECK(text(plan, "device") == "emu");
  CHECK(riffle_info_number(plan, "n_ctx") == 1024);
  const double least = riffle_info_number(plan, "min_gpu_mem");
  CHECK(least > 0);
  CHECK(refused(o, "gpu-mem", "1M") == "");
  CHECK(riffle_plan_memory(model.get(), o.get(), &plan, err, sizeof err) == RIFFLE_OUT_OF_MEMORY);
  const Info small(plan, riffle_info_free);
  REQUIRE(plan);
  CHECK(riffle_info_number(plan, "min_gpu_mem") == least);
  CHECK(std::string(err).find("gpu-mem") != std::string::npos);
}

TEST_CASE("a context changes its selection by name, and says when others can be set") {
  const Model model = wide();
  const Options o = make();
  CHECK(refused(o, "device", "cpu") == "");
  CHECK(refused(o, "ctx", "256") == "");
  CHECK(refused(o, "selector", "dense") == "");
  riffle_context* made = nullptr;
  char err[512] = "";
  REQUIRE(riffle_context_create(model.get(), o.get(), &made, err, sizeof err) == RIFFLE_OK);
  const Context context(made, riffle_context_free);
  const auto set = [&](const char* name, const char* value) {
    const riffle_status status = riffle_context_set(made, name, value);
    return status == RIFFLE_OK ? std::string() : std::string(riffle_context_error(made));
  };
  CHECK(set("selector", "share") == "");
  CHECK(set("share", "0.25") == "");
  CHECK(set("share", "1").find("share: '1': expected a number") == 0);
  CHECK(set("ctx", "512") ==
        "ctx cannot be changed in a context: set it before riffle_context_create");
  CHECK(set("weights", "q4_k").find("riffle_model_load") != std::string::npos);
  CHECK(set("temp", "0").find("each answer takes it") != std::string::npos);
  CHECK(set("max-seqs", "4").find("riffle_scheduler_create") != std::string::npos);
  CHECK(set("shara", "0.5") == "there is no option 'shara'; the nearest is share");
  // All of a selection at once, or none of it.
  CHECK(refused(o, "selector", "auto") == "");
  CHECK(riffle_context_select(made, o.get()) == RIFFLE_OK);
  CHECK(riffle_context_select(made, nullptr) == RIFFLE_OK);
}

TEST_CASE("one call answers, and reports what it cannot") {
  const Model model = wide();
  const riffle_message message = {"user", "Hello", nullptr};
  char err[512] = "";
  // Made-up weights have no tokenizer.
  CHECK(riffle_ask(model.get(), &message, 1, nullptr, nullptr, nullptr, err, sizeof err) ==
        RIFFLE_UNSUPPORTED);
  CHECK(std::string(err).find("token") != std::string::npos);
  CHECK(riffle_ask(nullptr, &message, 1, nullptr, nullptr, nullptr, err, sizeof err) ==
        RIFFLE_BAD_ARGUMENT);
}
