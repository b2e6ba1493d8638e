// Chat templates through the C interface: by content, by name, and the token that ends a turn.
#include <catch2/catch.hpp>

#include "riffle.h"
#include "tests/given_options.h"
#include "tests/model/test_files.h"

using namespace riffle;
using namespace riffle::test;

namespace {

const char* const kChatML =
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% "
    "endfor %}"
    "{{ '<|im_start|>assistant\\n' }}";

struct Loaded {
  riffle_model* model = nullptr;
  char err[1024] = "";
  riffle_status status;
  Loaded(const std::string& path, const char* chat_template) {
    riffle_options options;
    options.model.chat_template = chat_template ? chat_template : "";
    status = riffle_model_load(path.c_str(), &options, &model, err, sizeof err);
  }
  ~Loaded() { riffle_model_free(model); }
  Loaded(const Loaded&) = delete;
  Loaded& operator=(const Loaded&) = delete;

  std::string name() const { return model_text(model, "chat_template_name"); }
  std::vector<int32_t> chat(riffle_status expected = RIFFLE_OK) {
    const riffle_message message{"user", "the", nullptr};
    std::vector<int32_t> ids(256);
    size_t n = 0;
    const riffle_status got =
        riffle_chat_prompt(model, &message, 1, nullptr, ids.data(), ids.size(), &n, nullptr);
    INFO(riffle_model_error(model));
    REQUIRE(got == expected);
    ids.resize(got == RIFFLE_OK ? n : 0);
    return ids;
  }
  // Greedy tokens after <s>; the result says how it ended.
  std::vector<int32_t> generate(bool ignore_eos, riffle_result* result) {
    ContextOptions options;
    options.device = DeviceKind::CPU;
    options.n_threads = 1;
    riffle_context* context = nullptr;
    REQUIRE(context_create(model, &options, &context, err, sizeof err) == RIFFLE_OK);
    riffle_session* session = nullptr;
    REQUIRE(riffle_session_create(context, &session) == RIFFLE_OK);
    const int32_t bos = 1;
    REQUIRE(riffle_prefill(session, &bos, 1, nullptr, nullptr) == RIFFLE_OK);
    GenerateOptions g;
    g.sampling.temperature = 0;
    g.max_tokens = 3;
    g.ignore_eos = ignore_eos;
    std::vector<int32_t> out;
    const auto keep = [](void* user, size_t, const riffle_token* token) {
      if (token->id >= 0) static_cast<std::vector<int32_t>*>(user)->push_back(token->id);
      return true;
    };
    REQUIRE(test::generate(session, &g, keep, &out, result) == RIFFLE_OK);
    riffle_session_free(session);
    riffle_context_free(context);
    return out;
  }
};

}  // namespace

TEST_CASE("a model's chat template is its own or the one that is set by name", "[chat]") {
  TempDir dir;
  const std::string path = dir.path() + "/model.gguf";
  TinyModel tiny = tiny_model(1);
  write_file(path, tiny_gguf(tiny, DType::F32));
  {
    Loaded own(path, nullptr);
    REQUIRE(own.status == RIFFLE_OK);
    CHECK(own.name() == "own");
    CHECK(own.chat()[0] == 1);
  }
  tiny.chat_template = "{{ messages | nonsense }}";
  write_file(path, tiny_gguf(tiny, DType::F32));
  {
    Loaded own(path, nullptr);
    REQUIRE(own.status == RIFFLE_OK);
    CHECK(own.name().empty());
    own.chat(RIFFLE_UNSUPPORTED);
    const std::string said = riffle_model_error(own.model);
    CHECK(said.find("line 1: found the filter 'nonsense'") != std::string::npos);
    INFO(said);
    CHECK(said.find("--chat-template") != std::string::npos);
    size_t names = 0, lacking = 0;
    for (; const char* name = riffle_chat_template_name(names); names++) {
      CHECK(said.find(name) != std::string::npos);
      Loaded set(path, name);
      if (set.status == RIFFLE_OK) {
        CHECK(set.name() == name);
        continue;
      }
      ++lacking;
      CHECK(set.status == RIFFLE_UNSUPPORTED);
      const std::string lacks = set.err;
      CHECK(lacks.starts_with(std::string("chat-template: found ") + name +
                              ", which needs the token <|"));
      CHECK(lacks.find("expected a template whose tokens the model has: llama2, inst, ") !=
            std::string::npos);
    }
    CHECK(names >= 10);
    CHECK((lacking > 0 && lacking < names));
    CHECK(riffle_chat_template_name(names + 1000) == nullptr);
    Loaded set(path, "inst");
    CHECK(set.chat()[0] == 1);
    Loaded bad(path, "llama9");
    CHECK(bad.status == RIFFLE_BAD_ARGUMENT);
    CHECK(bad.model == nullptr);
    CHECK(std::string(bad.err).find("llama3.1") != std::string::npos);
  }
  tiny.chat_template = "";
  write_file(path, tiny_gguf(tiny, DType::F32));
  Loaded none(path, nullptr);
  REQUIRE(none.status == RIFFLE_OK);
  none.chat(RIFFLE_UNSUPPORTED);
  CHECK(std::string(riffle_model_error(none.model)).find("carries no chat template") !=
        std::string::npos);
}

TEST_CASE("the token that ends a turn in the chat format ends answers", "[chat]") {
  TempDir dir;
  const std::string path = dir.path() + "/model.gguf";
  // A model whose likeliest token is one that can become another piece.
  for (uint32_t seed = 1;; seed++) {
    REQUIRE(seed < 100);
    TinyModel tiny = tiny_model(seed);
    tiny.chat_template = kChatML;
    const size_t last = tiny.pieces.size() - 1;
    REQUIRE(tiny.pieces[last].type == VocabPiece::UNUSED);
    tiny.pieces[last] = {"<|im_start|>", 0, VocabPiece::CONTROL};
    write_file(path, tiny_gguf(tiny, DType::F32));
    int32_t first;
    {
      Loaded plain(path, nullptr);
      REQUIRE(plain.status == RIFFLE_OK);
      CHECK(plain.name() == "own");
      plain.chat();  // there is no <|im_end|>: it is text
      riffle_result result{};
      const std::vector<int32_t> tokens = plain.generate(false, &result);
      if (tokens.size() != 3) continue;
      first = tokens[0];
    }
    if (tiny.pieces[static_cast<size_t>(first)].type != VocabPiece::UNUSED) continue;
    tiny.pieces[static_cast<size_t>(first)] = {"<|im_end|>", 0, VocabPiece::CONTROL};
    write_file(path, tiny_gguf(tiny, DType::F32));
    Loaded chatml(path, nullptr);
    REQUIRE(chatml.status == RIFFLE_OK);
    const std::vector<int32_t> ids = chatml.chat();
    CHECK(std::count(ids.begin(), ids.end(), first) == 1);
    riffle_result result{};
    CHECK(chatml.generate(false, &result).empty());
    CHECK(result.finish == RIFFLE_FINISH_STOP);
    CHECK(result.n_tokens == 1);
    CHECK(chatml.generate(true, &result).size() == 3);
    CHECK(result.finish == RIFFLE_FINISH_LENGTH);
    Loaded inst(path, "inst");  // another format: a token so spelled ends answers all the same
    REQUIRE(inst.status == RIFFLE_OK);
    CHECK(inst.generate(false, &result).empty());
    // gpt-oss: the token ends a message of reasoning, and the answer follows.
    tiny.chat_template =
        "{% for m in messages %}<|start|>{{ m.role }}<|channel|>final<|message|>{{ m.content }}"
        "<|end|>{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}";
    tiny.pieces[static_cast<size_t>(first)].text = "<|end|>";
    write_file(path, tiny_gguf(tiny, DType::F32));
    Loaded channels(path, nullptr);
    REQUIRE(channels.status == RIFFLE_OK);
    CHECK(channels.generate(false, &result).size() == 3);
    return;
  }
}

TEST_CASE("options of a conversation: thinking, reasoning, the date", "[chat]") {
  TempDir dir;
  const std::string path = dir.path() + "/model.gguf";
  TinyModel tiny = tiny_model(1);
  tiny.chat_template =
      "{% for m in messages %}{{ m.reasoning_content | default('-') }}{{ m.content }}{% endfor %}"
      "{% if enable_thinking is defined %}{{ '<think>' if enable_thinking else '</think>' }}"
      "{% endif %}{{ strftime_now('%Y') }}";
  write_file(path, tiny_gguf(tiny, DType::F32));
  Loaded own(path, nullptr);
  REQUIRE(own.status == RIFFLE_OK);
  CHECK(model_number(own.model, "chat_thinking"));
  CHECK(model_text(own.model, "reasoning_begin") == "<think>");
  CHECK(model_text(own.model, "reasoning_end") == "</think>");
  riffle_message messages[] = {
      {"user", "a", nullptr}, {"assistant", "b", nullptr}, {"user", "c", nullptr}};
  riffle_options options;
  const auto set = [&](const char* name, const char* value) {
    return riffle_options_set(&options, name, value);
  };
  bool inside = true;
  const auto text = [&] {
    std::vector<int32_t> ids(256);
    size_t n = 0;
    REQUIRE(riffle_chat_prompt(own.model, messages, 3, &options, ids.data(), ids.size(), &n,
                               &inside) == RIFFLE_OK);
    std::string out(1024, 0);
    size_t length = 0;
    REQUIRE(riffle_detokenize(own.model, ids.data(), n, out.data(), out.size(), &length) ==
            RIFFLE_OK);
    out.resize(length);
    return out;
  };
  CHECK(set("date", "2026-11-23") == RIFFLE_OK);
  CHECK(text() == "-a-b-c2026");
  CHECK_FALSE(inside);
  messages[1].reasoning = "r";
  CHECK(set("thinking", "on") == RIFFLE_OK);
  CHECK(text() == "-arb-c<think>2026");
  CHECK(inside);
  CHECK(set("thinking", "off") == RIFFLE_OK);
  CHECK(text() == "-arb-c</think>2026");
  CHECK_FALSE(inside);
  CHECK_FALSE(model_number(own.model, "chat_effort"));
  CHECK(set("reasoning-effort", "high") == RIFFLE_OK);
  CHECK(text() == "-arb-c</think>2026");
  const auto refused = [&](const char* name, const char* value, const char* says) {
    CHECK(set(name, value) == RIFFLE_BAD_ARGUMENT);
    INFO(riffle_options_error(&options));
    CHECK(std::string(riffle_options_error(&options)).find(says) != std::string::npos);
  };
  refused("reasoning-effort", "<|end|>",
          "reasoning-effort: '<|end|>': expected one of low, medium, high");
  refused("date", "today", "'today': expected a date such as 2026-11-23");
  refused("thinking", "7", "expected one of default, on, off");
  CHECK(set("date", "") == RIFFLE_OK);
  size_t n = 0;
  CHECK(riffle_chat_prompt(own.model, messages, 3, &options, nullptr, 0, &n, nullptr) ==
        RIFFLE_UNSUPPORTED);
  CHECK(std::string(riffle_model_error(own.model)).find("today's date") != std::string::npos);
}
