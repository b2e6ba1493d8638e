// Retrieval tasks of `riffle eval`: documents with facts hidden in real text, questions about them,
// and the marking of answers. All are pure functions of their arguments; nothing here runs a model.
//
// A prompt is one user message, "{document}\n{question}", in the model's chat template, or plain
// text that ends with "\nAnswer:" if the model has no template. Facts are tokenised one by one and
// spliced into the tokens of the text after the ends of sentences, so that a document has exactly
// the length that was asked for.
//
// The kinds of questions are those of RULER (Hsieh et al., 2024, arXiv 2404.06654, section 3), in
// our own words: needles (one; several keys; several values; several questions), chains of
// variables, common words, frequent words and a question about a passage. There are also registers
// of keys and values, and a summary, which has no right answer and shows how long an answer stays
// the same.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace riffle::eval {

// Random numbers that are the same for the same seed with every compiler and library (splitmix64;
// Steele et al., 2014).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next();
  uint64_t below(uint64_t n);    // uniform in [0, n), n >= 1
  int range(int low, int high);  // uniform in [low, high]
  double unit();                 // uniform in [0, 1)
  template <typename T>
  void shuffle(std::vector<T>& v) {
    for (size_t i = v.size(); i > 1; --i) std::swap(v[i - 1], v[below(i)]);
  }

 private:
  uint64_t state_;
};

enum class Task {
  PASSKEY = 0,  // one number in the whole document
  MAGIC,        // special magic values of a key, one to four of them, among those of other keys
  PERSON,       // one thing known of a person, among others about the same person
  THING,        // the price or the hiding place of a thing
  VARS,         // variables that are assigned to each other
  KV,           // a register of keys and values, which is the whole document
  MULTIKEY,     // one value, among seven needles that differ only in the key
  MULTIVALUE,   // the four values of one key
  MULTIQUERY,   // four keys asked for at once
  PASSAGE,      // a passage of several sentences, and a question about one of them
  COMMON,       // a list of words: the three that occur ten times as often as all others
  FREQUENT,     // words in code whose frequencies follow a power law: the three most frequent
  NEEDLE,       // one special magic number for a key, in few words, for small models
  SUMMARY       // a summary of the document: it has no right answer, and only agreement is measured
};
inline constexpr int kTasks = 14;
const char* task_name(Task task);
std::string task_names(const char* separator);  // all of them
std::optional<Task> task_from_name(std::string_view name);
bool has_answer(Task task);       // true if an answer can be right
bool is_whole(Task task);         // true if the document is made for the question, without text
bool shares_document(Task task);  // true if questions of this kind can share a document

// A fact or a group of facts, and the question about it.
struct Fact {
  Task task;
  std::vector<std::string> statements;
  std::vector<std::string> others;  // similar statements that are not asked about
  std::string question,
      answer;  // answer: a right answer, as the shipped model was taught to write it
  std::vector<std::string> values;  // values that a right answer names, in any order
};

// Makes a fact for a task that is not whole. used: keys taken in this document; new keys are added.
Fact make_fact(Task task, Random& random, std::set<std::string>& used);

struct KvPair {
  std::string key, value;
};
// A register of keys and values: the document is the register itself.
struct Register {
  bool json_style;  // "key": "value" lines; otherwise line key: REGISTER_CONTENT is value.
  std::vector<KvPair> pairs;  // keys differ
  std::string text() const;
  std::string question(size_t pair) const;
  std::string answer(size_t pair) const;
};
Register make_register(size_t n_pairs, Random& random);

// A list of words (COMMON) or of words in code (FREQUENT), and the question about it: the three
// most frequent words.
struct WordList {
  std::string text, question, answer;
  std::vector<std::string> values;
};
// n_words, at least 60: number of entries of FREQUENT; COMMON has at most that number, and more
// than half. With fewer words the three asked for need not be the most frequent.
WordList make_word_list(Task task, size_t n_words, Random& random);

// The parts of a tokenizer that documents need.
struct Vocabulary {
  std::function<std::vector<int32_t>(std::string_view)>
      encode;  // plain text, no beginning-of-sequence token
  // Encodes a conversation of one user message, ready for the answer; empty: the model has no chat
  // template.
  std::function<std::vector<int32_t>(std::string_view)> chat;
  std::function<const char*(int32_t)> piece;  // the vocabulary's spelling of a token
  int32_t size, bos_id, eos_id;               // bos_id -1: texts begin without one
};

// The fixed tokens of a prompt.
struct PromptForm {
  std::vector<int32_t> open, close;  // before the document; between the question and the answer
  std::vector<int32_t> newline;
  int32_t eos;
  bool is_chat;      // false: no chat template, plain text
  bool marks_words;  // the tokenizer puts a mark of a space before every text (sentencepiece)
  std::vector<uint8_t> ends_sentence;  // by token id
};
// Throws std::runtime_error if the vocabulary lacks a token that a prompt needs.
PromptForm prompt_form(const Vocabulary& vocabulary);
// Return the tokens of text that follows other text: after a space, or directly ("\n...").
std::vector<int32_t> encode_after_space(const Vocabulary& vocabulary, const PromptForm& form,
                                        std::string_view text);
std::vector<int32_t> encode_directly(const Vocabulary& vocabulary, const PromptForm& form,
                                     std::string_view text);

// Returns the tokens of running text, encoded like the training text in pieces of about 4,000 bytes
// that end at a line's end.
std::vector<int32_t> encode_text(const Vocabulary& vocabulary, std::string_view text);

struct Question {
  Task task;
  double depth;                 // place in the document of its first statement, 0 to 1
  std::vector<int32_t> tail;    // "\n", the question and the end of the prompt
  std::vector<int32_t> answer;  // the reference answer and the end-of-sequence token
  std::string question_text, answer_text;
  std::vector<std::string> values;  // as in Fact
};

// Makes a question with its text and its reference answer, in tokens.
Question make_question(Task task, double depth, const std::string& text, const std::string& answer,
                       const std::vector<std::string>& values, const Vocabulary& vocabulary,
                       const PromptForm& form);

struct Document {
  std::vector<int32_t> tokens;   // beginning of the prompt, and the document
  std::vector<uint8_t> is_text;  // per token: taken from the real text
  std::vector<Question> questions;
  bool is_whole;  // made for its questions: no real text
};

// The questions of one document.
struct DocumentPlan {
  Task whole;  // the task that the whole document is made for; MAGIC: text with facts
  std::vector<Task> tasks;
  bool is_whole() const { return eval::is_whole(whole); }
};

// Returns "a", "a and b", "a, b and c".
std::string listing(const std::vector<std::string>& values);

// Returns the tasks for n_questions: all tasks, or one task for each question, evenly spaced in the
// list, if there are fewer questions than tasks.
std::vector<Task> spread_tasks(const std::vector<Task>& tasks, int n_questions);

// Divides n_questions evenly among the tasks, and puts them into documents of at most per_document
// questions. A document holds at most one passkey and one summary (there is only one to ask for)
// and one chain of variables (a second chain would be another task). Together with other tasks,
// these three are asked once per document, and the others take the rest. A list of words has one
// question. Short documents take fewer questions: at most one per 100 tokens.
std::vector<DocumentPlan> plan_documents(const std::vector<Task>& tasks, int n_questions,
                                         int per_document, int length);

// Builds document `index` of `count`; both are needed to spread depths over all documents. With its
// longest question and `answer_tokens` for an answer, it has exactly `length` tokens. Registers,
// which hold at most min(length, 16000) / 24 lines, and lists of words may have fewer. text: tokens
// of real text; a random part of it is taken. Throws std::runtime_error if the text or the length
// is too short.
Document build_document(const DocumentPlan& plan, int length, int answer_tokens, int index,
                        int count, const std::vector<int32_t>& text, const Vocabulary& vocabulary,
                        const PromptForm& form, Random& random);

// Tells whether an answer is right: it names every value, as whole words, in any order. Anything
// else in it does not matter, nor do capitals and commas inside numbers (RULER's measure). Returns
// false if there is no value to name.
bool answer_right(const Question& question, std::string_view text);

}  // namespace riffle::eval
