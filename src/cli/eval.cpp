// riffle eval: do answers survive sparse attention? Facts are hidden in real text, questions are asked about them, and
// every question is answered densely and by each setting from the same prefilled KV. (Tasks: eval_tasks.h.)
//
// A document is prefilled once and asked several questions: the session is cut back to the document, the question is
// appended densely but for its last token, and that token and the answer's tokens run as decode steps, so that all
// retrieval happens where blocks are selected.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "cli/args.h"
#include "cli/common.h"
#include "cli/eval_report.h"
#include "cli/eval_tasks.h"

namespace riffle::cli {
namespace {

using eval::Document;
using eval::Question;
using eval::Row;
using eval::Setting;
using eval::Task;
using eval::Usage;
using Clock = std::chrono::steady_clock;

struct EvalOptions {
  CommonOptions common;
  std::vector<std::string> text_paths;
  std::string lengths, tasks, sweep, out_path, records_path, reference_path;
  int questions = 100, questions_per_document = 10, nll_tokens = 128, windows = 2;
  uint64_t seed = 1;
  bool coverage = false, dense_only = false;
};

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// What the logits say of one wanted token.
struct Prediction {
  int32_t argmax;  // lowest id among equals
  double logprob;  // of the wanted token, natural log
};

Prediction predict(const float* logits, int n_vocab, int32_t wanted) {
  if (!logits) throw Exit(EXIT_RUN, "no logits after a decode step");
  int32_t best = 0;
  for (int32_t i = 1; i < n_vocab; ++i) {
    if (logits[i] > logits[best]) best = i;
  }
  const double top = static_cast<double>(logits[best]);
  double sum = 0;
  for (int32_t i = 0; i < n_vocab; ++i) sum += std::exp(static_cast<double>(logits[i]) - top);
  const Prediction p{best, static_cast<double>(logits[wanted]) - top - std::log(sum)};
  if (!std::isfinite(p.logprob)) throw Exit(EXIT_RUN, "logits are not finite");
  return p;
}

// One question answered one way.
struct Answer {
  bool right = false, in_order = false;  // in_order: the reference's very tokens
  double nll = 0;                        // sum over the reference's tokens
  double read_pct = 0;
  std::string text;  // generated freely; only where that was needed
};

class Evaluator {
 public:
  explicit Evaluator(EvalOptions& options) : o_(options) {}
  int run();

 private:
  void prepare();
  std::vector<int64_t> lengths() const;
  void write_header();
  std::vector<Row> run_length(int length, bool& stopped);
  void run_document(const Document& doc, const std::string& label, std::vector<Row>& rows);
  void ask(const Document& doc, Progress& progress, std::vector<Row>& rows);
  void read_text(const Document& doc, Progress& progress, std::vector<Row>& rows);
  Answer answer(const Question& q, size_t base, int32_t last);
  std::string generate(size_t base, int32_t last, size_t limit);
  std::vector<eval::PositionBucket> score_positions();
  void report(const std::vector<Row>& rows);
  void record(int length, const Document& doc, const std::vector<std::vector<Answer>>& answers);

  const float* step(int32_t token) {
    riffle_session* session = session_.get();
    check(riffle_step(context_.get(), &session, &token, 1), context_.get());
    return riffle_logits(session);
  }
  void truncate(size_t n) { check(riffle_session_truncate(session_.get(), n), context_.get()); }
  void prefill(const int32_t* tokens, size_t n, Progress* progress) {
    if (n == 0) return;
    check(riffle_prefill(session_.get(), tokens, n, progress ? Progress::callback : nullptr, progress), context_.get());
  }
  // Makes the setting the one that steps run with, and counts them from now on until end().
  void begin(const Setting& setting);
  Usage end();
  static void on_trace(void* user, const riffle_trace* trace) { static_cast<Evaluator*>(user)->usage_.add(*trace); }
  void put_line(const Json& json);

  EvalOptions& o_;
  Model model_;
  Context context_;
  Session session_;
  riffle_model_info info_{};
  eval::Vocabulary vocabulary_;
  eval::PromptForm form_;
  std::vector<Task> tasks_;
  std::vector<Setting> settings_;  // the first is dense
  std::vector<int64_t> lengths_;
  std::vector<int32_t> text_;
  int n_ctx_ = 0;
  bool has_pool_ = false;
  Usage usage_;     // since begin()
  int length_ = 0;  // being run, for records
  std::ofstream out_, records_;
};

void Evaluator::put_line(const Json& json) {
  if (o_.common.json) print_json(json);
  if (!out_.is_open()) return;
  out_ << dump(json) << std::endl;  // flushed: a run may be stopped at any time
  if (!out_) throw Exit(EXIT_RUN, o_.out_path + ": cannot write");
}

std::vector<int64_t> Evaluator::lengths() const {
  const bool given = !o_.lengths.empty();
  // 1024 to 32000 are the lengths that the training recipe's own figures were taken at.
  const std::string list = given ? o_.lengths : o_.dense_only ? "1024,4096,8192,16384,32000" : "8192,16384,30000";
  const int64_t longest = o_.common.context.n_ctx > 0 ? o_.common.context.n_ctx : info_.n_ctx_train;
  const auto fits = [&](int64_t n) { return n <= longest && n <= static_cast<int64_t>(text_.size()); };
  std::vector<int64_t> lengths;
  for (int64_t n : parse_size_list("--length", list)) {
    if (n < 256) throw Exit(EXIT_USAGE, text_of("--length %lld: expected at least 256", static_cast<long long>(n)));
    if (o_.nll_tokens > n / 2) {
      throw Exit(EXIT_USAGE,
                 text_of("--nll %d: expected at most half of --length %lld", o_.nll_tokens, static_cast<long long>(n)));
    }
    if (fits(n)) {
      lengths.push_back(n);
    } else if (given) {
      throw Exit(EXIT_USAGE, text_of("--length %lld: the context holds %lld tokens and the text %zu",
                                     static_cast<long long>(n), static_cast<long long>(longest), text_.size()));
    } else {
      notice(o_.common.quiet, "length %lld left out: the context holds %lld tokens and the text %zu",
             static_cast<long long>(n), static_cast<long long>(longest), text_.size());
    }
  }
  if (lengths.empty()) throw Exit(EXIT_USAGE, "no --length fits the text; give more with --text FILE");
  return lengths;
}

void Evaluator::prepare() {
  // Whatever can be refused is refused before the model is loaded.
  std::stringstream names(o_.tasks);
  for (std::string name; std::getline(names, name, ',');) {
    const std::optional<Task> task = eval::task_from_name(name);
    if (!task) {
      throw Exit(EXIT_USAGE, "--tasks: unknown task '" + name + "'; known: passkey, magic, person, thing, vars, kv");
    }
    if (std::find(tasks_.begin(), tasks_.end(), *task) == tasks_.end()) tasks_.push_back(*task);
  }
  if (tasks_.empty()) throw Exit(EXIT_USAGE, "--tasks: no task given");
  const riffle_selection& flags = o_.common.context.selection;
  settings_ = {eval::dense_setting(flags)};
  if (!o_.dense_only) {
    std::vector<Setting> more;
    if (!o_.sweep.empty()) {
      more = eval::parse_sweep(o_.sweep, flags);
    } else {
      more = {eval::flag_setting(flags)};
    }
    for (Setting& s : more) {
      if (s.selection.selector != RIFFLE_SELECTOR_DENSE) settings_.push_back(std::move(s));  // dense runs anyway
    }
  }

  model_ = load_model(o_.common);
  info_ = model_info(model_.get());
  vocabulary_.encode = [this](std::string_view s) { return tokenize(model_.get(), s, 0); };
  vocabulary_.piece = [this](int32_t id) { return riffle_token_piece(model_.get(), id); };
  vocabulary_.size = info_.vocab_size;
  vocabulary_.bos_id = info_.bos_id;
  vocabulary_.eos_id = info_.eos_id;
  form_ = eval::prompt_form(vocabulary_);

  if (o_.text_paths.empty()) {
    const std::filesystem::path demo = std::filesystem::path(o_.common.model_path).parent_path() / "demo.txt";
    if (!std::filesystem::exists(demo)) {
      throw Exit(EXIT_USAGE, "give text that the model was not trained on with --text FILE (no " + demo.string() + ")");
    }
    o_.text_paths = {demo.string()};
    notice(o_.common.quiet,
           "no --text: facts are hidden in %s, which the model itself wrote; its nll is lower than that of real text",
           demo.c_str());
  }
  for (const std::string& path : o_.text_paths) {
    if (!text_.empty()) text_.push_back(form_.newline);
    const std::vector<int32_t> ids = eval::encode_text(vocabulary_, read_file(path));
    text_.insert(text_.end(), ids.begin(), ids.end());
  }
  lengths_ = lengths();

  riffle_context_options options = o_.common.context;
  if (options.n_ctx == 0) {
    // What is needed and no more, so that a pool or the host store is not planned for 32K when 4K are asked for.
    int64_t needed = *std::max_element(lengths_.begin(), lengths_.end()) + 128;
    if (o_.dense_only) needed = std::max<int64_t>(needed, std::min<int64_t>(32768, info_.n_ctx_train));
    options.n_ctx = static_cast<int32_t>(std::min<int64_t>(needed, info_.n_ctx_train));
  }
  n_ctx_ = options.n_ctx;
  context_ = create_context(model_.get(), options, o_.common.quiet);
  session_ = create_session(context_.get());
  has_pool_ = context_stats(context_.get()).pool_slots > 0;
  for (const Setting& s : settings_) {
    if (riffle_set_selection(context_.get(), &s.selection) != RIFFLE_OK) {
      throw Exit(EXIT_USAGE, s.label + ": " + riffle_context_error(context_.get()));
    }
  }
  const auto open = [](std::ofstream& file, const std::string& path) {
    if (path.empty()) return;
    file.open(path, std::ios::app);
    if (!file) throw Exit(EXIT_RUN, path + ": cannot open for writing");
  };
  open(out_, o_.out_path);
  open(records_, o_.records_path);
}

void Evaluator::write_header() {
  Json j;
  j["type"] = "run";
  j["version"] = riffle_version();
  j["model"] = o_.common.model_path;
  j["context"] = context_json(o_.common.context);
  j["n_ctx"] = n_ctx_;
  j["text"] = o_.text_paths;
  j["text_tokens"] = text_.size();
  j["questions"] = o_.questions;
  j["questions_per_document"] = o_.questions_per_document;
  j["nll_tokens"] = o_.nll_tokens;
  j["seed"] = o_.seed;
  put_line(j);
}

void Evaluator::begin(const Setting& setting) {
  usage_ = Usage();
  check(riffle_set_selection(context_.get(), &setting.selection), context_.get());
  const bool coverage = o_.coverage && setting.selection.selector != RIFFLE_SELECTOR_DENSE;
  check(riffle_set_trace(context_.get(), on_trace, this, coverage), context_.get());
  riffle_reset_stats(context_.get());
}

Usage Evaluator::end() {
  usage_.add(context_stats(context_.get()));
  check(riffle_set_trace(context_.get(), nullptr, nullptr, false), context_.get());
  return std::move(usage_);
}

std::string Evaluator::generate(size_t base, int32_t last, size_t limit) {
  truncate(base);
  std::vector<int32_t> ids;
  const float* logits = step(last);
  while (ids.size() < limit) {
    const int32_t id = predict(logits, info_.vocab_size, 0).argmax;
    if (id == info_.eos_id) return detokenize(model_.get(), ids);
    ids.push_back(id);
    if (riffle_session_length(session_.get()) >= static_cast<size_t>(n_ctx_)) break;
    logits = step(id);
  }
  return detokenize(model_.get(), ids) + " [unfinished]";  // never a right answer
}

// base: tokens held before the question's last token, `last`.
Answer Evaluator::answer(const Question& q, size_t base, int32_t last) {
  Answer a;
  truncate(base);
  a.in_order = true;
  const float* logits = step(last);
  for (size_t i = 0; i < q.answer.size(); ++i) {
    const Prediction p = predict(logits, info_.vocab_size, q.answer[i]);
    a.nll -= p.logprob;
    a.in_order &= p.argmax == q.answer[i];
    if (i + 1 < q.answer.size()) logits = step(q.answer[i]);
  }
  a.right = a.in_order;  // what greedy decoding would have written, token by token
  if (!a.right && !q.values.empty()) {
    a.text = generate(base, last, 2 * q.answer.size() + 16);
    a.right = eval::answer_right(q, a.text);
  }
  return a;
}

void Evaluator::ask(const Document& doc, Progress& progress, std::vector<Row>& rows) {
  const size_t n_questions = doc.questions.size(), n_settings = settings_.size();
  std::vector<std::vector<Answer>> answers(n_questions, std::vector<Answer>(n_settings));
  size_t prepared = n_questions;  // the question whose tail the session holds
  for (size_t k = 0; k < n_questions * n_settings; ++k) {
    // With a pool, all questions by one setting before the next one, or every setting would find in the pool what
    // dense reading left there.
    const size_t q = has_pool_ ? k % n_questions : k / n_settings;
    const size_t s = has_pool_ ? k / n_questions : k % n_settings;
    const Question& question = doc.questions[q];
    const Clock::time_point start = Clock::now();
    const size_t base = doc.tokens.size() + question.tail.size() - 1;
    if (prepared != q) {
      truncate(doc.tokens.size());
      prefill(question.tail.data(), question.tail.size() - 1, nullptr);
      prepared = q;
    }
    begin(settings_[s]);
    Answer& a = answers[q][s];
    a = answer(question, base, question.tail.back());
    const Usage usage = end();
    a.read_pct = usage.read_pct();
    const Answer& dense = answers[q][0];
    Row& row = rows[s];
    row.answers.add(usage);
    eval::Marks m;
    m.n = 1;
    m.dense = dense.right;
    m.sparse = a.right;
    m.both = dense.right && a.right;
    m.dense_in_order = dense.in_order;
    m.tokens = question.answer.size();
    m.nll_dense = dense.nll;
    m.nll_sparse = a.nll;
    row.tasks[static_cast<int>(question.task)].add(m);
    row.seconds += seconds_since(start);
    progress.update(static_cast<double>(k + 1), static_cast<double>(n_questions * n_settings));
  }
  record(length_, doc, answers);
}

// Held-out nll on the end of the document, whose facts are not counted: the session must hold all but the last
// nll_tokens + 1 tokens. Leaves it so.
void Evaluator::read_text(const Document& doc, Progress& progress, std::vector<Row>& rows) {
  const size_t n = doc.tokens.size(), begin_at = n - static_cast<size_t>(o_.nll_tokens);
  std::vector<double> dense(n, 0);
  for (size_t s = 0; s < settings_.size(); ++s) {
    const Clock::time_point start = Clock::now();
    begin(settings_[s]);
    Row& row = rows[s];
    double sum = 0, dense_sum = 0;
    uint64_t counted = 0;
    for (size_t i = begin_at; i < n; ++i) {
      const double nll = -predict(step(doc.tokens[i - 1]), info_.vocab_size, doc.tokens[i]).logprob;
      if (s == 0) dense[i] = nll;
      if (!doc.is_text[i]) continue;
      sum += nll;
      dense_sum += dense[i];
      ++counted;
      progress.update(static_cast<double>(s * (n - begin_at) + i - begin_at),
                      static_cast<double>(settings_.size() * (n - begin_at)));
    }
    const Usage usage = end();
    // Only now, so that an interrupted pass counts for nothing.
    row.text_nll_sparse += sum;
    row.text_nll_dense += dense_sum;
    row.text_tokens += counted;
    row.text.add(usage);
    row.seconds += seconds_since(start);
    truncate(begin_at - 1);
  }
}

void Evaluator::run_document(const Document& doc, const std::string& label, std::vector<Row>& rows) {
  truncate(0);
  size_t held = 0;
  // A register's end is no held-out text.
  if (o_.nll_tokens > 0 && !doc.is_register && !o_.dense_only) {
    held = doc.tokens.size() - static_cast<size_t>(o_.nll_tokens) - 1;
    {
      Progress progress(label + ", prefill", o_.common.quiet);
      prefill(doc.tokens.data(), held, &progress);
    }
    Progress progress(label + ", held-out text", o_.common.quiet);
    read_text(doc, progress, rows);
  }
  {
    Progress progress(label + ", prefill", o_.common.quiet);
    prefill(doc.tokens.data() + held, doc.tokens.size() - held, &progress);
  }
  Progress progress(label + ", questions", o_.common.quiet);
  ask(doc, progress, rows);
}

std::vector<Row> Evaluator::run_length(int length, bool& stopped) {
  length_ = length;
  const Clock::time_point start = Clock::now();
  const std::vector<eval::DocumentPlan> plans =
      eval::plan_documents(tasks_, o_.questions, o_.questions_per_document, length);
  std::vector<Row> rows(settings_.size());
  for (size_t s = 0; s < rows.size(); ++s) {
    rows[s].setting = settings_[s];
    rows[s].length = length;
  }
  // Depths are spread over the documents of a kind.
  int count[2] = {0, 0}, index[2] = {0, 0};
  for (const eval::DocumentPlan& p : plans) ++count[p.is_register];
  size_t n_tokens = 0, done = 0;
  try {
    for (const eval::DocumentPlan& plan : plans) {
      // A document depends on the seed, the length and its place among its kind alone.
      eval::Random random(o_.seed * 1000003 + static_cast<uint64_t>(length) * 4001 +
                          static_cast<uint64_t>(2 * index[plan.is_register] + plan.is_register));
      random.next();
      Document doc;
      try {
        doc = eval::build_document(plan, length, index[plan.is_register], count[plan.is_register], text_, vocabulary_,
                                   form_, random);
      } catch (const Exit&) {
        throw;
      } catch (const std::runtime_error& e) {
        throw Exit(EXIT_USAGE, text_of("--length %d: %s", length, e.what()));
      }
      ++index[plan.is_register];
      run_document(doc, text_of("length %d, document %zu of %zu", length, done + 1, plans.size()), rows);
      n_tokens += doc.tokens.size();
      ++done;
    }
  } catch (const Exit& e) {
    if (e.code() != EXIT_INTERRUPTED) throw;
    stopped = true;
  }
  std::vector<Row> counted;
  for (Row& r : rows) {
    if (r.total().n > 0) counted.push_back(std::move(r));
  }
  if (done > 0) {
    notice(o_.common.quiet, "length %d: %zu documents, %.0f tokens on average, %.1f s%s", length, done,
           static_cast<double>(n_tokens) / static_cast<double>(done), seconds_since(start),
           stopped ? " (stopped early)" : "");
  }
  return counted;
}

void Evaluator::record(int length, const Document& doc, const std::vector<std::vector<Answer>>& answers) {
  if (!records_.is_open()) return;
  for (size_t q = 0; q < answers.size(); ++q) {
    const Question& question = doc.questions[q];
    Json j;
    j["length"] = length;
    j["task"] = eval::task_name(question.task);
    j["depth"] = number(question.depth);
    j["question"] = question.question_text;
    j["answer"] = question.answer_text;
    j["settings"] = Json::array();
    for (size_t s = 0; s < settings_.size(); ++s) {
      const Answer& a = answers[q][s];
      Json one;
      one["setting"] = settings_[s].label;
      one["right"] = a.right;
      one["nll"] = number(a.nll / static_cast<double>(question.answer.size()));
      one["kv_read_pct"] = number(a.read_pct);
      if (!a.text.empty()) one["text"] = a.text;
      j["settings"].push_back(one);
    }
    records_ << dump(j) << '\n';
  }
  records_.flush();
  if (!records_) throw Exit(EXIT_RUN, o_.records_path + ": cannot write");
}

void Evaluator::report(const std::vector<Row>& rows) {
  for (const Row& r : rows) put_line(r.json());
  if (o_.common.json || rows.empty() || o_.dense_only) return;
  write_out(text_of("%d tokens\n", rows[0].length) + eval::rows_text(rows) + "\n");
}

// Windows spread over the text, each predicted from its own beginning (behind <s>) in one scored prefill.
std::vector<eval::PositionBucket> Evaluator::score_positions() {
  const int window = static_cast<int>(std::min<int64_t>({32768, n_ctx_, static_cast<int64_t>(text_.size())}));
  std::vector<eval::PositionBucket> buckets = eval::position_buckets(window);
  const size_t spare = text_.size() - static_cast<size_t>(window);
  for (int w = 0; w < o_.windows; ++w) {
    const size_t begin = o_.windows > 1 ? spare / static_cast<size_t>(o_.windows - 1) * static_cast<size_t>(w) : 0;
    std::vector<int32_t> tokens = {info_.bos_id};
    tokens.insert(tokens.end(), text_.begin() + static_cast<ptrdiff_t>(begin),
                  text_.begin() + static_cast<ptrdiff_t>(begin) + window - 1);
    std::vector<riffle_score> scores(tokens.size());
    truncate(0);
    Progress progress(text_of("held-out window %d of %d", w + 1, o_.windows), o_.common.quiet);
    check(riffle_prefill_scored(session_.get(), tokens.data(), tokens.size(), scores.data(), Progress::callback,
                                &progress),
          context_.get());
    for (eval::PositionBucket& b : buckets) {
      // The last token of the window has no successor to be scored on.
      for (int i = b.begin; i < std::min(b.end, window - 1); ++i) {
        b.sum -= static_cast<double>(scores[i].next_logprob);
        ++b.n;
      }
    }
  }
  return buckets;
}

int Evaluator::run() {
  prepare();
  Json reference;
  if (!o_.reference_path.empty()) {
    reference = Json::parse(read_file(o_.reference_path), nullptr, false);
    if (reference.is_discarded()) throw Exit(EXIT_USAGE, o_.reference_path + ": not JSON");
  }
  write_header();
  InterruptGuard guard(context_.get());
  bool stopped = false;
  std::vector<Row> dense;
  for (int64_t length : lengths_) {
    const std::vector<Row> rows = run_length(static_cast<int>(length), stopped);
    report(rows);
    if (!rows.empty()) dense.push_back(rows[0]);
    if (stopped) break;
  }
  if (o_.dense_only) {
    std::vector<eval::PositionBucket> buckets;
    try {
      if (!stopped && o_.windows > 0) buckets = score_positions();
    } catch (const Exit& e) {
      if (e.code() != EXIT_INTERRUPTED) throw;
      stopped = true;
    }
    if (!buckets.empty()) {
      Json j;
      j["type"] = "nll";
      for (const eval::PositionBucket& b : buckets) j["nll"][b.name()] = number(b.sum / static_cast<double>(b.n));
      j["windows"] = o_.windows;
      put_line(j);
    }
    if (!o_.common.json) write_out(eval::dense_text(dense, buckets, reference));
  }
  const riffle_stats stats = context_stats(context_.get());
  notice(o_.common.quiet, "peak memory %s", human_bytes(static_cast<double>(stats.peak_rss_bytes)).c_str());
  Json j;
  j["type"] = "end";
  j["stopped"] = stopped;
  j["peak_rss_bytes"] = stats.peak_rss_bytes;
  put_line(j);
  return stopped ? EXIT_INTERRUPTED : EXIT_OK;
}

}  // namespace

void add_eval(CLI::App& app, Command& chosen) {
  auto o = std::make_shared<EvalOptions>();
  CLI::App* sub = app.add_subcommand("eval", "facts hidden in long text: answers dense and sparse, KV read, nll");
  add_common_flags(*sub, o->common, CONTEXT_FLAGS | SELECTION_FLAGS | JSON_FLAG);
  sub->get_option("--json")->description("a JSON line per row on stdout in place of tables");
  const auto count = CLI::Range(0, 1 << 24);
  const auto some = CLI::Range(1, 1 << 24);
  o->tasks = "passkey,magic,person,thing,vars,kv";
  sub->add_option("--text", o->text_paths, "text the model has not seen, to hide facts in; default: the demo's")
      ->type_name("FILE...");
  sub->add_option("--length", o->lengths, "tokens of a whole prompt; default 8192,16384,30000 where the text allows")
      ->type_name("N,...");
  sub->add_option("--tasks", o->tasks, "kinds of questions")->type_name("NAME,...")->capture_default_str();
  sub->add_option("--questions", o->questions, "questions per length, all tasks together")
      ->type_name("N")
      ->check(some)
      ->capture_default_str();
  sub->add_option("--questions-per-doc", o->questions_per_document, "questions that share a document")
      ->type_name("N")
      ->check(some)
      ->capture_default_str();
  sub->add_option("--sweep", o->sweep,
                  "settings to compare on the same KV, such as \"psa:epsilon=0.5,0.9,stop=veto;topk:budget=0.05,0.1\"; "
                  "fields: epsilon budget microbatch sink_blocks window_blocks dense_layers lookahead digest gqa stop; "
                  "default: the one the flags describe")
      ->type_name("SPEC;...");
  sub->add_option("--nll", o->nll_tokens, "held-out tokens to predict one by one at the end of each document; 0: none")
      ->type_name("N")
      ->check(count)
      ->capture_default_str();
  sub->add_flag("--coverage", o->coverage, "measure the share of attention truly covered (slow)");
  sub->add_flag("--dense-only", o->dense_only, "only dense answers, and held-out nll by position");
  sub->add_option("--windows", o->windows, "with --dense-only: windows of 32768 tokens for nll by position; 0: none")
      ->type_name("N")
      ->check(count)
      ->capture_default_str();
  sub->add_option("--compare-dense-golden", o->reference_path, "with --dense-only: JSON of figures to set beside")
      ->type_name("FILE");
  sub->add_option("--seed", o->seed, "of documents and questions")->type_name("N")->capture_default_str();
  sub->add_option("--out", o->out_path, "append a JSON line per finished row to this file")->type_name("FILE");
  sub->add_option("--records", o->records_path, "append a JSON line per question to this file")->type_name("FILE");
  sub->final_callback([o, &chosen] { chosen = [o] { return Evaluator(*o).run(); }; });
}

}  // namespace riffle::cli
