#include "cli/eval_tasks.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "cli/facts_data.h"

namespace riffle::eval {
namespace {

using Strings = std::vector<std::string>;

// Replaces {name} in the template by its value.
std::string fill(std::string_view pattern,
                 std::initializer_list<std::pair<std::string_view, std::string_view>> values) {
  std::string out;
  for (size_t i = 0; i < pattern.size();) {
    bool found = false;
    for (const auto& [name, value] : values) {
      if (pattern[i] == '{' && pattern.compare(i + 1, name.size(), name) == 0 &&
          pattern.substr(i + 1 + name.size(), 1) == "}") {
        out += value;
        i += name.size() + 2;
        found = true;
        break;
      }
    }
    if (!found) out += pattern[i++];
  }
  return out;
}

template <size_t N>
std::string choose(const std::string_view (&words)[N], Random& random) {
  return std::string(words[random.below(N)]);
}

std::string digits(Random& random, int n) {
  std::string s(1, static_cast<char>('1' + random.below(9)));
  while (static_cast<int>(s.size()) < n) s += static_cast<char>('0' + random.below(10));
  return s;
}

std::string hex_digits(Random& random, int n) {
  std::string s;
  while (static_cast<int>(s.size()) < n) s += "0123456789abcdef"[random.below(16)];
  return s;
}

std::string dashed_key(Random& random) {
  const std::string adjective = choose(facts::kAdjectives, random);
  return adjective + "-" + choose(facts::kNouns, random);
}

// "a", "a and b", "a, b and c"
std::string listing(const Strings& values) {
  std::string s;
  for (size_t i = 0; i < values.size(); ++i) {
    if (i > 0) s += i + 1 == values.size() ? " and " : ", ";
    s += values[i];
  }
  return s;
}

// Draws until it finds a string that is not taken, and takes it.
template <typename Draw>
std::string unused(std::set<std::string>& used, Draw draw) {
  for (;;) {
    std::string s = draw();
    if (used.insert(s).second) return s;
  }
}

Fact make_passkey(Random& random, std::set<std::string>& used) {
  used.insert("passkey");
  const std::string value = digits(random, 5), name = choose(facts::kPasskeyNames, random);
  Fact fact{};
  fact.task = Task::PASSKEY;
  fact.statements = {fill(choose(facts::kPasskeyStatements, random), {{"w", name}, {"v", value}})};
  fact.question = fill(facts::kPasskeyQuestion, {{"w", name}});
  fact.answer = fill(facts::kPasskeyAnswer, {{"w", name}, {"v", value}});
  return fact;
}

Fact make_magic(Random& random, std::set<std::string>& used) {
  const std::string key = unused(used, [&] { return dashed_key(random); });
  const int n = random.unit() < 0.75 ? 1 : random.range(2, 4);
  const std::string kind = choose(facts::kMagicKinds, random);
  std::set<std::string> taken;  // a list that names a value twice could not be marked
  Fact fact{};
  fact.task = Task::MAGIC;
  Strings values;
  for (int i = 0; i < n; ++i) {
    values.push_back(unused(taken, [&] {
      if (kind == "number") return digits(random, 7);
      if (kind == "code") return hex_digits(random, 8);
      const std::string adjective = choose(facts::kAdjectives, random);
      return adjective + " " + choose(facts::kNouns, random);
    }));
    fact.statements.push_back(fill(facts::kMagicStatement, {{"kind", kind}, {"k", key}, {"v", values.back()}}));
  }
  const bool one = n == 1;
  fact.question = fill(one ? facts::kMagicQuestionOne : facts::kMagicQuestionMany, {{"kind", kind}, {"k", key}});
  const std::string_view pattern = one ? facts::kMagicAnswerOne : facts::kMagicAnswerMany;
  fact.answer = fill(pattern, {{"kind", kind}, {"k", key}, {"v", listing(values)}});
  if (!one) {
    fact.prefix = fill(pattern.substr(0, pattern.find("{v}")), {{"kind", kind}, {"k", key}});
    fact.values = values;
  }
  return fact;
}

Fact make_person(Random& random, std::set<std::string>& used) {
  const std::string person = unused(used, [&] {
    const std::string first = choose(facts::kFirstNames, random);
    return first + " " + choose(facts::kLastNames, random);
  });
  std::vector<size_t> order(std::size(facts::kPersonAttributes));
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  random.shuffle(order);
  constexpr int kCounts[] = {1, 1, 2, 3};
  const int n = kCounts[random.below(4)];
  Fact fact{};
  fact.task = Task::PERSON;
  for (int i = 0; i < n; ++i) {
    const facts::PersonAttribute& a = facts::kPersonAttributes[order[i]];
    const std::string value = a.values ? std::string(a.values[random.below(a.n_values)]) : digits(random, a.n_digits);
    const std::string statement = fill(a.statement, {{"p", person}, {"v", value}});
    if (i > 0) {
      fact.others.push_back(statement);
      continue;
    }
    fact.statements = {statement};
    fact.question = fill(a.question, {{"p", person}});
    fact.answer = fill(a.answer, {{"p", person}, {"v", value}});
  }
  return fact;
}

Fact make_thing(Random& random, std::set<std::string>& used) {
  const std::string key = unused(used, [&] {
    const std::string adjective = choose(facts::kAdjectives, random);
    return adjective + " " + choose(facts::kNouns, random);
  });
  const bool hidden = random.unit() < 0.5;
  const std::string value = hidden ? choose(facts::kCities, random) : digits(random, random.range(2, 5));
  Fact fact{};
  fact.task = Task::THING;
  fact.statements = {fill(hidden ? facts::kHiddenStatement : facts::kPriceStatement, {{"k", key}, {"v", value}})};
  fact.question = fill(hidden ? facts::kHiddenQuestion : facts::kPriceQuestion, {{"k", key}});
  fact.answer = fill(hidden ? facts::kHiddenAnswer : facts::kPriceAnswer, {{"k", key}, {"v", value}});
  return fact;
}

Fact make_vars(Random& random, std::set<std::string>& used) {
  const int n = random.range(2, 5);
  const std::string value = unused(used, [&] { return digits(random, 5); });
  Strings names;
  for (int i = 0; i < n; ++i) {
    names.push_back(unused(used, [&] {
      std::string s;
      for (int j = 0; j < 3; ++j) s += static_cast<char>('A' + random.below(26));
      return s;
    }));
  }
  Fact fact{};
  fact.task = Task::VARS;
  fact.statements = {fill(facts::kVarsFirst, {{"k", names[0]}, {"v", value}})};
  for (int i = 1; i < n; ++i) {
    fact.statements.push_back(fill(facts::kVarsNext, {{"k", names[i]}, {"v", names[i - 1]}}));
  }
  fact.question = fill(facts::kVarsQuestion, {{"v", value}});
  fact.answer = fill(facts::kVarsAnswer, {{"v", value}, {"k", listing(names)}});
  fact.prefix = fill(facts::kVarsAnswer.substr(0, facts::kVarsAnswer.find("{k}")), {{"v", value}});
  fact.values = names;
  return fact;
}

void append(std::vector<int32_t>& to, const std::vector<int32_t>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

Question make_question(Task task, double depth, const std::string& text, const std::string& answer,
                       const Vocabulary& vocabulary, const PromptForm& form) {
  Question q{};
  q.task = task;
  q.depth = depth;
  q.question_text = text;
  q.answer_text = answer;
  // The newline follows the document at once: the space that sentencepiece puts before a text is dropped.
  const std::vector<int32_t> ids = vocabulary.encode("\n" + text);
  q.tail.assign(ids.begin() + 1, ids.end());
  append(q.tail, form.close);
  q.answer = vocabulary.encode(answer);
  q.answer.push_back(form.eos);
  return q;
}

// Where in [0, 1) the question in `slot` of the document's slots is to stand: even over the document, and even over
// the documents within the slot.
double slot_depth(size_t slot, size_t n_slots, int index, int count) {
  return (static_cast<double>(slot) + (index + 0.5) / count) / static_cast<double>(n_slots);
}

std::vector<size_t> shuffled_slots(size_t n, Random& random) {
  std::vector<size_t> slots(n);
  for (size_t i = 0; i < n; ++i) slots[i] = i;
  random.shuffle(slots);
  return slots;
}

Document build_register(const DocumentPlan& plan, int length, int index, int count, const Vocabulary& vocabulary,
                        const PromptForm& form, Random& random) {
  size_t n_pairs = std::max<size_t>(std::min(length, 16000) / 24, plan.tasks.size());
  for (;;) {
    const Register reg = make_register(n_pairs, random);
    Document doc{};
    doc.is_register = true;
    doc.tokens = {form.bos};
    append(doc.tokens, form.open);
    append(doc.tokens, vocabulary.encode(reg.text()));
    doc.is_text.assign(doc.tokens.size(), 0);
    size_t longest = 0;
    const std::vector<size_t> slots = shuffled_slots(plan.tasks.size(), random);
    for (size_t i = 0; i < plan.tasks.size(); ++i) {
      const double depth = slot_depth(slots[i], slots.size(), index, count);
      const size_t pair = std::min(n_pairs - 1, static_cast<size_t>(depth * static_cast<double>(n_pairs)));
      doc.questions.push_back(make_question(Task::KV, depth, reg.question(pair), reg.answer(pair), vocabulary, form));
      longest = std::max(longest, doc.questions.back().tail.size() + doc.questions.back().answer.size());
    }
    const size_t total = doc.tokens.size() + longest;
    if (total <= static_cast<size_t>(length)) return doc;
    // Lines of hexadecimal keys and values can take more than the 24 tokens reckoned with.
    const size_t fewer = std::min(n_pairs - 1, n_pairs * static_cast<size_t>(length) / total);
    if (fewer < plan.tasks.size()) {
      throw std::runtime_error("a register of " + std::to_string(plan.tasks.size()) + " questions does not fit into " +
                               std::to_string(length) + " tokens");
    }
    n_pairs = fewer;
  }
}

// A tokenised statement and the text position behind which it goes.
struct Insertion {
  size_t after;  // index in the stretch of text
  std::vector<int32_t> tokens;
};

}  // namespace

uint64_t Random::next() {
  state_ += 0x9e3779b97f4a7c15u;
  uint64_t z = state_;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

uint64_t Random::below(uint64_t n) {
  const uint64_t limit = UINT64_MAX - UINT64_MAX % n;  // no modulo bias
  for (;;) {
    const uint64_t x = next();
    if (x < limit) return x % n;
  }
}

int Random::range(int low, int high) { return low + static_cast<int>(below(static_cast<uint64_t>(high - low) + 1)); }

double Random::unit() { return static_cast<double>(next() >> 11) * 0x1p-53; }

const char* task_name(Task task) {
  constexpr const char* kNames[kTasks] = {"passkey", "magic", "person", "thing", "vars", "kv"};
  return kNames[static_cast<int>(task)];
}

std::optional<Task> task_from_name(std::string_view name) {
  for (int i = 0; i < kTasks; ++i) {
    if (name == task_name(static_cast<Task>(i))) return static_cast<Task>(i);
  }
  return std::nullopt;
}

Fact make_fact(Task task, Random& random, std::set<std::string>& used) {
  switch (task) {
    case Task::PASSKEY: return make_passkey(random, used);
    case Task::MAGIC: return make_magic(random, used);
    case Task::PERSON: return make_person(random, used);
    case Task::THING: return make_thing(random, used);
    case Task::VARS: return make_vars(random, used);
    case Task::KV: break;
  }
  throw std::logic_error("kv is a document of its own, not a fact");
}

Register make_register(size_t n_pairs, Random& random) {
  Register reg{};
  const bool hex_keys = random.unit() < 0.5;
  std::set<std::string> used;
  while (reg.pairs.size() < n_pairs) {
    KvPair pair;
    pair.key = unused(used, [&] { return hex_keys ? hex_digits(random, 8) : dashed_key(random); });
    const double kind = random.unit();
    if (kind < 0.55) {
      pair.value = digits(random, random.range(4, 8));
    } else {
      pair.value = kind < 0.75 ? choose(facts::kNouns, random) : hex_digits(random, 8);
    }
    reg.pairs.push_back(std::move(pair));
  }
  reg.json_style = random.unit() < 0.5;
  return reg;
}

std::string Register::text() const {
  std::string s(json_style ? facts::kKvHeading : facts::kRegisterHeading);
  for (const KvPair& p : pairs) {
    s += "\n" + fill(json_style ? facts::kKvLine : facts::kRegisterLine, {{"k", p.key}, {"v", p.value}});
  }
  return s;
}

std::string Register::question(size_t pair) const {
  return fill(json_style ? facts::kKvQuestion : facts::kRegisterQuestion, {{"k", pairs[pair].key}});
}

std::string Register::answer(size_t pair) const {
  return fill(json_style ? facts::kKvAnswer : facts::kRegisterAnswer,
              {{"k", pairs[pair].key}, {"v", pairs[pair].value}});
}

PromptForm prompt_form(const Vocabulary& vocabulary) {
  PromptForm form{};
  form.bos = vocabulary.bos_id;
  form.eos = vocabulary.eos_id;
  form.newline = -1;
  form.ends_sentence.assign(vocabulary.size, 0);
  bool has_open = false, has_close = false;
  for (int32_t id = 0; id < vocabulary.size; ++id) {
    const char* piece = vocabulary.piece(id);
    if (!piece) continue;
    if (!std::strcmp(piece, "<0x0A>")) form.newline = id;
    has_open |= !std::strcmp(piece, "[INST]");
    has_close |= !std::strcmp(piece, "[/INST]");
    for (const char* end : {".", "!", "?"}) form.ends_sentence[id] |= !std::strcmp(piece, end);
  }
  if (form.bos < 0 || form.eos < 0 || form.newline < 0 || !has_open || !has_close) {
    throw std::runtime_error(
        "the vocabulary lacks a piece of the prompt form (<s>, </s>, [INST], [/INST], <0x0A>); "
        "eval asks in the form that riffle-27m-32k was trained on");
  }
  // Encoded beside a word, so that the pieces are those of running text.
  const std::vector<int32_t> open = vocabulary.encode("[INST] x"), close = vocabulary.encode("x [/INST]");
  form.open.assign(open.begin(), open.begin() + std::min<ptrdiff_t>(2, std::ssize(open)));
  form.close.assign(close.end() - std::min<ptrdiff_t>(2, std::ssize(close)), close.end());
  return form;
}

std::vector<int32_t> encode_text(const Vocabulary& vocabulary, std::string_view text) {
  constexpr size_t kPiece = 4000;  // bytes; tools/train's tokenize_books uses the same
  std::vector<int32_t> ids;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = std::min(text.size(), begin + kPiece);
    if (end < text.size()) {
      const size_t newline = text.find('\n', end);
      end = newline == std::string_view::npos ? text.size() : newline + 1;
    }
    append(ids, vocabulary.encode(text.substr(begin, end - begin)));
    begin = end;
  }
  return ids;
}

std::vector<DocumentPlan> plan_documents(const std::vector<Task>& tasks, int n_questions, int per_document,
                                         int length) {
  per_document = std::max(1, std::min(per_document, length / 100));
  const int n_tasks = static_cast<int>(tasks.size());
  int quota[kTasks] = {};
  for (int i = 0; i < n_tasks; ++i)
    quota[static_cast<int>(tasks[i])] = n_questions / n_tasks + (i < n_questions % n_tasks);

  std::vector<Task> once, often;  // by how many of them a document may hold
  int n_hidden = 0;               // questions about facts hidden in text
  for (Task t : tasks) {
    if (t == Task::KV) continue;
    (t == Task::PASSKEY || t == Task::VARS ? once : often).push_back(t);
    n_hidden += quota[static_cast<int>(t)];
  }
  if (!often.empty()) {
    const int documents = (n_hidden + per_document - 1) / per_document;
    size_t next = 0;
    for (Task t : once) {
      for (int& n = quota[static_cast<int>(t)]; n > documents; --n) {
        ++quota[static_cast<int>(often[next++ % often.size()])];
      }
    }
  }

  std::vector<DocumentPlan> plans;
  while (n_hidden > 0) {
    DocumentPlan plan{};
    const auto take = [&](Task t) {
      --quota[static_cast<int>(t)];
      --n_hidden;
      plan.tasks.push_back(t);
    };
    const auto fewer_left = [&](Task a, Task b) { return quota[static_cast<int>(a)] < quota[static_cast<int>(b)]; };
    std::stable_sort(once.begin(), once.end(), [&](Task a, Task b) { return fewer_left(b, a); });
    for (Task t : once) {
      if (quota[static_cast<int>(t)] > 0 && static_cast<int>(plan.tasks.size()) < per_document) take(t);
    }
    while (!often.empty() && static_cast<int>(plan.tasks.size()) < per_document) {
      // The task with most questions left comes next, so that tasks mix in every document.
      const Task t = *std::max_element(often.begin(), often.end(), fewer_left);
      if (quota[static_cast<int>(t)] == 0) break;
      take(t);
    }
    plans.push_back(std::move(plan));
  }
  for (int left = quota[static_cast<int>(Task::KV)]; left > 0; left -= per_document) {
    plans.push_back({true, std::vector<Task>(std::min(left, per_document), Task::KV)});
  }
  return plans;
}

Document build_document(const DocumentPlan& plan, int length, int index, int count, const std::vector<int32_t>& text,
                        const Vocabulary& vocabulary, const PromptForm& form, Random& random) {
  if (plan.is_register) return build_register(plan, length, index, count, vocabulary, form, random);
  std::set<std::string> used;
  std::vector<Fact> facts;
  for (Task task : plan.tasks) facts.push_back(make_fact(task, random, used));
  Strings distractors;
  for (int i = 0; i < length / 2000; ++i) {
    const Fact f = make_fact(Task::MAGIC, random, used);
    distractors.insert(distractors.end(), f.statements.begin(), f.statements.end());
  }

  Document doc{};
  const std::vector<size_t> slots = shuffled_slots(facts.size(), random);
  size_t taken = 1 + form.open.size(), longest = 0;
  std::vector<std::vector<std::vector<int32_t>>> statements(facts.size());
  std::vector<std::vector<int32_t>> others;
  for (size_t i = 0; i < facts.size(); ++i) {
    const double depth = slot_depth(slots[i], slots.size(), index, count);
    Question q = make_question(facts[i].task, depth, facts[i].question, facts[i].answer, vocabulary, form);
    q.prefix = facts[i].prefix;
    q.values = facts[i].values;
    longest = std::max(longest, q.tail.size() + q.answer.size());
    doc.questions.push_back(std::move(q));
    for (const std::string& s : facts[i].statements) statements[i].push_back(vocabulary.encode(s));
    for (const std::string& s : facts[i].others) others.push_back(vocabulary.encode(s));
    for (const auto& ids : statements[i]) taken += ids.size();
  }
  for (const std::string& s : distractors) others.push_back(vocabulary.encode(s));
  for (const auto& ids : others) taken += ids.size();
  if (taken + longest + 64 > static_cast<size_t>(length)) {
    throw std::runtime_error("a document of " + std::to_string(facts.size()) + " questions does not fit into " +
                             std::to_string(length) + " tokens");
  }
  const size_t n = static_cast<size_t>(length) - taken - longest;
  if (text.size() < n) {
    throw std::runtime_error("the text has " + std::to_string(text.size()) + " tokens; a document of " +
                             std::to_string(length) + " tokens needs " + std::to_string(n));
  }
  const size_t begin = random.below(text.size() - n + 1);
  std::vector<size_t> ends;
  for (size_t i = 0; i < n; ++i) {
    if (form.ends_sentence[text[begin + i]]) ends.push_back(i);
  }
  if (ends.empty()) ends.push_back(n - 1);
  const auto random_end = [&] { return ends[random.below(ends.size())]; };

  std::vector<Insertion> insertions;
  for (size_t i = 0; i < facts.size(); ++i) {
    std::vector<size_t> places;
    if (statements[i].size() == 1) {
      // The sentence end nearest to the wanted depth in tokens.
      const double want = doc.questions[i].depth * static_cast<double>(n);
      const auto it = std::lower_bound(ends.begin(), ends.end(), static_cast<size_t>(want));
      places.push_back(it == ends.end() ? ends.back() : *it);
    } else {
      for (size_t j = 0; j < statements[i].size(); ++j) places.push_back(random_end());
      std::sort(places.begin(), places.end());
      doc.questions[i].depth = static_cast<double>(places[0]) / static_cast<double>(n);
    }
    for (size_t j = 0; j < places.size(); ++j) insertions.push_back({places[j], std::move(statements[i][j])});
  }
  for (auto& ids : others) insertions.push_back({random_end(), std::move(ids)});
  // Stable: statements of one chain that meet behind one sentence keep their order.
  std::stable_sort(insertions.begin(), insertions.end(),
                   [](const Insertion& a, const Insertion& b) { return a.after < b.after; });

  doc.tokens = {form.bos};
  append(doc.tokens, form.open);
  doc.is_text.assign(doc.tokens.size(), 0);
  size_t next = 0;
  for (size_t i = 0; i < n; ++i) {
    const int32_t id = text[begin + i];
    doc.tokens.push_back(id == form.eos ? form.newline : id);  // </s> between books would end the prompt
    doc.is_text.push_back(1);
    for (; next < insertions.size() && insertions[next].after == i; ++next) {
      append(doc.tokens, insertions[next].tokens);
      doc.is_text.resize(doc.tokens.size(), 0);
    }
  }
  return doc;
}

std::optional<Strings> listed_values(std::string_view text, std::string_view prefix) {
  if (text.size() <= prefix.size() || text.substr(0, prefix.size()) != prefix || text.back() != '.')
    return std::nullopt;
  std::string_view rest = text.substr(prefix.size(), text.size() - prefix.size() - 1);
  Strings values;
  const size_t last = rest.rfind(" and ");
  std::string_view head = last == std::string_view::npos ? rest : rest.substr(0, last);
  while (!head.empty()) {
    const size_t comma = head.find(", ");
    values.emplace_back(head.substr(0, comma));
    head = comma == std::string_view::npos ? std::string_view() : head.substr(comma + 2);
  }
  if (last != std::string_view::npos) values.emplace_back(rest.substr(last + 5));
  return values;
}

bool answer_right(const Question& question, std::string_view text) {
  if (question.values.empty()) return text == question.answer_text;
  std::optional<Strings> found = listed_values(text, question.prefix);
  if (!found) return false;
  return std::set<std::string>(found->begin(), found->end()) ==
         std::set<std::string>(question.values.begin(), question.values.end());
}

}  // namespace riffle::eval
