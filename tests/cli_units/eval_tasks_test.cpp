// The tests link the library alone, so the tasks of `riffle eval`, which belong to the program, are compiled in here.
#include "cli/eval_tasks.cpp"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "model/tokenizer.h"

namespace riffle::eval {
namespace {

// One token per byte behind a leading "▁", as sentencepiece with byte pieces would give; [INST] and [/INST] are pieces.
// 0 "▁", 1 "<s>", 2 "</s>", 3 "[INST]", 4 "[/INST]", 5 + b the byte b; byte 10 is spelled <0x0A>, others as they are.
std::vector<std::string> byte_pieces() {
  std::vector<std::string> pieces = {"\xe2\x96\x81", "<s>", "</s>", "[INST]", "[/INST]"};
  for (int b = 0; b < 256; ++b) pieces.push_back(b == 10 ? "<0x0A>" : std::string(1, static_cast<char>(b)));
  return pieces;
}

Vocabulary byte_vocabulary() {
  static const std::vector<std::string> pieces = byte_pieces();
  Vocabulary v;
  v.size = static_cast<int32_t>(pieces.size());
  v.bos_id = 1;
  v.eos_id = 2;
  v.piece = [](int32_t id) { return id < 0 || id >= 261 ? nullptr : pieces[static_cast<size_t>(id)].c_str(); };
  v.encode = [](std::string_view s) {
    std::vector<int32_t> ids = {0};
    while (!s.empty()) {
      if (s.substr(0, 6) == "[INST]") {
        ids.push_back(3);
        s.remove_prefix(6);
      } else if (s.substr(0, 7) == "[/INST]") {
        ids.push_back(4);
        s.remove_prefix(7);
      } else {
        ids.push_back(5 + static_cast<unsigned char>(s[0]));
        s.remove_prefix(1);
      }
    }
    return ids;
  };
  return v;
}

std::string text_of_ids(const std::vector<int32_t>& ids) {
  std::string s;
  for (int32_t id : ids) {
    if (id == 0) s += '_';
    if (id == 1) s += "<s>";
    if (id == 2) s += "</s>";
    if (id == 3) s += "[INST]";
    if (id == 4) s += "[/INST]";
    if (id >= 5) s += static_cast<char>(id - 5);
  }
  return s;
}

// Sentences of lower-case words: nothing that a fact could be mistaken for.
std::vector<int32_t> sample_text(size_t bytes) {
  Random random(7);
  std::string s;
  while (s.size() < bytes) {
    for (int words = random.range(3, 12); words > 0; --words)
      s += "lorem ipsum dolor"[random.below(17)] + std::string(" ");
    s += random.below(4) ? "end. " : "end!\n";
  }
  std::vector<int32_t> ids;
  for (char c : s) ids.push_back(5 + static_cast<unsigned char>(c));
  return ids;
}

size_t occurrences(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

TEST_CASE("eval: random numbers are splitmix64's", "[eval]") {
  Random random(1234567);  // reference values of the published generator
  CHECK(random.next() == 6457827717110365317u);
  CHECK(random.next() == 3203168211198807973u);
  CHECK(random.next() == 9817491932198370423u);
  std::map<uint64_t, int> seen;
  for (int i = 0; i < 6000; ++i) ++seen[random.below(6)];
  REQUIRE(seen.size() == 6);
  for (const auto& [value, n] : seen) {
    CHECK(value < 6);
    CHECK(std::abs(n - 1000) < 150);  // five standard deviations
  }
  for (int i = 0; i < 1000; ++i) {
    const double u = random.unit();
    REQUIRE((u >= 0 && u < 1));
    const int r = random.range(-2, 2);
    REQUIRE((r >= -2 && r <= 2));
  }
}

TEST_CASE("eval: lists of values are read back", "[eval]") {
  using V = std::vector<std::string>;
  const std::string p = "The values are ";
  CHECK(listed_values(p + "a.", p) == V{"a"});
  CHECK(listed_values(p + "a and b.", p) == V{"a", "b"});
  CHECK(listed_values(p + "misty hat, b c and d.", p) == V{"misty hat", "b c", "d"});
  CHECK(!listed_values(p + "a and b", p));
  CHECK(!listed_values("The value is a.", p));
  CHECK(!listed_values(p, p));
  CHECK(!listed_values("", p));
  for (const V& v : {V{"x"}, V{"x", "y"}, V{"x", "y", "z"}, V{"x", "y", "z", "u", "v"}}) {
    CHECK(listed_values(p + listing(v) + ".", p) == v);
  }
}

TEST_CASE("eval: answers that list values are marked as sets", "[eval]") {
  Question q{};
  q.answer_text = "The values are a, b and c.";
  CHECK(answer_right(q, "The values are a, b and c."));
  CHECK_FALSE(answer_right(q, "The values are b, a and c."));  // a plain answer: word by word
  q.prefix = "The values are ";
  q.values = {"a", "b", "c"};
  CHECK(answer_right(q, "The values are b, c and a."));
  CHECK_FALSE(answer_right(q, "The values are a and b."));
  CHECK(answer_right(q, "The values are a, b, c and c."));
  CHECK_FALSE(answer_right(q, "The values are a, b, c and d."));
  CHECK_FALSE(answer_right(q, "The values are a, a and b."));
  CHECK_FALSE(answer_right(q, "The values are a, b and c. [unfinished]"));
  CHECK_FALSE(answer_right(q, "The value are a, b and c."));
  CHECK_FALSE(answer_right(q, ""));
}

TEST_CASE("eval: facts say what is asked", "[eval]") {
  Random random(3);
  std::map<Task, int> lists;
  for (int round = 0; round < 300; ++round) {
    std::set<std::string> used;
    std::set<std::string> questions;
    for (Task task : {Task::PASSKEY, Task::MAGIC, Task::PERSON, Task::THING, Task::VARS, Task::MAGIC, Task::PERSON}) {
      const Fact f = make_fact(task, random, used);
      INFO(f.question << " | " << f.answer << " | " << f.statements[0]);
      CHECK(f.task == task);
      CHECK(questions.insert(f.question).second);  // keys differ, so questions do
      CHECK(f.question.find_first_of("{}") == std::string::npos);
      CHECK(f.answer.find_first_of("{}") == std::string::npos);
      CHECK(f.answer.back() == '.');
      for (const std::string& s : f.statements) {
        CHECK(s.find_first_of("{}") == std::string::npos);
        CHECK(s.back() == '.');
      }
      if (task == Task::PERSON) {
        CHECK(f.statements.size() == 1);
        CHECK(f.others.size() <= 2);
      }
      if (f.values.empty()) {
        // The value, the last word but for the full stop (or before " pounds"), stands in the statement.
        REQUIRE(f.statements.size() == 1);
        std::string value = f.answer.substr(0, f.answer.size() - 1);
        if (const size_t at = value.find(" pounds"); at != std::string::npos) value.resize(at);
        value = value.substr(value.rfind(' ') + 1);
        CHECK(f.statements[0].find(value) != std::string::npos);
      } else {
        ++lists[task];
        REQUIRE(f.values.size() == f.statements.size());
        for (size_t i = 0; i < f.values.size(); ++i) CHECK(f.statements[i].find(f.values[i]) != std::string::npos);
        CHECK(listed_values(f.answer, f.prefix) == f.values);
      }
      if (task == Task::VARS) {
        for (size_t i = 1; i < f.values.size(); ++i) {
          CHECK(f.statements[i] == "VAR " + f.values[i] + " = VAR " + f.values[i - 1] + ".");
        }
      }
    }
  }
  CHECK(lists[Task::VARS] == 300);
  CHECK(std::abs(lists[Task::MAGIC] - 150) < 60);  // a quarter of 600
}

TEST_CASE("eval: registers", "[eval]") {
  Random random(11);
  bool json[2] = {false, false};
  for (int round = 0; round < 20; ++round) {
    const Register reg = make_register(50, random);
    json[reg.json_style] = true;
    REQUIRE(reg.pairs.size() == 50);
    const std::string text = reg.text();
    CHECK(occurrences(text, "\n") == 50);
    std::set<std::string> keys;
    for (size_t i = 0; i < 50; ++i) {
      CHECK(keys.insert(reg.pairs[i].key).second);
      const std::string line = reg.json_style
                                   ? "\n\"" + reg.pairs[i].key + "\": \"" + reg.pairs[i].value + "\""
                                   : "\nline " + reg.pairs[i].key + ": REGISTER_CONTENT is " + reg.pairs[i].value + ".";
      CHECK(occurrences(text, line) == 1);
      CHECK(reg.question(i).find(reg.pairs[i].key) != std::string::npos);
      CHECK(reg.answer(i).find(reg.pairs[i].value) != std::string::npos);
    }
  }
  CHECK(json[0]);
  CHECK(json[1]);
}

TEST_CASE("eval: questions are dealt to documents", "[eval]") {
  const std::vector<Task> all = {Task::PASSKEY, Task::MAGIC, Task::PERSON, Task::THING, Task::VARS, Task::KV};
  for (int n : {1, 5, 100, 103}) {
    for (int per : {1, 3, 10, 50}) {
      for (int length : {256, 4096, 30000}) {
        for (const std::vector<Task>& tasks : {all, {Task::PASSKEY}, {Task::KV}, {Task::VARS, Task::PASSKEY}}) {
          int total = 0;
          std::map<Task, int> count;
          for (const DocumentPlan& p : plan_documents(tasks, n, per, length)) {
            REQUIRE(!p.tasks.empty());
            CHECK(static_cast<int>(p.tasks.size()) <= std::max(1, std::min(per, length / 100)));
            CHECK(std::count(p.tasks.begin(), p.tasks.end(), Task::PASSKEY) <= 1);
            CHECK(std::count(p.tasks.begin(), p.tasks.end(), Task::VARS) <= 1);
            for (Task t : p.tasks) {
              ++count[t];
              CHECK((t == Task::KV) == p.is_register);
            }
            total += static_cast<int>(p.tasks.size());
          }
          CHECK(total == n);
          if (per == 1) {
            for (Task t : tasks) CHECK(std::abs(count[t] - n / static_cast<int>(tasks.size())) <= 1);
          }
        }
      }
    }
  }
}

TEST_CASE("eval: documents hide facts in the text", "[eval]") {
  const Vocabulary vocabulary = byte_vocabulary();
  const PromptForm form = prompt_form(vocabulary);
  CHECK(text_of_ids(form.open) == "_[INST]");
  const std::vector<int32_t> text = sample_text(60000);
  std::string plain = text_of_ids(text);
  const std::vector<Task> all = {Task::PASSKEY, Task::MAGIC, Task::PERSON, Task::THING, Task::VARS};
  for (int length : {4000, 9000, 20000}) {
    const std::vector<DocumentPlan> plans = plan_documents(all, 40, 8, length);
    std::vector<double> depths;
    for (size_t d = 0; d < plans.size(); ++d) {
      Random random(100 + d), again(100 + d);
      const int index = static_cast<int>(d), count = static_cast<int>(plans.size());
      const Document doc = build_document(plans[d], length, index, count, text, vocabulary, form, random);
      CHECK(doc.tokens == build_document(plans[d], length, index, count, text, vocabulary, form, again).tokens);
      REQUIRE(doc.tokens.size() == doc.is_text.size());
      const std::string whole = text_of_ids(doc.tokens);
      CHECK(whole.rfind("<s>_[INST]", 0) == 0);
      // What is not a fact is one stretch of the text.
      std::string rest;
      for (size_t i = 0; i < doc.tokens.size(); ++i) {
        if (doc.is_text[i]) rest += static_cast<char>(doc.tokens[i] - 5);
      }
      CHECK(plain.find(rest) != std::string::npos);
      size_t longest = 0;
      for (const Question& q : doc.questions) {
        longest = std::max(longest, q.tail.size() + q.answer.size());
        CHECK(text_of_ids(q.tail) == "\n" + q.question_text + " [/INST]");  // the fake tokenizer has no "▁" inside
        CHECK(text_of_ids(q.answer) == "_" + q.answer_text + "</s>");
      }
      CHECK(doc.tokens.size() + longest == static_cast<size_t>(length));
      // Facts: each stands behind the end of a sentence or behind another fact, once.
      size_t magic = 0;
      for (size_t i = 1; i < doc.tokens.size(); ++i) {
        if (doc.tokens[i] == 0 && i > 1) CHECK(form.ends_sentence[static_cast<size_t>(doc.tokens[i - 1])]);
      }
      for (const Question& q : doc.questions) {
        if (q.task == Task::MAGIC) magic += std::max<size_t>(1, q.values.size());
        if (q.task == Task::VARS) {
          size_t last = 0;
          for (size_t i = 0; i < q.values.size(); ++i) {
            const std::string statement =
                i == 0 ? "_VAR " + q.values[0] + " = " : "_VAR " + q.values[i] + " = VAR " + q.values[i - 1] + ".";
            CHECK(occurrences(whole, statement) == 1);
            CHECK(whole.find(statement) > last);
            last = whole.find(statement);
          }
        } else if (q.values.empty()) {
          depths.push_back(q.depth);
          if (q.task == Task::THING) CHECK(occurrences(whole, "_" + q.answer_text) == 1);
        }
      }
      CHECK(occurrences(whole, "One of the special magic ") >= magic + static_cast<size_t>(length / 2000));
    }
    // Needles stand everywhere: no tenth of the documents' lengths is empty.
    std::vector<int> tenths(10, 0);
    for (double d : depths) {
      REQUIRE((d >= 0 && d < 1));
      ++tenths[static_cast<size_t>(d * 10)];
    }
    CHECK(*std::min_element(tenths.begin(), tenths.end()) > 0);
  }
  Random random(1);
  CHECK_THROWS_WITH(build_document({false, {Task::THING}}, 100000, 0, 1, text, vocabulary, form, random),
                    Catch::Contains("the text has"));
  CHECK_THROWS_WITH(
      build_document({false, std::vector<Task>(50, Task::MAGIC)}, 300, 0, 1, text, vocabulary, form, random),
      Catch::Contains("does not fit"));
}

TEST_CASE("eval: a needle stands where its depth says", "[eval]") {
  const Vocabulary vocabulary = byte_vocabulary();
  const PromptForm form = prompt_form(vocabulary);
  const std::vector<int32_t> text = sample_text(30000);
  for (int index = 0; index < 20; ++index) {
    Random random(static_cast<uint64_t>(index));
    const Document doc = build_document({false, {Task::THING}}, 8000, index, 20, text, vocabulary, form, random);
    const Question& q = doc.questions[0];
    CHECK(q.depth == Approx((index + 0.5) / 20));
    const std::string whole = text_of_ids(doc.tokens);
    const size_t at = whole.find("_" + q.answer_text);
    REQUIRE(at != std::string::npos);
    CHECK(static_cast<double>(at) / static_cast<double>(whole.size()) == Approx(q.depth).margin(0.06));
  }
}

TEST_CASE("eval: register documents fit", "[eval]") {
  const Vocabulary vocabulary = byte_vocabulary();
  const PromptForm form = prompt_form(vocabulary);
  for (int length : {600, 3000, 9000}) {
    Random random(5);
    const Document doc =
        build_document({true, std::vector<Task>(4, Task::KV)}, length, 0, 1, {}, vocabulary, form, random);
    CHECK(doc.is_register);
    REQUIRE(doc.questions.size() == 4);
    std::set<std::string> questions;
    for (const Question& q : doc.questions) {
      CHECK(doc.tokens.size() + q.tail.size() + q.answer.size() <= static_cast<size_t>(length));
      CHECK(questions.insert(q.question_text).second);
    }
    CHECK(doc.tokens.size() > static_cast<size_t>(length) / 3);
  }
}

TEST_CASE("eval: the vocabulary must know the prompt form", "[eval]") {
  Vocabulary v = byte_vocabulary();
  v.size = 4;  // no [/INST], no newline
  CHECK_THROWS_WITH(prompt_form(v), Catch::Contains("lacks a piece"));
}

TEST_CASE("eval: running text is encoded in pieces that end with lines", "[eval]") {
  const Vocabulary vocabulary = byte_vocabulary();
  std::string text;
  while (text.size() < 10000) text += "a line of text\n";
  const std::vector<int32_t> ids = encode_text(vocabulary, text);
  CHECK(std::count(ids.begin(), ids.end(), 0) == 3);  // 4,000 bytes and the rest of the line, twice, and the rest
  for (size_t i = 1; i < ids.size(); ++i) {
    if (ids[i] == 0) CHECK(ids[i - 1] == 5 + '\n');
  }
  CHECK(ids.size() == text.size() + 3);
  CHECK(encode_text(vocabulary, "").empty());
}

// The golden prompt was encoded as one string by the sentencepiece library; put together from its parts it must be the
// same tokens.
TEST_CASE("eval: prompts have the tokens the model was trained on", "[eval]") {
  const char* env = std::getenv("RIFFLE_SHARED");
  const std::string shared = env ? env : "../shared";
  std::ifstream model(shared + "/models/riffle-27m-32k/tokenizer.model", std::ios::binary);
  std::ifstream golden(shared + "/golden/riffle-27m-32k-q8_0.golden.json");
  if (!model || !golden) {
    WARN("SKIPPED: no tokenizer or golden file under " << shared);
    return;
  }
  std::stringstream bytes;
  bytes << model.rdbuf();
  const std::unique_ptr<Tokenizer> tokenizer = tokenizer_from_model(bytes.str(), "tokenizer.model");
  Vocabulary v;
  v.encode = [&](std::string_view s) { return tokenizer->encode(s, false, false); };
  v.piece = [&](int32_t id) { return tokenizer->piece(id); };
  v.size = tokenizer->vocab_size();
  v.bos_id = tokenizer->bos_id();
  v.eos_id = tokenizer->eos_id();
  const PromptForm form = prompt_form(v);
  std::vector<int32_t> ids = {form.bos};
  append(ids, form.open);
  append(ids, v.encode("Ada Frost lives in Lisbon. The telephone number of Otto Pike is 482913. The amber lantern was "
                       "hidden in Oslo."));
  append(ids, make_question(Task::PERSON, 0, "What is the telephone number of Otto Pike?", "x", v, form).tail);
  std::vector<int32_t> expected;
  for (const auto& prompt : nlohmann::json::parse(golden)) {
    if (prompt["name"] == "facts") expected = prompt["ids"].get<std::vector<int32_t>>();
  }
  CHECK(ids == expected);
  CHECK(form.newline >= 0);
  CHECK(std::count(form.ends_sentence.begin(), form.ends_sentence.end(), 1) == 3);
}

}  // namespace
}  // namespace riffle::eval
