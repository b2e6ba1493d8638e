// Answers of models that think, parted as they come.
#include "cli/reasoning.h"

#include <catch2/catch.hpp>

using namespace riffle::cli;

namespace {

using Tokens = std::vector<std::pair<int32_t, std::string>>;

ReasoningSplit::Parts parted(const Tokens& tokens, bool in_reasoning,
                             ReasoningMarks marks = {"<think>", "</think>"}) {
  ReasoningSplit split(std::move(marks), in_reasoning);
  ReasoningSplit::Parts all;
  const auto add = [&](const ReasoningSplit::Parts& parts) {
    all.reasoning += parts.reasoning;
    all.answer += parts.answer;
  };
  for (const auto& [token, text] : tokens) add(split.put(token, text));
  add(split.finish());
  return all;
}

// The same for the text as a whole, byte by byte, and in threes.
void check(const std::string& text, bool in_reasoning, const std::string& reasoning,
           const std::string& answer) {
  INFO(text);
  for (const size_t size : {text.size() + 1, size_t{1}, size_t{3}}) {
    Tokens tokens;
    for (size_t at = 0; at < text.size(); at += size) tokens.push_back({5, text.substr(at, size)});
    const ReasoningSplit::Parts parts = parted(tokens, in_reasoning);
    CHECK(parts.reasoning == reasoning);
    CHECK(parts.answer == answer);
  }
}

}  // namespace

TEST_CASE("reasoning between marks is kept apart from the answer", "[cli]") {
  check("<think>\nwhy, because\n</think>\n\nYes.\n", false, "why, because", "Yes.\n");
  check("why\n</think>\n\nYes.", true, "why", "Yes.");
  check("<think>why</think>Yes.", true, "why", "Yes.");  // the mark comes again
  check("\n <think></think>Yes", false, "", "Yes");
  check("<think>\n\n</think>\n\nYes <think>no</think>", false, "", "Yes <think>no</think>");
  check("Yes <think>no</think>", false, "", "Yes <think>no</think>");
  check("<thin", false, "", "<thin");
  check("<thing>", false, "", "<thing>");
  check("<think>cut off  ", false, "cut off", "");
  check("a </thin b </think", true, "a </thin b </think", "");
  check("a < b\n\nc</think>d", true, "a < b\n\nc", "d");
  check("", true, "", "");
  check("  ", false, "", "  ");
}

TEST_CASE("marks that are control tokens are known by their ids", "[cli]") {
  const ReasoningMarks marks{"[THINK]", "[/THINK]", 8, 9};
  const auto both = [&](const Tokens& tokens, bool in_reasoning) {
    const ReasoningSplit::Parts parts = parted(tokens, in_reasoning, marks);
    return parts.reasoning + "|" + parts.answer;
  };
  CHECK(both({{8, ""}, {5, "why "}, {9, ""}, {5, " Yes"}}, false) == "why|Yes");
  CHECK(both({{5, "why"}, {9, ""}, {5, "Yes"}}, true) == "why|Yes");
  CHECK(both({{5, "Yes"}, {8, ""}, {5, "x"}}, false) == "|Yesx");
  CHECK(both({{8, ""}, {5, "why"}}, false) == "why|");
}

TEST_CASE("a model without marks has no reasoning", "[cli]") {
  const ReasoningSplit::Parts parts = parted({{5, "<think>a</think>b"}}, false, {});
  CHECK(parts.reasoning.empty());
  CHECK(parts.answer == "<think>a</think>b");
}
