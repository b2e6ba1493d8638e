// Times masks: the tokens that a grammar allows, found on one thread.
//
//   make grammar_bench && build/grammar_bench VOCABULARY [--schema FILE | --gbnf FILE] [--steps N]
//
// VOCABULARY is a model file or folder, or a .tiktoken file (a token in base64 and its id a line).
// Without a grammar, those of the table below are timed. Each answer takes `steps` tokens, drawn
// evenly from those that are allowed, and begins again where it ends. The first mask of each state
// is found (cold); the same answer again finds it in the cache (again).
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "chat/chat_template.h"
#include "grammar/constraint.h"
#include "grammar/model_grammar.h"
#include "import/load_model.h"
#include "kernels/common/splitmix64.h"
#include "text/tokenizer.h"
#include "util/error.h"
#include "util/file.h"

using namespace riffle;
using namespace riffle::grammar;

namespace {

using Clock = std::chrono::steady_clock;
double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

struct Vocabulary {
  std::vector<std::string> texts;
  std::vector<int32_t> ends;
};

std::string from_base64(const std::string& in) {
  std::string out;
  uint32_t bits = 0;
  int n = 0;
  for (const char c : in) {
    const char* const digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char* const at = std::strchr(digits, c);
    if (c == '=' || !at) break;
    bits = bits << 6 | static_cast<uint32_t>(at - digits);
    if ((n += 6) >= 8) out += static_cast<char>(bits >> (n -= 8) & 0xff);
  }
  return out;
}

// Qwen's file lists 151,643 tokens; its models have 151,936 rows, the first two of the others end
// texts.
Vocabulary read_vocabulary(const std::string& path) {
  Vocabulary v;
  if (path.ends_with(".tiktoken")) {
    std::ifstream in(path);
    size_t id;
    for (std::string token; in >> token >> id;) {
      v.texts.resize(std::max(v.texts.size(), id + 1));
      v.texts[id] = from_base64(token);
    }
    v.ends = {static_cast<int32_t>(v.texts.size()), static_cast<int32_t>(v.texts.size()) + 2};
    v.texts.resize((v.texts.size() + 511) / 128 * 128);
    return v;
  }
  const auto model = load_model(path, {}, nullptr);
  for (int id = 0; id < drawable_ids(*model); ++id)
    v.texts.push_back(id == 0 ? "" : model->tokenizer->bytes(id));
  v.ends.assign(model->config.eos_ids.begin(), model->config.eos_ids.end());
  return v;
}

struct Case {
  const char* name;
  riffle_grammar_kind kind;
  std::string text;
};

std::vector<Case> standard_cases() {
  const riffle_grammar_kind gbnf = RIFFLE_GRAMMAR_GBNF;
  return {
      {"json", gbnf,
       R"(root ::= value
value ::= object | array | string | number | "true" | "false" | "null"
object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}"
array ::= "[" ws (value ("," ws value)*)? "]"
string ::= "\"" ([^"\\\x00-\x1f] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}))* "\""
number ::= "-"? ("0" | [1-9] [0-9]*) ("." [0-9]+)? ([eE] [-+]? [0-9]+)?
ws ::= " "?)"},
      {"[^\\n]{1,300}", gbnf, R"(root ::= [^\n]{1,300})"},
      {"[^a]{1,300} \"a\"", gbnf, R"(root ::= [^a]{1,300} "a")"},
      {"[a-z ]{1,60} [a-z. ]{1,60}", gbnf, R"(root ::= [a-z ]{1,60} [a-z. ]{1,60})"},
      {"([a-z]+ \" \"?){1,300}", gbnf, R"(root ::= ([a-z]+ " "?){1,300})"},
      {"([a-z]+ \" \"?){100,300}", gbnf, R"(root ::= ([a-z]+ " "?){100,300})"},
      {"(.* \"x\"){3} .{2,9}", gbnf, R"(root ::= (.* "x"){3} .{2,9})"},
  };
}

void time_case(const Case& c, const std::shared_ptr<const TokenTries>& tokens,
               const Vocabulary& vocabulary, int steps) {
  const auto start = Clock::now();
  const std::shared_ptr<const Grammar> grammar = compile_grammar(tokens, {}, c.kind, c.text);
  const double compiled = ms_since(start);
  std::vector<double> times[2];
  for (std::vector<double>& of_round : times) {
    uint64_t random = 1;
    std::optional<Constraint> answer;
    std::vector<uint32_t> mask(tokens->mask_words());
    std::vector<int32_t> choices;
    for (int i = 0; i < steps; ++i) {
      if (!answer) answer.emplace(grammar, false, ReasoningRule::NONE, true);
      const auto begin = Clock::now();
      const bool any = answer->allowed(mask);
      of_round.push_back(ms_since(begin));
      choices.clear();
      for (int32_t t = 0; t < tokens->n_tokens(); ++t)
        if (mask[t / 32] >> (t % 32) & 1) choices.push_back(t);
      const int32_t token = any ? choices[splitmix64_next(random) % choices.size()] : -1;
      const bool end =
          std::find(vocabulary.ends.begin(), vocabulary.ends.end(), token) != vocabulary.ends.end();
      if (!any || end) answer.reset();
      else if (!answer->take(token, vocabulary.texts[token])) std::abort();
    }
    std::sort(of_round.begin(), of_round.end());
  }
  const auto mean = [](const std::vector<double>& all) {
    double sum = 0;
    for (const double t : all) sum += t;
    return sum / static_cast<double>(all.size());
  };
  const auto& cold = times[0];
  std::printf("%-28s %8.1f %9.3f %9.3f %9.3f %9.3f %9.4f\n", c.name, compiled, mean(cold),
              cold[cold.size() / 2], cold[cold.size() * 99 / 100], cold.back(), mean(times[1]));
}

std::string content(const char* path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc < 2) {
      std::fprintf(stderr,
                   "usage: grammar_bench VOCABULARY [--schema FILE | --gbnf FILE] "
                   "[--steps N]\n");
      return 2;
    }
    std::vector<Case> cases;
    int steps = 300;
    for (int i = 2; i + 1 < argc; i += 2) {
      const std::string flag = argv[i];
      if (flag == "--steps") steps = std::atoi(argv[i + 1]);
      else
        cases.push_back({argv[i + 1],
                         flag == "--gbnf" ? RIFFLE_GRAMMAR_GBNF : RIFFLE_GRAMMAR_JSON_SCHEMA,
                         content(argv[i + 1])});
    }
    if (cases.empty()) cases = standard_cases();
    const Vocabulary vocabulary = read_vocabulary(argv[1]);
    const auto start = Clock::now();
    const auto tokens = std::make_shared<const TokenTries>(
        static_cast<int32_t>(vocabulary.texts.size()),
        [&](int32_t id) { return vocabulary.texts[id]; }, vocabulary.ends);
    std::printf("%zu tokens, tries made in %.0f ms\n", vocabulary.texts.size(), ms_since(start));
    std::printf("%-28s %8s %9s %9s %9s %9s %9s\n", "ms", "compile", "mean", "median", "p99", "max",
                "again");
    for (const Case& c : cases) time_case(c, tokens, vocabulary, steps);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "grammar_bench: %s\n", e.what());
    return 1;
  }
}
