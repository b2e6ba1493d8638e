#include "measure/commands/eval/tasks.h"

#include <algorithm>
#include <stdexcept>

#include "kernels/common/splitmix64.h"
#include "measure/commands/eval/facts_data.h"

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

// Draws strings until one is unused, and takes it. The number of strings of each kind is limited.
template <typename Draw>
std::string unused(std::set<std::string>& used, Draw draw) {
  for (int i = 0; i < 10000; ++i) {
    std::string s = draw();
    if (used.insert(s).second) return s;
  }
  throw std::runtime_error(
      "too many questions of one kind for one document: no names are left for them");
}

Fact make_passkey(Random& random, std::set<std::string>& used) {
  used.insert("passkey");
  const std::string value = digits(random, 5), name = choose(facts::kPasskeyNames, random);
  Fact fact{};
  fact.task = Task::PASSKEY;
  fact.statements = {fill(choose(facts::kPasskeyStatements, random), {{"w", name}, {"v", value}})};
  fact.question = fill(facts::kPasskeyQuestion, {{"w", name}});
  fact.answer = fill(facts::kPasskeyAnswer, {{"w", name}, {"v", value}});
  fact.values = {value};
  return fact;
}

// Draws a value of a kind: "4827391", "9f03ac1e", "misty hat".
std::string magic_value(const std::string& kind, Random& random) {
  if (kind == "number") return digits(random, 7);
  if (kind == "code") return hex_digits(random, 8);
  const std::string adjective = choose(facts::kAdjectives, random);
  return adjective + " " + choose(facts::kNouns, random);
}

// Makes needles of one kind: n_keys keys with n_values values each are asked for, and n_others
// other keys have one value each.
Fact make_needles(Task task, int n_keys, int n_values, int n_others, Random& random,
                  std::set<std::string>& used) {
  Strings keys;
  const std::string kind = choose(facts::kMagicKinds, random);
  std::set<std::string> taken;  // an answer with the same value twice could not be marked
  Fact fact{};
  fact.task = task;
  const auto needle = [&](const std::string& key, const std::string& value) {
    return fill(facts::kMagicStatement, {{"kind", kind}, {"k", key}, {"v", value}});
  };
  const auto new_key = [&] { return unused(used, [&] { return dashed_key(random); }); };
  const auto new_value = [&] { return unused(taken, [&] { return magic_value(kind, random); }); };
  for (int k = 0; k < n_keys; ++k) {
    keys.push_back(new_key());
    for (int i = 0; i < n_values; ++i) {
      fact.values.push_back(new_value());
      fact.statements.push_back(needle(keys.back(), fact.values.back()));
    }
  }
  for (int i = 0; i < n_others; ++i) {
    const std::string key = new_key();
    fact.others.push_back(needle(key, new_value()));
  }
  const bool one = n_keys * n_values == 1;
  const std::string asked = listing(keys), answer = listing(fact.values);
  fact.question = fill(one ? facts::kMagicQuestionOne : facts::kMagicQuestionMany,
                       {{"kind", kind}, {"k", asked}});
  fact.answer = fill(one ? facts::kMagicAnswerOne : facts::kMagicAnswerMany,
                     {{"kind", kind}, {"k", asked}, {"v", answer}});
  return fact;
}

Fact make_magic(Random& random, std::set<std::string>& used) {
  const int n_values = random.unit() < 0.75 ? 1 : random.range(2, 4);
  return make_needles(Task::MAGIC, 1, n_values, 0, random, used);
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
    const std::string value =
        a.values ? std::string(a.values[random.below(a.n_values)]) : digits(random, a.n_digits);
    const std::string statement = fill(a.statement, {{"p", person}, {"v", value}});
    if (i > 0) {
      fact.others.push_back(statement);
      continue;
    }
    fact.statements = {statement};
    fact.question = fill(a.question, {{"p", person}});
    fact.answer = fill(a.answer, {{"p", person}, {"v", value}});
    fact.values = {value};
  }
  return fact;
}

Fact make_thing(Random& random, std::set<std::string>& used) {
  const std::string key = unused(used, [&] {
    const std::string adjective = choose(facts::kAdjectives, random);
    return adjective + " " + choose(facts::kNouns, random);
  });
  const bool hidden = random.unit() < 0.5;
  const std::string value =
      hidden ? choose(facts::kCities, random) : digits(random, random.range(2, 5));
  Fact fact{};
  fact.task = Task::THING;
  fact.statements = {
      fill(hidden ? facts::kHiddenStatement : facts::kPriceStatement, {{"k", key}, {"v", value}})};
  fact.question = fill(hidden ? facts::kHiddenQuestion : facts::kPriceQuestion, {{"k", key}});
  fact.answer =
      fill(hidden ? facts::kHiddenAnswer : facts::kPriceAnswer, {{"k", key}, {"v", value}});
  fact.values = {value};
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
  fact.values = names;
  return fact;
}

// Returns "a baker", "an engineer". It looks only at the first letter, which is right for the words
// of facts_data.h.
std::string with_article(const std::string& word) {
  return (std::string_view("aeiou").find(word[0]) == std::string_view::npos ? "a " : "an ") + word;
}

// A passage is one statement, with questions about its single facts. {a:j} is {j} with its article.
struct Passage {
  std::string_view text;
  struct Asked {
    std::string_view question, answer, value;  // value: "{name}", the placeholder that answers
  } asked[4];
};
constexpr Passage kPassages[] = {
    {"The harbour wall of {c} was built by {p}, {a:j} who had come there as a child. The work "
     "began on a {d} in spring "
     "and took {n} weeks. Stones were brought from {e}, and {q} kept the accounts, which came to "
     "{m} pounds in all. "
     "When it was done, the people of {c} put up {a:o} in memory of the builder.",
     {{"Who built the harbour wall of {c}?", "The harbour wall of {c} was built by {p}.", "{p}"},
      {"From which town were the stones for the harbour wall of {c} brought?",
       "The stones were brought from {e}.", "{e}"},
      {"How many pounds did the harbour wall of {c} cost?", "The harbour wall cost {m} pounds.",
       "{m}"},
      {"Who kept the accounts of the harbour wall of {c}?", "The accounts were kept by {q}.",
       "{q}"}}},
    {"In the museum of {c} there is {a:o} that belonged to {p}. It was found by {q}, {a:j}, in a "
     "cellar in {e}, where it "
     "had lain for {n} years. The museum paid {m} pounds for it. Every {d} it is carried through "
     "the streets, and "
     "visitors may touch it.",
     {{"To whom did the {o} in the museum of {c} belong?", "The {o} belonged to {p}.", "{p}"},
      {"In which town was the {o} of the museum of {c} found?", "The {o} was found in {e}.", "{e}"},
      {"How many years had the {o} of the museum of {c} lain in a cellar?",
       "It had lain there for {n} years.", "{n}"},
      {"On which day is the {o} of the museum of {c} carried through the streets?",
       "It is carried on {d}.", "{d}"}}},
    {"The expedition to {c} was led by {p}, whom the newspapers called {a:j}. It set out from {e} "
     "on a {d} with {n} "
     "porters. {q}, the second in command, lost {a:o} in the river, and searching for it cost the "
     "party {m} pounds. "
     "They came back late in autumn.",
     {{"Who led the expedition to {c}?", "The expedition to {c} was led by {p}.", "{p}"},
      {"From which town did the expedition to {c} set out?", "It set out from {e}.", "{e}"},
      {"How many porters did the expedition to {c} have?", "It had {n} porters.", "{n}"},
      {"Who was second in command of the expedition to {c}?", "The second in command was {q}.",
       "{q}"}}},
};

Fact make_passage(Random& random, std::set<std::string>& used) {
  const auto person = [&] {
    return unused(used, [&] {
      const std::string first = choose(facts::kFirstNames, random);
      return first + " " + choose(facts::kLastNames, random);
    });
  };
  size_t kind = 0;
  std::string city;
  unused(used, [&] {
    kind = random.below(std::size(kPassages));
    city = choose(facts::kCities, random);
    return "passage " + std::to_string(kind) + " " + city;
  });
  const Passage& passage = kPassages[kind];
  std::string from;
  do from = choose(facts::kCities, random);
  while (from == city);
  const std::string p = person(), q = person(), job = choose(facts::kJobs, random),
                    day = choose(facts::kDays, random), thing = choose(facts::kNouns, random),
                    weeks = digits(random, 2), pounds = digits(random, 4);
  const Passage::Asked& asked = passage.asked[random.below(std::size(passage.asked))];
  const auto filled = [&](std::string_view s) {
    return fill(s, {{"c", city},
                    {"e", from},
                    {"p", p},
                    {"q", q},
                    {"j", job},
                    {"d", day},
                    {"o", thing},
                    {"n", weeks},
                    {"m", pounds},
                    {"a:j", with_article(job)},
                    {"a:o", with_article(thing)}});
  };
  Fact fact{};
  fact.task = Task::PASSAGE;
  fact.statements = {filled(passage.text)};
  fact.question = filled(asked.question);
  fact.answer = filled(asked.answer);
  fact.values = {filled(asked.value)};
  return fact;
}

Fact make_needle(Random& random, std::set<std::string>& used) {
  const std::string key = unused(used, [&] { return dashed_key(random); });
  const std::string value = unused(used, [&] { return digits(random, 7); });
  Fact fact{};
  fact.task = Task::NEEDLE;
  fact.statements = {"The special magic number for " + key + " is " + value + "."};
  fact.question = "What is the special magic number for " + key + " mentioned in the text?";
  fact.answer = fact.statements[0];
  fact.values = {value};
  return fact;
}

Fact make_summary() {
  Fact fact{};
  fact.task = Task::SUMMARY;
  fact.question = "Summarise the text above in a few sentences.";
  fact.answer = "The text tells a story.";  // only its length counts
  return fact;
}

}  // namespace

std::string listing(const std::vector<std::string>& values) {
  std::string s;
  for (size_t i = 0; i < values.size(); ++i) {
    if (i > 0) s += i + 1 == values.size() ? " and " : ", ";
    s += values[i];
  }
  return s;
}

uint64_t Random::next() { return splitmix64_next(state_); }

uint64_t Random::below(uint64_t n) {
  const uint64_t limit = UINT64_MAX - UINT64_MAX % n;  // no modulo bias
  for (;;) {
    const uint64_t x = next();
    if (x < limit) return x % n;
  }
}

int Random::range(int low, int high) {
  return low + static_cast<int>(below(static_cast<uint64_t>(high - low) + 1));
}

double Random::unit() { return static_cast<double>(next() >> 11) * 0x1p-53; }

namespace {
constexpr const char* kTaskNames[kTasks] = {
    "passkey",    "magic",      "person",  "thing",  "vars",     "kv",     "multikey",
    "multivalue", "multiquery", "passage", "common", "frequent", "needle", "summary"};
}  // namespace

const char* task_name(Task task) { return kTaskNames[static_cast<int>(task)]; }

std::string task_names(const char* separator) {
  std::string names;
  for (const char* name : kTaskNames) names += (names.empty() ? "" : separator) + std::string(name);
  return names;
}

std::optional<Task> task_from_name(std::string_view name) {
  for (int i = 0; i < kTasks; ++i) {
    if (name == task_name(static_cast<Task>(i))) return static_cast<Task>(i);
  }
  return std::nullopt;
}

bool has_answer(Task task) { return task != Task::SUMMARY; }
bool is_whole(Task task) {
  return task == Task::KV || task == Task::COMMON || task == Task::FREQUENT;
}
bool shares_document(Task task) { return task != Task::COMMON && task != Task::FREQUENT; }

Fact make_fact(Task task, Random& random, std::set<std::string>& used) {
  switch (task) {
    case Task::PASSKEY: return make_passkey(random, used);
    case Task::MAGIC: return make_magic(random, used);
    case Task::PERSON: return make_person(random, used);
    case Task::THING: return make_thing(random, used);
    case Task::VARS: return make_vars(random, used);
    case Task::MULTIKEY: return make_needles(task, 1, 1, 7, random, used);
    case Task::MULTIVALUE: return make_needles(task, 1, 4, 0, random, used);
    case Task::MULTIQUERY: return make_needles(task, 4, 1, 0, random, used);
    case Task::PASSAGE: return make_passage(random, used);
    case Task::NEEDLE: return make_needle(random, used);
    case Task::SUMMARY: return make_summary();
    case Task::KV:
    case Task::COMMON:
    case Task::FREQUENT: break;
  }
  throw std::logic_error(std::string(task_name(task)) + " is a document of its own, not a fact");
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
    s += "\n" +
         fill(json_style ? facts::kKvLine : facts::kRegisterLine, {{"k", p.key}, {"v", p.value}});
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

WordList make_word_list(Task task, size_t n_words, Random& random) {
  constexpr size_t kAsked = 3;
  Strings words;  // most frequent first, so the words asked for come first
  std::vector<size_t> counts;
  if (task == Task::COMMON) {
    Strings all(std::begin(facts::kNouns), std::end(facts::kNouns));
    all.insert(all.end(), std::begin(facts::kAdjectives), std::end(facts::kAdjectives));
    random.shuffle(all);
    // The words asked for occur ten times as often as the others. In short lists each other word
    // occurs once.
    words = {all.begin(), all.begin() + static_cast<ptrdiff_t>(std::clamp<size_t>(
                                            n_words / 8, kAsked + 2, all.size()))};
    const size_t times = std::max<size_t>(1, n_words / (words.size() + 9 * kAsked));
    for (size_t i = 0; i < words.size(); ++i) counts.push_back(i < kAsked ? 10 * times : times);
  } else {
    // Zipf's law with exponent 2, as for RULER's frequent words: the frequency of the r-th word is
    // proportional to 1 / r^2.
    std::set<std::string> used;
    double share = 6 / (3.14159265358979 *
                        3.14159265358979);  // share of the first word: 1 over the sum of 1 / r^2
    for (size_t r = 1, left = n_words; left > 0; ++r) {
      words.push_back(unused(used, [&] {
        std::string s;
        for (int j = 0; j < 6; ++j) s += static_cast<char>('a' + random.below(26));
        return s;
      }));
      const double expected = share * static_cast<double>(n_words) / static_cast<double>(r * r);
      counts.push_back(std::min(left, std::max<size_t>(1, static_cast<size_t>(expected))));
      left -= counts.back();
    }
  }
  Strings entries;
  for (size_t i = 0; i < words.size(); ++i) entries.insert(entries.end(), counts[i], words[i]);
  random.shuffle(entries);
  WordList list;
  const bool common = task == Task::COMMON;
  list.text = common
                  ? "Below is a numbered list of words. Memorise the ones that appear most often."
                  : "Read the following coded text and track the frequency of each coded word.";
  for (size_t i = 0; i < entries.size(); ++i)
    list.text += common ? "\n" + std::to_string(i + 1) + ". " + entries[i]
                        : (i % 12 ? " " : "\n") + entries[i];
  list.values = {words.begin(),
                 words.begin() + static_cast<ptrdiff_t>(std::min(kAsked, words.size()))};
  list.question = common ? "What are the 3 most common words in the above list?"
                         : "What are the 3 most frequent words in the above coded text?";
  list.answer = (common ? "The 3 most common words are " : "The 3 most frequent words are ") +
                listing(list.values) + ".";
  return list;
}

bool answer_right(const Question& question, std::string_view text) {
  // Returns lower case, without a comma before exactly three digits, as in "1,234,567" but not in
  // "4827391,9917362", which is a list.
  const auto plain = [](std::string_view s) {
    const auto digit = [&](size_t i) { return i < s.size() && s[i] >= '0' && s[i] <= '9'; };
    std::string out;
    for (size_t i = 0; i < s.size(); ++i) {
      if (s[i] == ',' && i > 0 && digit(i - 1) && digit(i + 1) && digit(i + 2) && digit(i + 3) &&
          !digit(i + 4))
        continue;
      out += s[i] >= 'A' && s[i] <= 'Z' ? static_cast<char>(s[i] - 'A' + 'a') : s[i];
    }
    return out;
  };
  const std::string answer = plain(text);
  // Beyond ASCII, European letters (U+00C0 to U+052F, whose first byte is C3 to D4) are part of a
  // word. Quotation marks, dashes and the characters of languages without spaces between words are
  // not.
  const auto in_word = [&](size_t i) {
    if (i >= answer.size()) return false;
    const auto byte = [&] { return static_cast<unsigned char>(answer[i]); };
    while (i > 0 && (byte() & 0xc0) == 0x80) --i;
    return (byte() >= 'a' && byte() <= 'z') || (byte() >= '0' && byte() <= '9') ||
           (byte() >= 0xc3 && byte() <= 0xd4);
  };
  const auto named = [&](const std::string& value) {
    const std::string v = plain(value);
    for (size_t at = answer.find(v); at != std::string::npos; at = answer.find(v, at + 1)) {
      if ((at == 0 || !in_word(at - 1)) && !in_word(at + v.size())) return true;
    }
    return false;
  };
  return !question.values.empty() &&
         std::all_of(question.values.begin(), question.values.end(), named);
}

}  // namespace riffle::eval
