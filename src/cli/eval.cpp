// riffle eval: do answers survive sparse attention? Facts are hidden in real text, questions are asked about them, and
// every question is answered densely and by each setting from the same prefilled KV. (Tasks: eval_tasks.h.)
//
// A document is prefilled once and asked several questions: the session is cut back to the document, the question is
// appended densely but for its last token, and that token and the answer's tokens run as decode steps, so that all
// retrieval happens where blocks are selected.
#include "cli/eval.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "cli/common.h"
#include "cli/eval_compare.h"
#include "cli/eval_html.h"
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
  Answer answer(const Question& q);
  void describe(eval::HeatMap& map, const Setting& setting, const Question& question, const Answer& answer);
  std::string generate(size_t limit);
  std::vector<eval::PositionBucket> score_positions();
  void report(const std::vector<Row>& rows);
  void report_comparison(const std::vector<Row>& rows);
  void record(int length, const Document& doc, const std::vector<std::vector<Answer>>& answers);

  const float* step(int32_t token) {
    riffle_session* session = current_;
    check(riffle_step(context_.get(), &session, &token, 1), context_.get());
    return riffle_logits(session);
  }
  static bool reads_itself(const riffle_selection& s) {
    return s.selector == RIFFLE_SELECTOR_TOKENSELECT && s.positions == RIFFLE_POSITIONS_LIST;
  }
  // The session that a setting answers from, and the selection that reads its prompts.
  void use(size_t setting) {
    current_ = sessions_[session_of_[setting]].get();
    check(riffle_set_selection(context_.get(), &settings_[session_of_[setting] ? setting : 0].selection), context_.get());
  }
  void truncate(size_t n) { check(riffle_session_truncate(current_, n), context_.get()); }
  void rewind(const std::vector<int32_t>& prompt, size_t n);
  void prefill(const int32_t* tokens, size_t n, Progress* progress) {
    if (n == 0) return;
    check(riffle_prefill(current_, tokens, n, progress ? Progress::callback : nullptr, progress), context_.get());
  }
  // Makes the setting the one that steps run with, and counts them from now on until end().
  void begin(const Setting& setting);
  Usage end();
  static void on_trace(void* user, const riffle_trace* trace) {
    Evaluator& self = *static_cast<Evaluator*>(user);
    self.usage_.add(*trace);
    if (self.map_) self.map_->add(*trace);
  }
  void put_line(const Json& json);

  EvalOptions& o_;
  Model model_;
  Context context_;
  // A document is read densely once for all settings, but for those whose positions are in a list: they read it themselves.
  std::vector<Session> sessions_;
  std::vector<size_t> session_of_;  // by setting
  riffle_session* current_ = nullptr;
  riffle_model_info info_{};
  eval::Vocabulary vocabulary_;
  eval::PromptForm form_;
  std::vector<Task> tasks_;
  std::vector<Setting> settings_;  // the first is dense
  std::vector<bool> mapped_;       // by setting: a heat map is wanted
  std::vector<int64_t> lengths_;
  std::vector<int32_t> text_;
  int n_ctx_ = 0;
  bool has_pool_ = false;
  Usage usage_;                                       // since begin()
  riffle_selector selector_ = RIFFLE_SELECTOR_DENSE;  // in force
  std::vector<int32_t> prompt_;                       // document and question being answered
  int length_ = 0;                                    // being run, for records
  bool is_first_document_ = false;                    // of its length
  std::unique_ptr<eval::HeatMap> map_;                // of the answer being given
  std::vector<eval::HeatMap> maps_;
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
  const eval::SelectionFlags flags{o_.common.context.selection, o_.selection_given};
  settings_ = {eval::dense_setting(flags.selection)};
  if (!o_.dense_only) {
    std::vector<Setting> more;
    if (o_.compare && o_.compare_spec.empty()) {
      more = eval::default_comparison(flags);
    } else if (o_.compare) {
      more = eval::parse_sweep(o_.compare_spec, flags, "--compare");
    } else if (!o_.sweep.empty()) {
      more = eval::parse_sweep(o_.sweep, flags);
    } else {
      more = {eval::flag_setting(flags.selection)};
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
  has_pool_ = context_stats(context_.get()).pool_slots > 0;
  std::vector<Setting> possible;
  for (const Setting& s : settings_) {
    if (riffle_set_selection(context_.get(), &s.selection) == RIFFLE_OK) {
      possible.push_back(s);
    } else if (o_.compare && o_.compare_spec.empty()) {
      // Nobody asked for it by name: a device need not have every selector.
      notice(o_.common.quiet, "%s left out: %s", s.label.c_str(), riffle_context_error(context_.get()));
    } else {
      throw Exit(EXIT_USAGE, s.label + ": " + riffle_context_error(context_.get()));
    }
  }
  settings_ = std::move(possible);
  for (const Setting& s : settings_) {
    const bool own = reads_itself(s.selection);
    session_of_.push_back(own ? sessions_.size() : 0);
    if (own || sessions_.empty()) sessions_.push_back(create_session(context_.get()));
  }
  current_ = sessions_[0].get();
  const bool by_paper = o_.heat_maps.empty() && !o_.report_path.empty();
  mapped_ = by_paper ? eval::paper_settings(settings_) : eval::named_settings(o_.heat_maps, settings_, "--heatmap");
  const auto open = [](std::ofstream& file, const std::string& path) {
    if (path.empty()) return;
    file.open(path, std::ios::app);
    if (!file) throw Exit(EXIT_RUN, path + ": cannot open for writing");
  };
  if (!o_.report_path.empty()) {
    std::ofstream report(o_.report_path, std::ios::app);  // refused now, not when all is done
    if (!report) throw Exit(EXIT_RUN, o_.report_path + ": cannot open for writing");
  }
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
  selector_ = setting.selection.selector;
  const bool coverage = o_.coverage && setting.selection.selector != RIFFLE_SELECTOR_DENSE;
  check(riffle_set_trace(context_.get(), on_trace, this, coverage), context_.get());
  riffle_reset_stats(context_.get());
}

Usage Evaluator::end() {
  usage_.add(context_stats(context_.get()));
  check(riffle_set_trace(context_.get(), nullptr, nullptr, false), context_.get());
  return std::move(usage_);
}

// Back to the first n tokens of the prompt. What a selector has learnt since (candidates, a cached selection) must not
// reach the next answer, and what it learns from the queries at a prompt's end it must learn from this one's: so the
// end is read again under the setting in force. Dense reading gives the same KV however it is cut (on a GPU to within
// rounding).
void Evaluator::rewind(const std::vector<int32_t>& prompt, size_t n) {
  constexpr size_t kReread = 64;
  const bool stateless =
      current_ != sessions_[0].get() || selector_ == RIFFLE_SELECTOR_DENSE || selector_ == RIFFLE_SELECTOR_PSA || selector_ == RIFFLE_SELECTOR_TOPK;
  const size_t keep = stateless ? n : n - std::min(n, kReread);
  truncate(keep);
  prefill(prompt.data() + keep, n - keep, nullptr);
}

std::string Evaluator::generate(size_t limit) {
  rewind(prompt_, prompt_.size() - 1);
  std::vector<int32_t> ids;
  const float* logits = step(prompt_.back());
  while (ids.size() < limit) {
    const int32_t id = predict(logits, info_.vocab_size, 0).argmax;
    if (id == info_.eos_id) return detokenize(model_.get(), ids);
    ids.push_back(id);
    if (riffle_session_length(current_) >= static_cast<size_t>(n_ctx_)) break;
    logits = step(id);
  }
  return detokenize(model_.get(), ids) + " [unfinished]";  // never a right answer
}

Answer Evaluator::answer(const Question& q) {
  Answer a;
  rewind(prompt_, prompt_.size() - 1);
  a.in_order = true;
  const float* logits = step(prompt_.back());
  for (size_t i = 0; i < q.answer.size(); ++i) {
    const Prediction p = predict(logits, info_.vocab_size, q.answer[i]);
    a.nll -= p.logprob;
    a.in_order &= p.argmax == q.answer[i];
    if (i + 1 < q.answer.size()) logits = step(q.answer[i]);
  }
  if (map_) maps_.push_back(std::move(*map_));
  map_.reset();          // before anything is generated over the same positions
  a.right = a.in_order;  // what greedy decoding would have written, token by token
  if (!a.right && !q.values.empty()) {
    a.text = generate(2 * q.answer.size() + 16);
    a.right = eval::answer_right(q, a.text);
  }
  return a;
}

void Evaluator::describe(eval::HeatMap& map, const Setting& setting, const Question& question, const Answer& answer) {
  map.setting = setting.label;
  map.is_paper = setting.paper_default;
  map.length = length_;
  map.question = question.question_text;
  map.answer = question.answer_text;
  map.depth = question.depth;
  map.right = answer.right;
}

void Evaluator::ask(const Document& doc, Progress& progress, std::vector<Row>& rows) {
  const size_t n_questions = doc.questions.size(), n_settings = settings_.size();
  std::vector<std::vector<Answer>> answers(n_questions, std::vector<Answer>(n_settings));
  std::vector<size_t> prepared(sessions_.size(), n_questions);  // the question whose tail a session holds
  for (size_t k = 0; k < n_questions * n_settings; ++k) {
    // With a pool, all questions by one setting before the next one, or every setting would find in the pool what
    // dense reading left there.
    const size_t q = has_pool_ ? k % n_questions : k / n_settings;
    const size_t s = has_pool_ ? k / n_questions : k % n_settings;
    const Question& question = doc.questions[q];
    const Clock::time_point start = Clock::now();
    use(s);
    if (std::exchange(prepared[session_of_[s]], q) != q) {
      truncate(doc.tokens.size());
      prefill(question.tail.data(), question.tail.size() - 1, nullptr);
    }
    prompt_ = doc.tokens;
    prompt_.insert(prompt_.end(), question.tail.begin(), question.tail.end());
    begin(settings_[s]);
    const bool is_mapped = mapped_[s] && is_first_document_ && q == 0;
    if (is_mapped) map_ = std::make_unique<eval::HeatMap>();
    Answer& a = answers[q][s];
    a = answer(question);
    const Usage usage = end();
    if (is_mapped) describe(maps_.back(), settings_[s], question, a);
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
    use(s);
    begin(settings_[s]);
    rewind(doc.tokens, begin_at - 1);
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
  }
  for (const Session& session : sessions_) {
    current_ = session.get();
    truncate(begin_at - 1);
  }
}

void Evaluator::run_document(const Document& doc, const std::string& label, std::vector<Row>& rows) {
  size_t held = 0;
  // What has been read so far, by all sessions, goes on to `end`.
  const auto read_to = [&](size_t end) {
    for (size_t s = 0; s < settings_.size(); ++s) {
      if (s > 0 && session_of_[s] == 0) continue;
      use(s);
      if (held == 0) truncate(0);
      Progress progress(label + ", prefill" + (s ? " by " + settings_[s].label : ""), o_.common.quiet);
      prefill(doc.tokens.data() + held, end - held, &progress);
    }
    held = end;
  };
  // A register's end is no held-out text.
  if (o_.nll_tokens > 0 && !doc.is_register && !o_.dense_only) {
    read_to(doc.tokens.size() - static_cast<size_t>(o_.nll_tokens) - 1);
    Progress progress(label + ", held-out text", o_.common.quiet);
    read_text(doc, progress, rows);
  }
  read_to(doc.tokens.size());
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
      is_first_document_ = done == 0;
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
  for (const Row& r : rows) put_line(o_.compare ? eval::compare_row_json(r) : r.json());
  if (o_.common.json || rows.empty() || o_.dense_only || o_.compare) return;
  write_out(text_of("%d tokens\n", rows[0].length) + eval::rows_text(rows) + "\n");
}

// All that is left to say of a comparison once its rows are out.
void Evaluator::report_comparison(const std::vector<Row>& rows) {
  for (const eval::HeatMap& map : maps_) put_line(map.json());
  put_line(eval::summary_json(rows));
  if (!o_.common.json && !rows.empty()) write_out(eval::compare_text(rows));
  if (o_.report_path.empty()) return;
  std::ofstream file(o_.report_path, std::ios::binary | std::ios::trunc);
  file << eval::report_html(rows, maps_, o_) << std::flush;
  if (!file) throw Exit(EXIT_RUN, o_.report_path + ": cannot write");
  notice(o_.common.quiet, "report written to %s", o_.report_path.c_str());
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
    check(riffle_prefill_scored(current_, tokens.data(), tokens.size(), scores.data(), Progress::callback,
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
  std::vector<Row> dense, all;
  for (int64_t length : lengths_) {
    const std::vector<Row> rows = run_length(static_cast<int>(length), stopped);
    report(rows);
    if (!rows.empty()) dense.push_back(rows[0]);
    if (o_.compare) all.insert(all.end(), rows.begin(), rows.end());
    if (stopped) break;
  }
  if (o_.compare) report_comparison(all);
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

int run_eval(EvalOptions& options) { return Evaluator(options).run(); }

}  // namespace riffle::cli
