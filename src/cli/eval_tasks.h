// Retrieval tasks of `riffle eval`: documents with facts hidden in real text, questions about them, and the marking of
// answers. Pure functions of their arguments; nothing here runs a model.
//
// A prompt has the form the demo model was trained on (tools/train/train.py):
//     <s>[INST] {document}\n{question} [/INST]   then the answer and </s>
// Facts are tokenised one by one and spliced into the tokens of the text behind the ends of sentences.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace riffle::eval {

// The same numbers from the same seed with every compiler and library (splitmix64; Steele et al., 2014).
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

enum class Task { PASSKEY = 0, MAGIC, PERSON, THING, VARS, KV };
inline constexpr int kTasks = 6;
const char* task_name(Task task);
std::optional<Task> task_from_name(std::string_view name);

// A fact or a group of facts, and what is asked about it.
struct Fact {
  Task task;
  std::vector<std::string> statements;
  std::vector<std::string> others;  // statements about the same person that are not asked about
  std::string question, answer;
  std::string prefix;               // what the answer says before a list of values
  std::vector<std::string> values;  // the values listed, in any order; empty: only `answer` itself is right
};

// used: keys taken in this document; grows. task: not KV.
Fact make_fact(Task task, Random& random, std::set<std::string>& used);

struct KvPair {
  std::string key, value;
};
// A register of keys and values: the document is the register itself.
struct Register {
  bool json_style;            // "key": "value" lines; otherwise line key: REGISTER_CONTENT is value.
  std::vector<KvPair> pairs;  // keys differ
  std::string text() const;
  std::string question(size_t pair) const;
  std::string answer(size_t pair) const;
};
Register make_register(size_t n_pairs, Random& random);

// What of a tokenizer the documents need.
struct Vocabulary {
  std::function<std::vector<int32_t>(std::string_view)> encode;  // plain text, no beginning-of-sequence token
  std::function<const char*(int32_t)> piece;                     // as the vocabulary spells it
  int32_t size, bos_id, eos_id;
};

// The fixed tokens of a prompt. Throws std::runtime_error if the vocabulary lacks [INST], [/INST] or a newline.
struct PromptForm {
  std::vector<int32_t> open, close;  // [INST] and [/INST], with the spaces around them
  int32_t bos, eos, newline;
  std::vector<uint8_t> ends_sentence;  // by token id
};
PromptForm prompt_form(const Vocabulary& vocabulary);

// Tokens of running text, encoded in pieces of some 4,000 bytes that end at a line's end, as the training text was.
std::vector<int32_t> encode_text(const Vocabulary& vocabulary, std::string_view text);

struct Question {
  Task task;
  double depth;                 // where in the document its (first) statement begins, 0 to 1
  std::vector<int32_t> tail;    // "\n", the question and [/INST]
  std::vector<int32_t> answer;  // the reference answer and </s>
  std::string question_text, answer_text, prefix;
  std::vector<std::string> values;  // as in Fact
};

struct Document {
  std::vector<int32_t> tokens;   // <s>, [INST], the document
  std::vector<uint8_t> is_text;  // per token: taken from the real text
  std::vector<Question> questions;
  bool is_register;
};

// Which questions go into which document.
struct DocumentPlan {
  bool is_register;
  std::vector<Task> tasks;
};

// Deals n_questions to the tasks evenly and the tasks to documents of at most per_document questions. A document holds
// at most one passkey (the model saw no more) and one chain of variables (a second one makes a task of its own, which
// the demo model cannot do); beside other tasks these two are asked once per document and the others take the rest.
// Short documents take fewer questions: at most one per 100 tokens.
std::vector<DocumentPlan> plan_documents(const std::vector<Task>& tasks, int n_questions, int per_document, int length);

// The document `index` of `count` (so that depths are spread over all documents too), cut so that with its longest
// question and answer it has at most `length` tokens: exactly that many, but for registers, which hold
// min(length, 16000) / 24 lines. text: tokens of real text; a random stretch of it is taken.
// Throws std::runtime_error if the text or the length is too short.
Document build_document(const DocumentPlan& plan, int length, int index, int count, const std::vector<int32_t>& text,
                        const Vocabulary& vocabulary, const PromptForm& form, Random& random);

// The values that an answer lists ("a", "a and b", "a, b and c") between prefix and a final full stop; nothing if the
// text has another form.
std::optional<std::vector<std::string>> listed_values(std::string_view text, std::string_view prefix);

// Whether a complete answer is right: the reference itself or, where it lists values, the same set of them. (Training
// listed them in no fixed order; naming one twice is no error either.)
bool answer_right(const Question& question, std::string_view text);

}  // namespace riffle::eval
