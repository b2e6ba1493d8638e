#include "measure/commands/eval/tasks.h"

#include <catch2/catch.hpp>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "chat/chat_template.h"
#include "measure/commands/eval/facts_data.h"
#include "text/tokenizer.h"

namespace riffle::eval {
namespace {

void append(std::vector<int32_t>& to, const std::vector<int32_t>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

// The pieces of a vocabulary that encodes as sentencepiece with byte pieces would: a leading "▁",
// then one token per byte; [INST] and [/INST] are pieces. 0 "▁", 1 "<s>", 2 "</s>", 3 "[INST]",
// 4 "[/INST]", 5 + b the byte b. Byte 10 is spelled <0x0A>, the others as themselves.
std::vector<std::string> byte_pieces() {
  std::vector<std::string> pieces = {"\xe2\x96\x81", "<s>", "</s>", "[INST]", "[/INST]"};
  for (int b = 0; b < 256; ++b)
    pieces.push_back(b == 10 ? "<0x0A>" : std::string(1, static_cast<char>(b)));
  return pieces;
}

Vocabulary byte_vocabulary() {
  static const std::vector<std::string> pieces = byte_pieces();
  Vocabulary v;
  v.size = static_cast<int32_t>(pieces.size());
  v.bos_id = 1;
  v.eos_id = 2;
  v.piece = [](int32_t id) {
    return id < 0 || id >= 261 ? nullptr : pieces[static_cast<size_t>(id)].c_str();
  };
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
  v.chat = [encode = v.encode](std::string_view s) {
    std::vector<int32_t> ids = {1};
    append(ids, encode("[INST] " + std::string(s) + " [/INST]"));
    return ids;
  };
  return v;
}

// Returns a vocabulary like a byte pair encoding: no mark of a space before a text, and spaces are
// ordinary tokens.
Vocabulary unmarked_vocabulary() {
  Vocabulary v = byte_vocabulary();
  v.encode = [encode = v.encode](std::string_view s) {
    std::vector<int32_t> ids = encode(s);
    ids.erase(ids.begin());
    return ids;
  };
  v.chat = [encode = v.encode](std::string_view s) {
    std::vector<int32_t> ids = {1};
    append(ids, encode("user\n" + std::string(s)));
    ids.push_back(2);
    append(ids, encode("\nmodel\n"));
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

// Returns sentences of lower-case words, which cannot be mistaken for facts.
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

TEST_CASE("eval: lists of values", "[eval]") {
  CHECK(listing({"a"}) == "a");
  CHECK(listing({"a", "b"}) == "a and b");
  CHECK(listing({"misty hat", "b c", "d"}) == "misty hat, b c and d");
}

bool names(const std::vector<std::string>& values, std::string_view answer) {
  Question q{};
  q.values = values;
  return answer_right(q, answer);
}

TEST_CASE("eval: an answer is right that names every value", "[eval]") {
  const std::vector<std::string> numbers = {"4827391", "9917362", "1234567"};
  CHECK(names(numbers, "The values are 4827391, 9917362 and 1234567."));
  CHECK(names(numbers, "1234567,4827391,9917362"));  // a list without spaces is not one number
  CHECK(names(numbers, "1. **1234567**\n2. **4827391**\n3. 9917362 (and perhaps 5555555)"));
  CHECK_FALSE(names(numbers, "The values are 4827391 and 9917362."));
  CHECK_FALSE(names(numbers, "4827391, 4827391 and 9917362"));
  CHECK_FALSE(names(numbers, ""));

  // Commas inside numbers do not count, on either side.
  CHECK(names({"4827391"}, "It is 4,827,391."));
  CHECK(names({"4,827,391"}, "It is 4827391"));
  CHECK(names({"12345"}, "12,345 pounds"));
  CHECK(names({"12345", "678"}, "12,345, 678"));
  CHECK_FALSE(names({"345"}, "12,345"));

  // Only whole words count.
  CHECK(names({"12"}, "12"));
  CHECK(names({"12"}, "room (12)"));
  CHECK(names({"12"}, "not 123 but 12"));
  for (const char* other : {"123", "012", "a12", "12a", "1 2", "12\xc3\xa9",
                            "\xc3\xa9"
                            "12",
                            "\xd0\xb6"
                            "12"}) {
    INFO(other);
    CHECK_FALSE(names({"12"}, other));
  }
  CHECK_FALSE(names({"hat"}, "that chat"));
  CHECK_FALSE(names({"misty hat"}, "a hat, and misty"));
  // Typographic quotes, dashes and characters of scripts without spaces do not continue a word.
  CHECK(names({"12"},
              "\xe2\x80\x9c"
              "12"
              "\xe2\x80\x9d"));
  CHECK(names({"12"},
              "it\xe2\x80\x94"
              "12\xe2\x80\xa6"));
  CHECK(names({"12"},
              "\xc2\xab"
              "12\xc2\xbb"));
  CHECK(names({"12"},
              "\xe6\x98\xaf"
              "12\xe3\x80\x82"));

  // Capitals do not count.
  CHECK(names({"Misty Hat"}, "the MISTY HAT."));
  CHECK(names({"XZZ"}, "xzz"));

  // If there is nothing to name, no answer is right.
  CHECK_FALSE(names({}, ""));
  CHECK_FALSE(names({}, "The text tells a story."));
}

TEST_CASE("eval: facts say what is asked", "[eval]") {
  Random random(3);
  std::map<Task, int> lists;
  for (int round = 0; round < 300; ++round) {
    std::set<std::string> used;
    std::set<std::string> questions;
    for (Task task : {Task::PASSKEY, Task::MAGIC, Task::PERSON, Task::THING, Task::VARS,
                      Task::MAGIC, Task::PERSON, Task::MULTIKEY, Task::MULTIVALUE, Task::MULTIQUERY,
                      Task::PASSAGE, Task::PASSAGE, Task::NEEDLE, Task::NEEDLE}) {
      const Fact f = make_fact(task, random, used);
      INFO(f.question << " | " << f.answer << " | " << f.statements[0]);
      CHECK(f.task == task);
      CHECK(questions.insert(f.question).second);  // keys differ, so questions differ
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
      REQUIRE(!f.values.empty());
      CHECK(names(f.values, f.answer));
      if (f.values.size() > 1) ++lists[task];
      if (f.statements.size() == 1) {
        REQUIRE(f.values.size() == 1);
        CHECK(names(f.values, f.statements[0]));
      } else {
        REQUIRE(f.values.size() == f.statements.size());
        for (size_t i = 0; i < f.values.size(); ++i)
          CHECK(f.statements[i].find(f.values[i]) != std::string::npos);
      }
      // Neighbouring statements do not answer the question. Only a person may have been born in the
      // town that they live in.
      if (task != Task::PERSON) {
        for (const std::string& s : f.others) CHECK_FALSE(names({f.values[0]}, s));
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
  std::set<std::string> used;
  CHECK_THROWS_AS(make_fact(Task::KV, random, used), std::logic_error);
  CHECK_THROWS_AS(make_fact(Task::COMMON, random, used), std::logic_error);
}

// Returns a needle's kind ("number"), key and value from its statement.
std::vector<std::string> needle_parts(const std::string& statement) {
  const std::string head = "One of the special magic ";
  const size_t kind = head.size(), key = statement.find("s for ", kind),
               value = statement.find(" is: ", key);
  REQUIRE(statement.rfind(head, 0) == 0);
  REQUIRE(key != std::string::npos);
  REQUIRE(value != std::string::npos);
  return {statement.substr(kind, key - kind), statement.substr(key + 6, value - key - 6),
          statement.substr(value + 5, statement.size() - value - 6)};
}

TEST_CASE("eval: needles of several keys and values", "[eval]") {
  Random random(17);
  std::set<std::string> kinds;
  for (int round = 0; round < 200; ++round) {
    std::set<std::string> used;
    for (Task task : {Task::MULTIKEY, Task::MULTIVALUE, Task::MULTIQUERY}) {
      const Fact f = make_fact(task, random, used);
      INFO(f.question << " | " << f.answer);
      CHECK(f.others.size() == (task == Task::MULTIKEY ? 7 : 0));
      CHECK(f.values.size() == (task == Task::MULTIKEY ? 1 : 4));
      std::vector<std::string> all = f.statements;
      all.insert(all.end(), f.others.begin(), f.others.end());
      std::set<std::string> keys, values;
      const std::string kind = needle_parts(all[0])[0];
      for (size_t i = 0; i < all.size(); ++i) {
        const std::vector<std::string> parts = needle_parts(all[i]);
        CHECK(parts[0] == kind);  // the statements differ only in the key (and its value)
        keys.insert(parts[1]);
        CHECK(values.insert(parts[2]).second);
        const bool asked = i < f.statements.size();
        CHECK((f.question.find(" " + parts[1]) != std::string::npos) == asked);
        if (asked) CHECK(parts[2] == f.values[i]);
      }
      CHECK(keys.size() == (task == Task::MULTIKEY ? 8 : task == Task::MULTIVALUE ? 1 : 4));
      kinds.insert(kind);
    }
    const Fact f = make_fact(Task::NEEDLE, random, used);
    const size_t key = f.question.find(" for ") + 5;
    CHECK(f.statements ==
          std::vector<std::string>{"The special magic number for " +
                                   f.question.substr(key, f.question.find(' ', key) - key) +
                                   " is " + f.values[0] + "."});
    CHECK(f.values[0].size() == 7);
    const Fact summary = make_fact(Task::SUMMARY, random, used);
    CHECK(summary.statements.empty());
    CHECK(summary.values.empty());
    CHECK_FALSE(names(summary.values, summary.answer));
  }
  CHECK(kinds == std::set<std::string>{"number", "word", "code"});
}

TEST_CASE("eval: passages say what is asked of them", "[eval]") {
  Random random(23);
  std::set<std::string> shapes;  // forms of questions, without the drawn words
  std::map<std::string, int> articles;
  for (int round = 0; round < 20; ++round) {
    std::set<std::string> used, questions;
    for (int i = 0; i < 100; ++i) {  // more than there are cities
      const Fact f = make_fact(Task::PASSAGE, random, used);
      INFO(f.question << " | " << f.statements[0]);
      REQUIRE(f.statements.size() == 1);
      REQUIRE(f.values.size() == 1);
      CHECK(names(f.values, f.statements[0]));
      CHECK(f.question.find(f.values[0]) == std::string::npos);
      // "an anchor", "a bell"
      const std::string& said = f.statements[0];
      for (size_t at = said.find(" a"); at != std::string::npos; at = said.find(" a", at + 1)) {
        const size_t word = said.find(' ', at + 1) + 1;
        const std::string article = said.substr(at + 1, word - at - 2);
        if (article != "a" && article != "an") continue;
        CHECK((std::string("aeiou").find(said[word]) != std::string::npos) == (article == "an"));
        ++articles[article];
      }
      // The question names the thing and its city as the passage does, and no other passage names
      // them.
      std::string subject;
      for (std::string_view of : {"harbour wall of ", "museum of ", "expedition to "}) {
        const size_t at = f.question.find(of);
        if (at == std::string::npos) continue;
        const size_t city = at + of.size();
        subject = f.question.substr(at, f.question.find_first_of(" ?", city) - at);
        std::string shape = f.question;
        shapes.insert(shape.substr(0, shape.find(' ', shape.find(' ') + 1)) + " " +
                      std::string(of));
      }
      REQUIRE(!subject.empty());
      CHECK(f.statements[0].find(subject) != std::string::npos);
      const std::string city = subject.substr(subject.rfind(' ') + 1);
      CHECK(std::count(std::begin(facts::kCities), std::end(facts::kCities), city) == 1);
      CHECK(f.values[0] != city);
      CHECK(questions.insert(f.question).second);
    }
  }
  CHECK(articles["a"] > 0);
  CHECK(articles["an"] > 0);
  CHECK(shapes.size() >= 10);  // each passage has several questions
  // The number of questions is limited: after the last one, make_fact throws instead of searching
  // for ever.
  std::set<std::string> used;
  CHECK_THROWS_WITH(
      [&] {
        for (int i = 0; i < 1000; ++i) make_fact(Task::PASSAGE, random, used);
      }(),
      Catch::Contains("too many questions"));
}

TEST_CASE("eval: the words asked of a list are the most frequent ones", "[eval]") {
  Random random(29);
  for (Task task : {Task::COMMON, Task::FREQUENT}) {
    for (size_t n : {60u, 61u, 100u, 333u, 1000u, 5000u}) {
      for (int round = 0; round < 5; ++round) {
        const WordList list = make_word_list(task, n, random);
        INFO(task_name(task) << " " << n << ": " << list.answer);
        std::istringstream lines(list.text.substr(list.text.find('\n') + 1));
        std::map<std::string, size_t> counts;
        size_t entries = 0;
        for (std::string word; lines >> word; ++entries) {
          if (task == Task::COMMON) {
            CHECK(word == std::to_string(entries + 1) + ".");
            REQUIRE(lines >> word);
          }
          ++counts[word];
        }
        CHECK(entries <= n);
        CHECK(entries > n / 2);
        REQUIRE(list.values.size() == 3);
        CHECK(names(list.values, list.answer));
        size_t fewest = SIZE_MAX, most_of_others = 0;
        for (const auto& [word, count] : counts) {
          const bool asked = std::count(list.values.begin(), list.values.end(), word) == 1;
          if (asked) fewest = std::min(fewest, count);
          if (!asked) most_of_others = std::max(most_of_others, count);
        }
        for (const std::string& word : list.values) CHECK(counts[word] > 0);
        CHECK(fewest > most_of_others);
        if (task == Task::COMMON) CHECK(fewest == 10 * most_of_others);
        // The most frequent coded word comes first: its share is 6 over pi squared.
        if (task == Task::FREQUENT) {
          CHECK(std::abs(static_cast<double>(counts[list.values[0]]) -
                         0.6079 * static_cast<double>(n)) < 1.5);
          CHECK(counts[list.values[0]] > counts[list.values[1]]);
          CHECK(counts[list.values[1]] > counts[list.values[2]]);
          CHECK(entries == n);
        }
      }
    }
  }
}

TEST_CASE("eval: tasks have names", "[eval]") {
  std::set<std::string> names_seen;
  for (int i = 0; i < kTasks; ++i) {
    const Task task = static_cast<Task>(i);
    CHECK(names_seen.insert(task_name(task)).second);
    CHECK(task_from_name(task_name(task)) == task);
    CHECK(has_answer(task) == (task != Task::SUMMARY));
    CHECK((", " + task_names(", ") + ", ").find(std::string(", ") + task_name(task) + ", ") !=
          std::string::npos);
  }
  CHECK(!task_from_name("pass"));
  CHECK(!task_from_name(""));
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
      const std::string line =
          reg.json_style
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
  const std::vector<Task> old = {Task::PASSKEY, Task::MAGIC, Task::PERSON,
                                 Task::THING,   Task::VARS,  Task::KV};
  std::vector<Task> all;
  for (int i = 0; i < kTasks; ++i) all.push_back(static_cast<Task>(i));
  const std::vector<Task> rare = {Task::SUMMARY, Task::VARS, Task::PASSKEY};
  for (int n : {1, 5, 14, 100, 103}) {
    for (int per : {1, 3, 10, 50}) {
      for (int length : {256, 4096, 30000}) {
        for (const std::vector<Task>& tasks : {old,
                                               all,
                                               rare,
                                               {Task::PASSKEY},
                                               {Task::KV},
                                               {Task::SUMMARY},
                                               {Task::COMMON},
                                               {Task::VARS, Task::PASSKEY},
                                               {Task::FREQUENT, Task::NEEDLE}}) {
          INFO(n << " questions of " << tasks.size() << " tasks, " << per << " to a document of "
                 << length);
          int total = 0;
          std::map<Task, int> count;
          for (const DocumentPlan& p : plan_documents(tasks, n, per, length)) {
            REQUIRE(!p.tasks.empty());
            CHECK(static_cast<int>(p.tasks.size()) <= std::max(1, std::min(per, length / 100)));
            for (Task once : rare) CHECK(std::count(p.tasks.begin(), p.tasks.end(), once) <= 1);
            if (p.whole == Task::COMMON || p.whole == Task::FREQUENT) CHECK(p.tasks.size() == 1);
            for (Task t : p.tasks) {
              ++count[t];
              CHECK(is_whole(t) == p.is_whole());
              if (p.is_whole()) CHECK(t == p.whole);
            }
            total += static_cast<int>(p.tasks.size());
          }
          CHECK(total == n);
          const int even = n / static_cast<int>(tasks.size());
          for (Task t : tasks) {
            // Tasks that a document may hold only once may leave some of their questions to others;
            // lists and registers never do.
            const bool own = is_whole(t) || per == 1;
            if (own) CHECK(std::abs(count[t] - even) <= 1);
          }
        }
      }
    }
  }
}

TEST_CASE("eval: documents hide facts in the text", "[eval]") {
  const Vocabulary vocabulary = byte_vocabulary();
  const PromptForm form = prompt_form(vocabulary);
  CHECK(text_of_ids(form.open) == "<s>_[INST] ");
  const std::vector<int32_t> text = sample_text(60000);
  std::string plain = text_of_ids(text);
  const std::vector<Task> all = {Task::PASSKEY, Task::MAGIC,    Task::PERSON,     Task::THING,
                                 Task::VARS,    Task::MULTIKEY, Task::MULTIVALUE, Task::MULTIQUERY,
                                 Task::PASSAGE, Task::NEEDLE,   Task::SUMMARY};
  for (int length : {6000, 9000, 20000}) {
    const size_t answer_tokens =
        length == 9000 ? 500 : 8;  // more than the longest answer here, and fewer
    const std::vector<DocumentPlan> plans = plan_documents(all, 99, 8, length);
    std::vector<double> depths;
    for (size_t d = 0; d < plans.size(); ++d) {
      Random random(100 + d), again(100 + d);
      const int index = static_cast<int>(d), count = static_cast<int>(plans.size());
      const auto build = [&](Random& r) {
        return build_document(plans[d], length, static_cast<int>(answer_tokens), index, count, text,
                              vocabulary, form, r);
      };
      const Document doc = build(random);
      CHECK(doc.tokens == build(again).tokens);
      CHECK_FALSE(doc.is_whole);
      REQUIRE(doc.tokens.size() == doc.is_text.size());
      const std::string whole = text_of_ids(doc.tokens);
      CHECK(whole.rfind("<s>_[INST] ", 0) == 0);
      // All tokens outside the facts form one stretch of the text.
      std::string rest;
      for (size_t i = 0; i < doc.tokens.size(); ++i) {
        if (doc.is_text[i]) rest += static_cast<char>(doc.tokens[i] - 5);
      }
      CHECK(plain.find(rest) != std::string::npos);
      size_t longest = 0;
      for (const Question& q : doc.questions) {
        longest = std::max(longest, q.tail.size() + std::max(q.answer.size(), answer_tokens));
        CHECK(text_of_ids(q.tail) ==
              "\n" + q.question_text + " [/INST]");  // the fake tokenizer has no "▁" inside
        CHECK(text_of_ids(q.answer) == "_" + q.answer_text + "</s>");
      }
      CHECK(doc.tokens.size() + longest == static_cast<size_t>(length));
      // Each fact occurs once, after the end of a sentence or after another fact.
      size_t magic = 0;
      bool has_magic = false;
      for (size_t i = 1; i < doc.tokens.size(); ++i) {
        if (doc.tokens[i] == 0 && i > 1)
          CHECK(form.ends_sentence[static_cast<size_t>(doc.tokens[i - 1])]);
      }
      for (const Question& q : doc.questions) {
        const bool needles =
            q.task == Task::MAGIC || q.task == Task::MULTIVALUE || q.task == Task::MULTIQUERY;
        magic += q.task == Task::MULTIKEY ? 8 : needles ? q.values.size() : 0;
        has_magic |= q.task == Task::MAGIC;
        for (const std::string& value : q.values) CHECK(occurrences(whole, value) >= 1);
        if (q.task == Task::VARS) {
          size_t last = 0;
          for (size_t i = 0; i < q.values.size(); ++i) {
            const std::string statement =
                i == 0 ? "_VAR " + q.values[0] + " = "
                       : "_VAR " + q.values[i] + " = VAR " + q.values[i - 1] + ".";
            CHECK(occurrences(whole, statement) == 1);
            CHECK(whole.find(statement) > last);
            last = whole.find(statement);
          }
        } else if (q.task == Task::SUMMARY) {
          CHECK(q.depth == 0);
        } else if (q.values.size() == 1) {
          depths.push_back(q.depth);
          if (q.task == Task::THING) CHECK(occurrences(whole, "_" + q.answer_text) == 1);
        }
      }
      // The document also has needles that no question asks for.
      const size_t distractors = has_magic ? static_cast<size_t>(length / 2000) : 0;
      CHECK(occurrences(whole, "One of the special magic ") >= magic + distractors);
    }
    // Needles are everywhere: no tenth of the documents' length is empty.
    std::vector<int> tenths(10, 0);
    for (double d : depths) {
      REQUIRE((d >= 0 && d < 1));
      ++tenths[static_cast<size_t>(d * 10)];
    }
    CHECK(*std::min_element(tenths.begin(), tenths.end()) > 0);
  }
  Random random(1);
  // The message names the number of missing tokens: with that many more, a document can be built.
  const DocumentPlan one{Task::MAGIC, {Task::NEEDLE}};
  const auto build = [&](const std::vector<int32_t>& from, uint64_t seed) {
    Random r(seed);
    return build_document(one, 9000, 20, 0, 1, from, vocabulary, form, r);
  };
  const std::vector<int32_t> less(text.begin(), text.begin() + 5000);
  size_t missing = 0;
  try {
    build(less, 1);
  } catch (const std::runtime_error& e) {
    const std::string message = e.what();
    INFO(message);
    CHECK(message.find("the text has 5000 tokens") == 0);
    CHECK(message.find("documents of 9000 tokens") != std::string::npos);
    const size_t at = message.rfind(": ");
    REQUIRE(message.find(" are missing") != std::string::npos);
    missing = std::stoul(message.substr(at + 2));
  }
  REQUIRE(missing > 3000);
  REQUIRE(missing < 4000);
  const auto first = [&](size_t n) {
    return std::vector<int32_t>(text.begin(), text.begin() + static_cast<ptrdiff_t>(n));
  };
  CHECK_NOTHROW(build(first(5000 + missing), 1));
  CHECK_THROWS_WITH(build(first(4999 + missing), 1), Catch::Contains(": 1 are missing"));
  CHECK_THROWS_WITH(build_document({Task::MAGIC, std::vector<Task>(50, Task::MAGIC)}, 300, 8, 0, 1,
                                   text, vocabulary, form, random),
                    Catch::Contains("does not fit"));
  // Room for answers is taken from the document.
  CHECK_THROWS_WITH(build_document(one, 1000, 900, 0, 1, text, vocabulary, form, random),
                    Catch::Contains("does not fit"));
}

TEST_CASE("eval: prompts of models without a chat template and without marks of spaces", "[eval]") {
  const std::vector<int32_t> text = sample_text(9000);
  const auto prompt = [&](const Vocabulary& v, const PromptForm& form) {
    Random random(2);
    const Document doc =
        build_document({Task::MAGIC, {Task::NEEDLE}}, 3000, 10, 0, 1, text, v, form, random);
    const Question& q = doc.questions[0];
    CHECK(doc.tokens.size() + q.tail.size() + std::max<size_t>(q.answer.size(), 10) == 3000);
    const std::string s = text_of_ids(doc.tokens);
    const std::string space = form.marks_words ? "_" : " ";
    const size_t at = s.find(space + q.answer_text);  // a needle's answer is its statement
    REQUIRE(at != std::string::npos);
    CHECK((s[at - 1] == '.' || s[at - 1] == '!'));
    CHECK(text_of_ids(q.answer) == (form.marks_words ? "_" : "") + q.answer_text + "</s>");
    // The document's text follows directly after the opening of the prompt, and the question
    // directly after the text.
    const size_t open = text_of_ids(form.open).size();
    CHECK(s.substr(0, open) == text_of_ids(form.open));
    CHECK(text_of_ids(q.tail) == "\n" + q.question_text + text_of_ids(form.close));
    return s;
  };

  Vocabulary marked = byte_vocabulary();
  PromptForm form = prompt_form(marked);
  CHECK(form.is_chat);
  CHECK(form.marks_words);
  CHECK(text_of_ids(form.open) == "<s>_[INST] ");
  CHECK(text_of_ids(form.close) == " [/INST]");
  CHECK(text_of_ids(form.newline) == "\n");
  prompt(marked, form);

  marked.chat = [](std::string_view) { return std::vector<int32_t>(); };
  form = prompt_form(marked);
  CHECK_FALSE(form.is_chat);
  CHECK(text_of_ids(form.open) == "<s>");
  CHECK(text_of_ids(form.close) == "\nAnswer:");
  prompt(marked, form);
  marked.bos_id = -1;
  form = prompt_form(marked);
  CHECK(form.open.empty());
  prompt(marked, form);

  Vocabulary unmarked = unmarked_vocabulary();
  form = prompt_form(unmarked);
  CHECK(form.is_chat);
  CHECK_FALSE(form.marks_words);
  CHECK(text_of_ids(form.open) == "<s>user\n");
  CHECK(text_of_ids(form.close) == "</s>\nmodel\n");
  CHECK(text_of_ids(form.newline) == "\n");
  CHECK(prompt(unmarked, form).find('_') == std::string::npos);
  unmarked.chat = [](std::string_view) { return std::vector<int32_t>(); };
  form = prompt_form(unmarked);
  CHECK_FALSE(form.is_chat);
  CHECK(text_of_ids(form.close) == "\nAnswer:");
  prompt(unmarked, form);

  // Templates whose sides look alike: no token of a message is taken for the form.
  unmarked.chat = [encode = unmarked.encode](std::string_view s) {
    return encode("11" + std::string(s) + "11");
  };
  form = prompt_form(unmarked);
  CHECK(text_of_ids(form.open) == "11");
  CHECK(text_of_ids(form.close) == "11");
}

TEST_CASE("eval: a needle stands where its depth says", "[eval]") {
  const Vocabulary vocabulary = byte_vocabulary();
  const PromptForm form = prompt_form(vocabulary);
  const std::vector<int32_t> text = sample_text(30000);
  for (int index = 0; index < 20; ++index) {
    Random random(static_cast<uint64_t>(index));
    const Document doc = build_document({Task::MAGIC, {Task::THING}}, 8000, 32, index, 20, text,
                                        vocabulary, form, random);
    const Question& q = doc.questions[0];
    CHECK(q.depth == Approx((index + 0.5) / 20));
    const std::string whole = text_of_ids(doc.tokens);
    const size_t at = whole.find("_" + q.answer_text);
    REQUIRE(at != std::string::npos);
    CHECK(static_cast<double>(at) / static_cast<double>(whole.size()) ==
          Approx(q.depth).margin(0.06));
  }
}

TEST_CASE("eval: register documents fit", "[eval]") {
  const Vocabulary vocabulary = byte_vocabulary();
  const PromptForm form = prompt_form(vocabulary);
  for (int length : {600, 3000, 9000}) {
    Random random(5);
    const Document doc = build_document({Task::KV, std::vector<Task>(4, Task::KV)}, length, 100, 0,
                                        1, {}, vocabulary, form, random);
    CHECK(doc.is_whole);
    REQUIRE(doc.questions.size() == 4);
    std::set<std::string> questions;
    for (const Question& q : doc.questions) {
      CHECK(doc.tokens.size() + q.tail.size() + std::max<size_t>(q.answer.size(), 100) <=
            static_cast<size_t>(length));
      CHECK(questions.insert(q.question_text).second);
      CHECK(occurrences(text_of_ids(doc.tokens), q.values[0]) >= 1);
    }
    CHECK(doc.tokens.size() > static_cast<size_t>(length) / 3);
  }
}

TEST_CASE("eval: lists of words fit", "[eval]") {
  const Vocabulary vocabulary = byte_vocabulary();
  const PromptForm form = prompt_form(vocabulary);
  for (Task task : {Task::COMMON, Task::FREQUENT}) {
    for (int length : {1200, 3000, 9000}) {
      Random random(5), again(5);
      const Document doc =
          build_document({task, {task}}, length, 100, 0, 1, {}, vocabulary, form, random);
      INFO(task_name(task) << " at " << length << ": " << doc.tokens.size());
      CHECK(doc.tokens ==
            build_document({task, {task}}, length, 100, 0, 1, {}, vocabulary, form, again).tokens);
      CHECK(doc.is_whole);
      CHECK(std::count(doc.is_text.begin(), doc.is_text.end(), 1) == 0);
      CHECK(doc.is_text.size() == doc.tokens.size());
      REQUIRE(doc.questions.size() == 1);
      const Question& q = doc.questions[0];
      CHECK(q.task == task);
      CHECK(doc.tokens.size() + q.tail.size() + std::max<size_t>(q.answer.size(), 100) <=
            static_cast<size_t>(length));
      CHECK(doc.tokens.size() > static_cast<size_t>(length) / 2);
      for (const std::string& word : q.values)
        CHECK(occurrences(text_of_ids(doc.tokens), word) > 1);
    }
    Random random(5);
    CHECK_THROWS_WITH(build_document({task, {task}}, 300, 100, 0, 1, {}, vocabulary, form, random),
                      Catch::Contains("does not fit into 300 tokens"));
  }
}

TEST_CASE("eval: the vocabulary must know what prompts are made of", "[eval]") {
  Vocabulary v = byte_vocabulary();
  v.size = 4;  // no sentence ends
  CHECK_THROWS_WITH(prompt_form(v), Catch::Contains("the vocabulary lacks"));
  v = byte_vocabulary();
  v.eos_id = -1;
  CHECK_THROWS_WITH(prompt_form(v), Catch::Contains("the vocabulary lacks"));
}

TEST_CASE("eval: running text is encoded in pieces that end with lines", "[eval]") {
  const Vocabulary vocabulary = byte_vocabulary();
  std::string text;
  while (text.size() < 10000) text += "a line of text\n";
  const std::vector<int32_t> ids = encode_text(vocabulary, text);
  CHECK(std::count(ids.begin(), ids.end(), 0) ==
        3);  // 4,000 bytes and the rest of the line, twice, and the rest
  for (size_t i = 1; i < ids.size(); ++i) {
    if (ids[i] == 0) CHECK(ids[i - 1] == 5 + '\n');
  }
  CHECK(ids.size() == text.size() + 3);
  CHECK(encode_text(vocabulary, "").empty());
}

// The sentencepiece library encoded the golden prompt as one string. Its parts, encoded separately,
// must give the same tokens.
TEST_CASE("eval: prompts have the tokens the model was trained on", "[eval]") {
  std::ifstream model("models/riffle-27m-32k/tokenizer.model", std::ios::binary);
  std::ifstream golden("tests/golden/riffle-27m-32k-q8_0.golden.json");
  if (!model || !golden) {
    WARN("SKIPPED: the demo model's tokenizer or golden file is not here");
    return;
  }
  std::stringstream bytes;
  bytes << model.rdbuf();
  const std::unique_ptr<Tokenizer> tokenizer = tokenizer_from_model(bytes.str(), "tokenizer.model");
  Vocabulary v;
  v.encode = [&](std::string_view s) { return tokenizer->encode(s, false, false); };
  v.chat = [&](std::string_view s) {
    const ChatTemplate chat(chat_family_named("inst"));
    return chat.tokens(*tokenizer, chat.text(*tokenizer, {{"user", std::string(s), ""}}, {}));
  };
  v.piece = [&](int32_t id) { return tokenizer->piece(id); };
  v.size = tokenizer->vocab_size();
  v.bos_id = tokenizer->bos_id();
  v.eos_id = tokenizer->eos_id();
  const PromptForm form = prompt_form(v);
  std::vector<int32_t> ids = form.open;
  append(ids, v.encode("Ada Frost lives in Lisbon. The telephone number of Otto Pike is 482913. "
                       "The amber lantern was "
                       "hidden in Oslo."));
  append(ids, make_question(Task::PERSON, 0, "What is the telephone number of Otto Pike?", "x", {},
                            v, form)
                  .tail);
  std::vector<int32_t> expected;
  for (const auto& prompt : nlohmann::json::parse(golden)) {
    if (prompt["name"] == "facts") expected = prompt["ids"].get<std::vector<int32_t>>();
  }
  CHECK(ids == expected);
  CHECK(form.is_chat);
  CHECK(form.marks_words);
  CHECK(form.newline.size() == 1);
  CHECK(std::count(form.ends_sentence.begin(), form.ends_sentence.end(), 1) == 3);
}

}  // namespace
}  // namespace riffle::eval
