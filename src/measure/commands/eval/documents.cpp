// Documents of `riffle eval`: prompts in a model's own form, facts spliced into real text, and the
// distribution of questions over documents.
#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "measure/commands/eval/tasks.h"

namespace riffle::eval {
namespace {

void append(std::vector<int32_t>& to, const std::vector<int32_t>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

// Returns the number of tokens that a prompt needs after its document.
size_t tokens_after(const Question& q, int answer_tokens) {
  return q.tail.size() + std::max(q.answer.size(), static_cast<size_t>(answer_tokens));
}

// Returns the place in [0, 1) for the question in `slot` of a document's slots. Slots are spread
// evenly over the document, and the places within a slot evenly over the documents.
double slot_depth(size_t slot, size_t n_slots, int index, int count) {
  return (static_cast<double>(slot) + (index + 0.5) / count) / static_cast<double>(n_slots);
}

std::vector<size_t> shuffled_slots(size_t n, Random& random) {
  std::vector<size_t> slots(n);
  for (size_t i = 0; i < n; ++i) slots[i] = i;
  random.shuffle(slots);
  return slots;
}

// Builds a document that is made for its questions, with the most entries (lines, words) that fit
// in `length`. of_entries(n) gives the document's text with n entries, and its questions.
template <typename OfEntries>
Document build_whole(size_t n_entries, size_t fewest, int length, int answer_tokens,
                     const Vocabulary& vocabulary, const PromptForm& form, OfEntries of_entries) {
  for (;;) {
    Document doc{};
    doc.is_whole = true;
    doc.tokens = form.open;
    append(doc.tokens, vocabulary.encode(of_entries(n_entries, doc)));
    doc.is_text.assign(doc.tokens.size(), 0);
    size_t longest = 0;
    for (const Question& q : doc.questions)
      longest = std::max(longest, tokens_after(q, answer_tokens));
    const size_t total = doc.tokens.size() + longest;
    if (total <= static_cast<size_t>(length)) return doc;
    // Entries can take more tokens than estimated.
    const size_t fewer = std::min(n_entries - 1, n_entries * static_cast<size_t>(length) / total);
    if (fewer < fewest) {
      throw std::runtime_error("a document of " + std::to_string(doc.questions.size()) +
                               " questions (" + task_name(doc.questions[0].task) +
                               ") does not fit into " + std::to_string(length) + " tokens");
    }
    n_entries = fewer;
  }
}

Document build_register(const DocumentPlan& plan, int length, int answer_tokens, int index,
                        int count, const Vocabulary& vocabulary, const PromptForm& form,
                        Random& random) {
  const size_t n_questions = plan.tasks.size();
  const size_t n_pairs =
      std::max<size_t>(static_cast<size_t>(std::min(length, 16000)) / 24, n_questions);
  return build_whole(
      n_pairs, n_questions, length, answer_tokens, vocabulary, form, [&](size_t n, Document& doc) {
        const Register reg = make_register(n, random);
        const std::vector<size_t> slots = shuffled_slots(n_questions, random);
        for (size_t i = 0; i < n_questions; ++i) {
          const double depth = slot_depth(slots[i], slots.size(), index, count);
          const size_t pair = std::min(n - 1, static_cast<size_t>(depth * static_cast<double>(n)));
          doc.questions.push_back(make_question(Task::KV, depth, reg.question(pair),
                                                reg.answer(pair), {reg.pairs[pair].value},
                                                vocabulary, form));
        }
        return reg.text();
      });
}

Document build_word_list(Task task, int length, int answer_tokens, const Vocabulary& vocabulary,
                         const PromptForm& form, Random& random) {
  constexpr size_t kFewest =
      60;  // with fewer, the most frequent words may not be the ones asked for
  return build_whole(std::max<size_t>(static_cast<size_t>(length) / 3, kFewest), kFewest, length,
                     answer_tokens, vocabulary, form, [&](size_t n, Document& doc) {
                       const WordList list = make_word_list(task, n, random);
                       doc.questions.push_back(make_question(task, 0, list.question, list.answer,
                                                             list.values, vocabulary, form));
                       return list.text;
                     });
}

// A tokenised statement and the text position after which it goes.
struct Insertion {
  size_t after;  // index in the stretch of text
  std::vector<int32_t> tokens;
};

}  // namespace

Question make_question(Task task, double depth, const std::string& text, const std::string& answer,
                       const std::vector<std::string>& values, const Vocabulary& vocabulary,
                       const PromptForm& form) {
  Question q{};
  q.task = task;
  q.depth = depth;
  q.question_text = text;
  q.answer_text = answer;
  q.values = values;
  q.tail = encode_directly(vocabulary, form, "\n" + text);
  append(q.tail, form.close);
  q.answer = vocabulary.encode(answer);
  q.answer.push_back(form.eos);
  return q;
}

PromptForm prompt_form(const Vocabulary& vocabulary) {
  constexpr std::string_view kMark = "\xe2\x96\x81";  // sentencepiece's mark of a space
  PromptForm form{};
  form.eos = vocabulary.eos_id;
  form.ends_sentence.assign(static_cast<size_t>(vocabulary.size), 0);
  bool any = false;
  for (int32_t id = 0; id < vocabulary.size; ++id) {
    const char* piece = vocabulary.piece(id);
    if (!piece) continue;
    for (const std::string_view end : {".", "!", "?"})
      form.ends_sentence[static_cast<size_t>(id)] |= piece == end;
    any |= form.ends_sentence[static_cast<size_t>(id)];
  }
  const std::vector<int32_t> word = vocabulary.encode("x");
  const char* first = word.empty() ? nullptr : vocabulary.piece(word[0]);
  if (!any || !first || form.eos < 0) {
    throw std::runtime_error(
        "the vocabulary lacks tokens that prompts need, expected tokens for \".\", \"x\" and the "
        "end of a text");
  }
  form.marks_words = std::string_view(first).starts_with(kMark);
  form.newline = encode_directly(vocabulary, form, "\n");
  const std::vector<int32_t> one = vocabulary.chat("x");
  form.is_chat = !one.empty();
  if (!form.is_chat) {
    if (vocabulary.bos_id >= 0) form.open = {vocabulary.bos_id};
    form.close = encode_directly(vocabulary, form, "\nAnswer:");
    return form;
  }
  // The form is the text that two conversations have in common on either side of their messages.
  const std::vector<int32_t> other = vocabulary.chat("1");
  const size_t shorter = std::min(one.size(), other.size());
  size_t before = 0, after = 0;
  while (before < shorter && one[before] == other[before]) ++before;
  while (after < shorter - before && one[one.size() - 1 - after] == other[other.size() - 1 - after])
    ++after;
  form.open.assign(one.begin(), one.begin() + static_cast<ptrdiff_t>(before));
  form.close.assign(one.end() - static_cast<ptrdiff_t>(after), one.end());
  return form;
}

std::vector<int32_t> encode_after_space(const Vocabulary& vocabulary, const PromptForm& form,
                                        std::string_view text) {
  return vocabulary.encode(form.marks_words ? std::string(text) : " " + std::string(text));
}

std::vector<int32_t> encode_directly(const Vocabulary& vocabulary, const PromptForm& form,
                                     std::string_view text) {
  std::vector<int32_t> ids = vocabulary.encode(text);
  // Texts here begin with a character that no word has, so the mark of a space before the text is a
  // separate token.
  if (form.marks_words && !ids.empty()) ids.erase(ids.begin());
  return ids;
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

std::vector<Task> spread_tasks(const std::vector<Task>& tasks, int n_questions) {
  const size_t n = static_cast<size_t>(std::max(n_questions, 1));
  if (n >= tasks.size()) return tasks;
  std::vector<Task> spread;
  for (size_t i = 0; i < n; ++i) spread.push_back(tasks[i * tasks.size() / n]);
  return spread;
}

std::vector<DocumentPlan> plan_documents(const std::vector<Task>& tasks, int n_questions,
                                         int per_document, int length) {
  per_document = std::max(1, std::min(per_document, length / 100));
  const int n_tasks = static_cast<int>(tasks.size());
  int quota[kTasks] = {};
  const auto left = [&](Task t) -> int& { return quota[static_cast<int>(t)]; };
  for (int i = 0; i < n_tasks; ++i)
    left(tasks[static_cast<size_t>(i)]) = n_questions / n_tasks + (i < n_questions % n_tasks);

  std::vector<Task> once, often;  // tasks that a document may hold once, and many times
  int n_hidden = 0;               // number of questions about real text and facts hidden in it
  for (Task t : tasks) {
    if (is_whole(t)) continue;
    (t == Task::PASSKEY || t == Task::VARS || t == Task::SUMMARY ? once : often).push_back(t);
    n_hidden += left(t);
  }
  if (!often.empty()) {
    const int documents = (n_hidden + per_document - 1) / per_document;
    size_t next = 0;
    for (Task t : once) {
      for (; left(t) > documents; --left(t)) ++left(often[next++ % often.size()]);
    }
  }

  std::vector<DocumentPlan> plans;
  while (n_hidden > 0) {
    DocumentPlan plan{Task::MAGIC, {}};
    const auto room = [&] { return static_cast<int>(plan.tasks.size()) < per_document; };
    const auto take = [&](Task t) {
      --left(t);
      --n_hidden;
      plan.tasks.push_back(t);
    };
    const auto fewer_left = [&](Task a, Task b) { return left(a) < left(b); };
    std::stable_sort(once.begin(), once.end(), [&](Task a, Task b) { return fewer_left(b, a); });
    for (Task t : once) {
      if (left(t) > 0 && room()) take(t);
    }
    while (!often.empty() && room()) {
      // The task with the most questions left comes next, so that every document mixes tasks.
      const Task t = *std::max_element(often.begin(), often.end(), fewer_left);
      if (left(t) == 0) break;
      take(t);
    }
    plans.push_back(std::move(plan));
  }
  for (Task t : tasks) {
    if (!is_whole(t)) continue;
    const int each = shares_document(t) ? per_document : 1;
    for (int n = left(t); n > 0; n -= each)
      plans.push_back({t, std::vector<Task>(static_cast<size_t>(std::min(n, each)), t)});
  }
  return plans;
}

namespace {
using Statements = std::vector<std::vector<int32_t>>;

// Places statements in a text of n tokens whose sentences end at `ends`. A question's only
// statement follows the first sentence that ends at or after its depth. Several statements follow
// random sentences, in order. Statements that belong to no question are placed anywhere.
std::vector<Insertion> place(std::vector<Question>& questions, std::vector<Statements> statements,
                             Statements others, const std::vector<size_t>& ends, size_t n,
                             Random& random) {
  const auto random_end = [&] { return ends[random.below(ends.size())]; };

  std::vector<Insertion> insertions;
  for (size_t i = 0; i < statements.size(); ++i) {
    std::vector<size_t> places;
    if (statements[i].empty()) {
      questions[i].depth = 0;  // the question is about the whole document
    } else if (statements[i].size() == 1) {
      // The first sentence end at or after the given depth in tokens.
      const double want = questions[i].depth * static_cast<double>(n);
      const auto it = std::lower_bound(ends.begin(), ends.end(), static_cast<size_t>(want));
      places.push_back(it == ends.end() ? ends.back() : *it);
    } else {
      for (size_t j = 0; j < statements[i].size(); ++j) places.push_back(random_end());
      std::sort(places.begin(), places.end());
      questions[i].depth = static_cast<double>(places[0]) / static_cast<double>(n);
    }
    for (size_t j = 0; j < places.size(); ++j)
      insertions.push_back({places[j], std::move(statements[i][j])});
  }
  for (auto& ids : others) insertions.push_back({random_end(), std::move(ids)});
  // Stable: statements of one chain after the same sentence keep their order.
  std::stable_sort(insertions.begin(), insertions.end(),
                   [](const Insertion& a, const Insertion& b) { return a.after < b.after; });
  return insertions;
}

// Writes the document: n tokens of text with the insertions, which are sorted by place.
void weave(Document& doc, const PromptForm& form, const int32_t* text, size_t n,
           const std::vector<Insertion>& insertions) {
  doc.tokens = form.open;
  doc.is_text.assign(doc.tokens.size(), 0);
  size_t next = 0;
  for (size_t i = 0; i < n; ++i) {
    doc.tokens.push_back(text[i]);
    doc.is_text.push_back(1);
    for (; next < insertions.size() && insertions[next].after == i; ++next) {
      append(doc.tokens, insertions[next].tokens);
      doc.is_text.resize(doc.tokens.size(), 0);
    }
  }
}

}  // namespace

Document build_document(const DocumentPlan& plan, int length, int answer_tokens, int index,
                        int count, const std::vector<int32_t>& text, const Vocabulary& vocabulary,
                        const PromptForm& form, Random& random) {
  if (plan.whole == Task::KV)
    return build_register(plan, length, answer_tokens, index, count, vocabulary, form, random);
  if (plan.is_whole())
    return build_word_list(plan.whole, length, answer_tokens, vocabulary, form, random);
  std::set<std::string> used;
  std::vector<Fact> facts;
  for (Task task : plan.tasks) facts.push_back(make_fact(task, random, used));
  std::vector<std::string> distractors;
  const bool magic =
      std::find(plan.tasks.begin(), plan.tasks.end(), Task::MAGIC) != plan.tasks.end();
  for (int i = 0; magic && i < length / 2000; ++i) {
    const Fact f = make_fact(Task::MAGIC, random, used);
    distractors.insert(distractors.end(), f.statements.begin(), f.statements.end());
  }

  Document doc{};
  const auto encoded = [&](const std::string& s) {
    return encode_after_space(vocabulary, form, s);
  };
  const std::vector<size_t> slots = shuffled_slots(facts.size(), random);
  size_t taken = form.open.size(), longest = 0;
  std::vector<std::vector<std::vector<int32_t>>> statements(facts.size());
  std::vector<std::vector<int32_t>> others;
  for (size_t i = 0; i < facts.size(); ++i) {
    const double depth = slot_depth(slots[i], slots.size(), index, count);
    Question q = make_question(facts[i].task, depth, facts[i].question, facts[i].answer,
                               facts[i].values, vocabulary, form);
    longest = std::max(longest, tokens_after(q, answer_tokens));
    doc.questions.push_back(std::move(q));
    for (const std::string& s : facts[i].statements) statements[i].push_back(encoded(s));
    for (const std::string& s : facts[i].others) others.push_back(encoded(s));
    for (const auto& ids : statements[i]) taken += ids.size();
  }
  for (const std::string& s : distractors) others.push_back(encoded(s));
  for (const auto& ids : others) taken += ids.size();
  if (taken + longest + 64 > static_cast<size_t>(length)) {
    throw std::runtime_error("a document of " + std::to_string(facts.size()) +
                             " questions does not fit into " + std::to_string(length) + " tokens");
  }
  const size_t n = static_cast<size_t>(length) - taken - longest;
  if (text.size() < n) {
    throw std::runtime_error("the text has " + std::to_string(text.size()) +
                             " tokens, expected at least " + std::to_string(n) +
                             " for documents of " + std::to_string(length) +
                             " tokens: " + std::to_string(n - text.size()) + " are missing");
  }
  const size_t begin = random.below(text.size() - n + 1);
  std::vector<size_t> ends;
  for (size_t i = 0; i < n; ++i) {
    if (form.ends_sentence[text[begin + i]]) ends.push_back(i);
  }
  if (ends.empty()) ends.push_back(n - 1);
  weave(doc, form, text.data() + begin, n,
        place(doc.questions, std::move(statements), std::move(others), ends, n, random));
  return doc;
}

}  // namespace riffle::eval
