// Answers of models that think, parted as they come.
#include "requests/reasoning.h"

#include <catch2/catch.hpp>

#include "api/api_handles.h"
#include "tests/model/test_files.h"

using namespace riffle::requests;

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

TEST_CASE("reasoning between marks is kept apart from the answer", "[requests]") {
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

TEST_CASE("marks that are control tokens are known by their ids", "[requests]") {
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

TEST_CASE("messages with headers: every channel but the answer's is reasoning", "[requests]") {
  // 1 <|start|>, 2 <|channel|>, 3 <|message|>, 4 <|end|>, 6 <|constrain|>; 5 is text.
  ReasoningMarks marks{"<|channel|>analysis<|message|>",
                       "<|end|><|start|>assistant<|channel|>final<|message|>"};
  marks.header_tokens = {4, 1, 2};
  marks.message_token = 3;
  marks.answer_channel = "final";
  const auto both = [&](const Tokens& tokens) {
    const ReasoningSplit::Parts parts = parted(tokens, false, marks);
    return parts.reasoning + "|" + parts.answer;
  };
  const Tokens analysis = {{2, ""}, {5, "analysis"}, {3, ""}, {5, "why, "}, {5, "because "}};
  const Tokens end = {{4, ""}, {1, ""}, {5, "assistant"}, {2, ""}};
  const Tokens final = {{5, "fi"}, {5, "nal"}, {3, ""}, {5, " Yes"}, {5, ".\n"}};
  const auto joined = [](std::initializer_list<Tokens> list) {
    Tokens all;
    for (const Tokens& part : list) all.insert(all.end(), part.begin(), part.end());
    return all;
  };
  CHECK(both(joined({analysis, end, final})) == "why, because|Yes.\n");
  CHECK(both(joined({{{2, ""}}, final})) == "|Yes.\n");
  CHECK(both(joined({analysis, end, {{5, "commentary"}, {3, ""}, {5, "so"}}, end, final})) ==
        "why, because\n\nso|Yes.\n");
  CHECK(both(joined({analysis, end, {{5, "final "}, {6, ""}, {5, "json"}, {3, ""}, {5, "{}"}}})) ==
        "why, because|{}");
  // Cut off in the reasoning, in a header, before anything.
  CHECK(both(analysis) == "why, because|");
  CHECK(both(joined({analysis, {{4, ""}, {1, ""}, {5, "assis"}}})) == "why, because|");
  CHECK(both({}) == "|");
  CHECK(both({{2, ""}}) == "|");
  // A model that writes no headers answers at once.
  CHECK(both({{5, "Yes"}, {5, ", final"}}) == "|Yes, final");
}

TEST_CASE("a header that the prompt has begun names the recipient of the first message",
          "[requests]") {
  // 1 <|start|>, 3 <|message|>, 4 <|eom|>; 5 is text.
  ReasoningMarks marks{" to=self<|message|>", "<|eom|><|start|>assistant to=user<|message|>"};
  marks.header_tokens = {4, 1};
  marks.message_token = 3;
  marks.answer_channel = "assistant to=user";
  marks.reasoning_recipient = " to=self";
  const auto both = [&](const Tokens& tokens, bool in_reasoning = false) {
    const ReasoningSplit::Parts parts = parted(tokens, in_reasoning, marks);
    return parts.reasoning + "|" + parts.answer;
  };
  const auto joined = [](std::initializer_list<Tokens> list) {
    Tokens all;
    for (const Tokens& part : list) all.insert(all.end(), part.begin(), part.end());
    return all;
  };
  const Tokens self = {{5, " to"}, {5, "=self"}, {3, ""}},
               user = {{5, " to"}, {5, "=user"}, {3, ""}}, why = {{5, "why, "}, {5, "because "}},
               next = {{4, ""}, {1, ""}, {5, "assistant"}}, yes = {{5, "Yes"}, {5, ".\n"}};
  CHECK(both(joined({self, why, next, user, yes})) == "why, because|Yes.\n");
  CHECK(both(joined({self, why, next, self, {{5, "so"}}, next, user, yes})) ==
        "why, because\n\nso|Yes.\n");
  CHECK(both(joined({self, why, next, {{3, ""}}, yes})) == "why, because|Yes.\n");
  CHECK(both(joined({user, yes})) == "|Yes.\n");
  CHECK(both(joined({{{3, ""}}, yes})) == "|Yes.\n");
  // The prompt has begun the reasoning, or the answer's message.
  CHECK(both(joined({why, next, user, yes}), true) == "why, because|Yes.\n");
  CHECK(both(yes) == "|Yes.\n");
  CHECK(both({{5, " to"}, {5, " be"}}) == "| to be");
  CHECK(both({{5, " to=x y"}, {5, "z"}}) == "| to=x yz");
  // Cut off in the reasoning, in a header, before anything.
  CHECK(both(joined({self, why})) == "why, because|");
  CHECK(both(joined({self, why, next})) == "why, because|");
  CHECK(both(self) == "|");
  CHECK(both({}) == "|");
}

// A tiny model with this template, whose last four pieces, which are not used, are these control
// tokens.
struct ControlModel {
  riffle_model* model = nullptr;
  int32_t first = 0;  // first control token
  ControlModel(const char* chat_template, const std::vector<const char*>& controls) {
    using namespace riffle;
    using namespace riffle::test;
    const TempDir dir;
    TinyModel tiny = tiny_model(1);
    tiny.chat_template = chat_template;
    first = static_cast<int32_t>(tiny.pieces.size() - controls.size());
    for (size_t i = 0; i < controls.size(); i++)
      tiny.pieces[static_cast<size_t>(first) + i] = {controls[i], 0, VocabPiece::CONTROL};
    const std::string path = dir / "controls.gguf";
    write_file(path, tiny_gguf(tiny, DType::F32));
    REQUIRE(riffle_model_load(path.c_str(), nullptr, &model, nullptr, 0) == RIFFLE_OK);
  }
  ~ControlModel() { riffle_model_free(model); }
  ControlModel(const ControlModel&) = delete;
  ControlModel& operator=(const ControlModel&) = delete;
};

TEST_CASE("recipients are found in the model's vocabulary", "[requests]") {
  const ControlModel m(
      "{% for m in messages %}{% if m.reasoning_content %}"
      "{{ '<|start|>assistant to=self<|message|>' + m.reasoning_content + '<|eom|>' }}{% endif %}"
      "<|start|>{{ m.role }}{{ ' to=user' if m.role == 'assistant' }}<|message|>{{ m.content }}"
      "<|eot|>{% endfor %}<|start|>assistant",
      {"<|start|>", "<|message|>", "<|eom|>", "<|eot|>"});
  const ReasoningMarks marks = reasoning_marks(*m.model->model);
  CHECK(riffle_is_end_token(m.model, m.first + 3));
  CHECK_FALSE(riffle_is_end_token(m.model, m.first + 2));  // it ends the reasoning
  CHECK(marks.message_token == m.first + 1);
  CHECK(marks.header_tokens == std::vector<int32_t>{m.first + 2, m.first});
  CHECK(marks.answer_channel == "assistant to=user");
  CHECK(marks.reasoning_recipient == " to=self");
}

TEST_CASE("headers are found in the model's vocabulary", "[requests]") {
  const ControlModel m(
      "{% for m in messages %}<|start|>{{ m.role }}<|channel|>final<|message|>{{ m.content "
      "}}<|end|>"
      "{% endfor %}<|start|>assistant",
      {"<|start|>", "<|channel|>", "<|message|>", "<|end|>"});
  const ReasoningMarks marks = reasoning_marks(*m.model->model);
  CHECK(marks.message_token == m.first + 2);
  CHECK(marks.header_tokens == std::vector<int32_t>{m.first + 3, m.first, m.first + 1});
  CHECK(marks.answer_channel == "final");
  CHECK(marks.begin_token == -1);
  CHECK(marks.end_token == -1);
}

TEST_CASE("a model without marks has no reasoning", "[requests]") {
  const ReasoningSplit::Parts parts = parted({{5, "<think>a</think>b"}}, false, {});
  CHECK(parts.reasoning.empty());
  CHECK(parts.answer == "<think>a</think>b");
}
