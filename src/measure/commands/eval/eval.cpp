// riffle eval: do answers survive sparse attention? Facts are hidden in real text, questions are
// asked about them, and every question is answered with dense attention and with each setting from
// the same prefilled KV. measure/commands/eval/tasks.h has the tasks.
//
// A document is prefilled once, and several questions are asked about it. For each question the
// session is cut back to the document, and the question is prefilled except for its last token.
// That token and the answer's tokens run as decode steps, so that all retrieval happens in steps
// that select blocks.
#include "measure/commands/eval/eval.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/common.h"
#include "measure/commands/eval/compare.h"
#include "measure/commands/eval/examiner.h"
#include "measure/commands/eval/html.h"
#include "measure/commands/eval/tasks.h"
#include "measure/commands/eval/vocabulary.h"

namespace riffle::cli {
namespace {

using eval::Document;
using eval::Question;
using eval::Row;
using eval::Setting;
using eval::Task;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Returns the processor's name from Linux; "unknown" elsewhere.
std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

// Returns the command that started this process, quoted for a shell.
std::string command_line() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string line;
  for (std::string word; std::getline(file, word, '\0');) {
    if (line.empty()) word = std::filesystem::path(word).filename().string();
    const bool plain = !word.empty() && word.find_first_not_of(
                                            "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                            "0123456789_-+=./:,%@") == std::string::npos;
    line += line.empty() ? "" : " ";
    if (plain) {
      line += word;
      continue;
    }
    for (size_t at = 0; (at = word.find('\'', at)) != std::string::npos; at += 4)
      word.replace(at, 1, "'\\''");
    line += "'" + word + "'";
  }
  return line;
}

std::string date_now() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  char text[32];
  if (!gmtime_r(&now, &utc) || !std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc))
    return "unknown";
  return text;
}

// The remark in a report about a run that Ctrl-C ended.
constexpr char kStopped[] = "early: the figures cover only the questions answered until then";

class Evaluator {
 public:
  explicit Evaluator(EvalOptions& options) : o_(options) {}
  int run();

 private:
  // The parts of run, in this order. Settings are checked as far as possible before the model is
  // loaded.
  void choose_tasks();
  void choose_settings();
  void open_model();
  void read_texts();
  void open_context();
  void keep_possible_settings();
  void open_examiner();
  void open_outputs();

  std::vector<int64_t> lengths() const;
  void note(const Setting& setting);
  void write_header();
  std::vector<Row> run_length(int length);
  std::vector<eval::PositionBucket> score_positions();
  void report(const std::vector<Row>& rows);
  void report_comparison(const std::vector<Row>& rows);
  void record(int length, const Document& doc, const std::vector<std::vector<EvalAnswer>>& answers);

  void put_line(const Json& json);
  std::string asked() const;
  RunFacts facts() const;

  EvalOptions& o_;
  Facts plan_;
  Model model_;
  Context context_;
  std::unique_ptr<Examiner> examiner_;
  Facts info_;
  eval::Vocabulary vocabulary_;
  eval::PromptForm form_;
  std::vector<Task> tasks_;        // tasks that are asked
  size_t n_kinds_ = 0;             // kinds in --tasks
  bool stopped_ = false;           // by Ctrl-C
  std::vector<Setting> settings_;  // the first is dense
  std::vector<int64_t> lengths_;
  std::vector<int32_t> text_;
  int n_ctx_ = 0;
  const std::string date_ = date_now();
  Json notices_ = Json::object();  // by setting
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
  // 1024 to 32000 are the lengths of the training recipe's own figures.
  const std::string list = given           ? o_.lengths
                           : o_.dense_only ? "1024,4096,8192,16384,32000"
                                           : "8192,16384,30000";
  const int64_t n_ctx = o_.common.options.count("ctx");
  const int64_t longest = n_ctx > 0 ? n_ctx : info_.count("n_ctx_train");
  // Lists and registers are made for their questions and use nothing from the text.
  const bool needs_text = !std::all_of(tasks_.begin(), tasks_.end(), eval::is_whole);
  const auto fits = [&](int64_t n) {
    return n <= longest && (!needs_text || n <= static_cast<int64_t>(text_.size()));
  };
  std::vector<int64_t> lengths;
  for (int64_t n : parse_size_list("--length", list)) {
    if (n < 256)
      throw Exit(EXIT_USAGE,
                 text_of("--length %lld: expected at least 256", static_cast<long long>(n)));
    if (o_.nll_tokens > n / 2) {
      throw Exit(EXIT_USAGE, text_of("--nll %d: expected at most half of --length %lld",
                                     o_.nll_tokens, static_cast<long long>(n)));
    }
    if (fits(n)) {
      lengths.push_back(n);
    } else if (given) {
      if (n > longest)
        throw Exit(EXIT_USAGE, text_of("--length %lld: the context holds %lld tokens%s",
                                       static_cast<long long>(n), static_cast<long long>(longest),
                                       n_ctx > 0 ? " (-c)" : ""));
      throw Exit(EXIT_USAGE, text_of("--length %lld: the text has %zu tokens, %lld are missing; "
                                     "give more with --text FILE...",
                                     static_cast<long long>(n), text_.size(),
                                     static_cast<long long>(n) - std::ssize(text_)));
    } else {
      notice(o_.common.quiet,
             "length %lld left out: the context holds %lld tokens and the text %zu",
             static_cast<long long>(n), static_cast<long long>(longest), text_.size());
    }
  }
  if (lengths.empty())
    throw Exit(
        EXIT_USAGE,
        text_of("no default length fits: the context holds %lld tokens and the text %zu; give "
                "--length N, or more text with --text FILE",
                static_cast<long long>(longest), text_.size()));
  return lengths;
}

void Evaluator::choose_tasks() {
  std::stringstream names(o_.tasks);
  for (std::string name; std::getline(names, name, ',');) {
    const std::optional<Task> task = eval::task_from_name(name);
    if (!task) {
      throw Exit(EXIT_USAGE,
                 "--tasks: unknown task '" + name + "'; known: " + eval::task_names(", "));
    }
    if (std::find(tasks_.begin(), tasks_.end(), *task) == tasks_.end()) tasks_.push_back(*task);
  }
  if (tasks_.empty()) throw Exit(EXIT_USAGE, "--tasks: no task given");
  n_kinds_ = tasks_.size();
  tasks_ = eval::spread_tasks(tasks_, o_.questions);
}

// Returns the names of the kinds that are asked; --tasks may name more kinds than there are
// questions.
std::string Evaluator::asked() const {
  std::string names;
  for (const Task task : tasks_)
    names += (names.empty() ? "" : ",") + std::string(eval::task_name(task));
  return tasks_.size() == n_kinds_
             ? o_.tasks
             : names + text_of(" (one each of %zu of %zu kinds)", tasks_.size(), n_kinds_);
}

void Evaluator::choose_settings() {
  const eval::SelectionFlags flags{o_.common.options, o_.selection_given};
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
      if (!s.selection.is("selector", "dense"))
        settings_.push_back(std::move(s));  // dense is already the first setting
    }
    if (!o_.prefill_shares.empty()) eval::add_prefill_shares(settings_, o_.prefill_shares);
  }
}

void Evaluator::open_model() {
  model_ = load_model(o_.common);
  info_ = model_info(model_.get());
  vocabulary_ = eval_vocabulary(model_.get(), info_);
  form_ = eval::prompt_form(vocabulary_);
  if (!form_.is_chat) {
    notice(o_.common.quiet,
           "%s has no chat template that riffle can evaluate: questions are asked in plain text",
           o_.common.model_path.c_str());
  }
}

void Evaluator::read_texts() {
  if (o_.text_paths.empty()) {
    o_.text_paths = {sample_text_path(o_.common.model_path)};
    notice(o_.common.quiet,
           "no --text: facts are hidden in %s, which a small model wrote; with --text FILE, give "
           "real text that the model was not trained on",
           o_.text_paths[0].c_str());
  }
  for (const std::string& path : o_.text_paths) {
    if (!text_.empty()) text_.insert(text_.end(), form_.newline.begin(), form_.newline.end());
    const std::vector<int32_t> ids = eval::encode_text(vocabulary_, read_file(path));
    text_.insert(text_.end(), ids.begin(), ids.end());
  }
  lengths_ = lengths();
}

void Evaluator::open_context() {
  Options options = o_.common.options;
  if (options.count("ctx") == 0) {
    // The context is no longer than needed, so that a pool or the host store is not planned for 32K
    // tokens if --length is 4K.
    int64_t needed = *std::max_element(lengths_.begin(), lengths_.end()) + 128;
    if (o_.dense_only)
      needed = std::max<int64_t>(needed, std::min<int64_t>(32768, info_.count("n_ctx_train")));
    options.set("ctx", std::min<int64_t>(needed, info_.count("n_ctx_train")));
  }
  if (!o_.prefill_shares.empty()) options.set("prefill-selector", "tiles");
  n_ctx_ = static_cast<int>(options.count("ctx"));
  plan_ = plan_of(model_.get(), options);  // if it fails, creating the context reports the error
  context_ = create_context(model_.get(), options, o_.common.quiet);
}

void Evaluator::keep_possible_settings() {
  std::vector<Setting> possible;
  for (const Setting& s : settings_) {
    if (riffle_context_select(context_.get(), s.selection.get()) == RIFFLE_OK) {
      possible.push_back(s);
      note(s);
    } else if (o_.compare && o_.compare_spec.empty()) {
      // The user did not ask for this setting by name, and a device need not have every selector.
      notice(o_.common.quiet, "%s left out: %s", s.label.c_str(),
             riffle_context_error(context_.get()));
    } else {
      throw Exit(EXIT_USAGE, s.label + ": " + riffle_context_error(context_.get()));
    }
  }
  settings_ = std::move(possible);
}

void Evaluator::open_examiner() {
  const bool by_paper =
      o_.heat_maps.empty() && !o_.report_path.empty() && !o_.report_path.ends_with(".svg");
  std::vector<bool> mapped = by_paper ? eval::paper_settings(settings_)
                                      : eval::named_settings(o_.heat_maps, settings_, "--heatmap");
  examiner_ = std::make_unique<Examiner>(o_, model_.get(), context_.get(), n_ctx_, settings_,
                                         std::move(mapped));
}

void Evaluator::open_outputs() {
  const auto open = [](std::ofstream& file, const std::string& path) {
    if (path.empty()) return;
    file.open(path, std::ios::app);
    if (!file) throw Exit(EXIT_RUN, path + ": cannot open for writing");
  };
  if (!o_.report_path.empty()) {
    std::ofstream report(o_.report_path, std::ios::app);  // fails now, not after the run
    if (!report) throw Exit(EXIT_RUN, o_.report_path + ": cannot open for writing");
  }
  open(out_, o_.out_path);
  open(records_, o_.records_path);
}

// Prints the context's notice about a setting, once for all settings that it applies to.
void Evaluator::note(const Setting& setting) {
  const std::string text = riffle_context_notice(context_.get());
  if (text.empty()) return;
  const bool known =
      std::any_of(notices_.begin(), notices_.end(), [&](const Json& j) { return j == text; });
  if (!known)
    for (const std::string& line : split(text, '\n'))
      notice(o_.common.quiet, "%s: %s", setting.label.c_str(), line.c_str());
  notices_[setting.label] = text;
}

void Evaluator::write_header() {
  Json j;
  j["type"] = "run";
  j["version"] = riffle_version();
  for (const auto& [name, value] : facts()) j["facts"][name] = value;
  j["model"] = o_.common.model_path;
  j["context"] = context_json(o_.common.options);
  j["n_ctx"] = n_ctx_;
  j["text"] = o_.text_paths;
  j["text_tokens"] = text_.size();
  j["questions"] = o_.questions;
  j["questions_per_document"] = o_.questions_per_document;
  j["answer_tokens"] = o_.answer_tokens;
  j["nll_tokens"] = o_.nll_tokens;
  j["seed"] = o_.seed;
  j["notices"] = notices_;
  put_line(j);
  if (o_.common.json) return;
  std::string head;
  for (const auto& [name, value] : facts()) head += name + ": " + value + "\n";
  write_out(head + "\n");
}

RunFacts Evaluator::facts() const {
  // File names are given without their folders: a report may be passed on to others.
  const auto name = [](const std::string& path) {
    return std::filesystem::path(path).filename().string();
  };
  std::string texts;
  for (const std::string& path : o_.text_paths) texts += (texts.empty() ? "" : ", ") + name(path);
  const Options& c = o_.common.options;
  const std::string gpu = plan_.on("device_memory") ? " (" + plan_.text("device_note") + ")" : "";
  RunFacts facts = {
      {"riffle", riffle_version()},
      {"model", text_of("%s (%s, %s)", name(o_.common.model_path).c_str(),
                        info_.text("name").c_str(), info_.text("weight_type").c_str())},
      {"prompt",
       form_.is_chat
           ? "chat template " + info_.text("chat_template_name")
           : std::string("plain text (the model has no chat template that riffle can evaluate)")},
      {"text", texts},
      {"device", (plan_.empty() ? c.text("device") : plan_.text("device")) + gpu},
      {"CPU", text_of("%s, %s, %d threads", cpu_name().c_str(),
                      plan_.empty() ? "?" : plan_.text("isa").c_str(), plan_.id("n_threads"))},
      {"KV", text_of("%s, blocks of %d tokens", c.text("kv").c_str(), plan_.id("block_size"))},
      {"questions",
       text_of("%d per length, %d to a document: %s; seed %llu; answers of up to %d tokens",
               o_.questions, o_.questions_per_document, asked().c_str(),
               static_cast<unsigned long long>(o_.seed), o_.answer_tokens)},
      {"held-out text", text_of("%d tokens at the end of each document", o_.nll_tokens)},
      {"date", date_},
      {"command", command_line()}};
  if (stopped_) facts.push_back({"stopped", kStopped});
  return facts;
}

std::vector<Row> Evaluator::run_length(int length) {
  const Clock::time_point start = Clock::now();
  const std::vector<eval::DocumentPlan> plans =
      eval::plan_documents(tasks_, o_.questions, o_.questions_per_document, length);
  std::vector<Row> rows(settings_.size());
  for (size_t s = 0; s < rows.size(); ++s) {
    rows[s].setting = settings_[s];
    rows[s].length = length;
  }
  // The depths of facts are spread over the documents of a kind.
  int count[eval::kTasks] = {}, index[eval::kTasks] = {};
  for (const eval::DocumentPlan& p : plans) ++count[static_cast<int>(p.whole)];
  size_t n_tokens = 0, done = 0;
  try {
    for (const eval::DocumentPlan& plan : plans) {
      // A document depends only on the seed, the length, its kind and its number among its kind.
      const int kind = static_cast<int>(plan.whole);
      eval::Random random(o_.seed * 1000003 + static_cast<uint64_t>(length) * 4001 +
                          static_cast<uint64_t>(eval::kTasks * index[kind] + kind));
      random.next();
      Document doc;
      try {
        doc = eval::build_document(plan, length, o_.answer_tokens, index[kind], count[kind], text_,
                                   vocabulary_, form_, random);
      } catch (const Exit&) {
        throw;
      } catch (const std::runtime_error& e) {
        throw Exit(EXIT_USAGE, text_of("--length %d: %s", length, e.what()));
      }
      ++index[kind];
      record(length, doc,
             examiner_->run(
                 doc, text_of("length %d, document %zu of %zu", length, done + 1, plans.size()),
                 length, done == 0, rows));
      n_tokens += doc.tokens.size();
      ++done;
    }
  } catch (const Exit& e) {
    if (e.code() != EXIT_INTERRUPTED) throw;
    stopped_ = true;
  }
  std::vector<Row> counted;
  for (Row& r : rows) {
    if (r.asked() > 0) counted.push_back(std::move(r));
  }
  if (done > 0) {
    notice(o_.common.quiet, "length %d: %zu documents, %.0f tokens on average, %.1f s%s", length,
           done, static_cast<double>(n_tokens) / static_cast<double>(done), seconds_since(start),
           stopped_ ? " (stopped early)" : "");
  }
  return counted;
}

void Evaluator::record(int length, const Document& doc,
                       const std::vector<std::vector<EvalAnswer>>& answers) {
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
      const EvalAnswer& a = answers[q][s];
      Json one;
      one["setting"] = settings_[s].label;
      one["right"] = eval::has_answer(question.task) ? Json(a.right) : Json(nullptr);
      if (a.agreement.answers > 0) {
        one["steps"] = a.agreement.divergence.size();
        one["same_first"] = a.agreement.same;
        one["until_parting"] = a.agreement.until_parting;
        one["divergence"] = number(a.agreement.divergence_mean());
      }
      one["kv_read_pct"] = number(a.read_pct);
      one["text"] = a.text;
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

// Writes the rest of a comparison after its rows: heat maps, summary, table and report.
void Evaluator::report_comparison(const std::vector<Row>& rows) {
  for (const eval::HeatMap& map : examiner_->maps()) put_line(map.json());
  put_line(eval::summary_json(rows));
  if (!o_.common.json && !rows.empty()) write_out(eval::compare_text(rows));
  if (!o_.common.json && stopped_) write_out(std::string("\nstopped ") + kStopped + "\n");
  if (o_.report_path.empty()) return;
  std::ofstream file(o_.report_path, std::ios::binary | std::ios::trunc);
  file << (o_.report_path.ends_with(".svg") ? eval::report_svg(rows)
                                            : eval::report_html(rows, examiner_->maps(), facts()))
       << std::flush;
  if (!file) throw Exit(EXIT_RUN, o_.report_path + ": cannot write");
  notice(o_.common.quiet, "report written to %s", o_.report_path.c_str());
}

// Scores evenly spaced segments of the text, each predicted from its own beginning (after <s>) in
// one prefill.
std::vector<eval::PositionBucket> Evaluator::score_positions() {
  const int segment =
      static_cast<int>(std::min<int64_t>({32768, n_ctx_, static_cast<int64_t>(text_.size())}));
  std::vector<eval::PositionBucket> buckets = eval::position_buckets(segment);
  const size_t spare = text_.size() - static_cast<size_t>(segment);
  for (int w = 0; w < o_.nll_segments; ++w) {
    const size_t begin = o_.nll_segments > 1 ? spare / static_cast<size_t>(o_.nll_segments - 1) *
                                                   static_cast<size_t>(w)
                                             : 0;
    std::vector<int32_t> tokens;
    if (info_.id("bos_id") >= 0) tokens.push_back(info_.id("bos_id"));
    tokens.insert(tokens.end(), text_.begin() + static_cast<ptrdiff_t>(begin),
                  text_.begin() + static_cast<ptrdiff_t>(begin) + segment - std::ssize(tokens));
    Progress progress(text_of("held-out segment %d of %d", w + 1, o_.nll_segments),
                      o_.common.quiet);
    const std::vector<riffle_score> scores = examiner_->score(tokens, progress);
    for (eval::PositionBucket& b : buckets) {
      // The last token of the segment has no next token to score.
      for (int i = b.begin; i < std::min(b.end, segment - 1); ++i) {
        b.sum -= static_cast<double>(scores[i].next_logprob);
        ++b.n;
      }
    }
  }
  return buckets;
}

int Evaluator::run() {
  choose_tasks();
  choose_settings();
  open_model();
  read_texts();
  open_context();
  keep_possible_settings();
  open_examiner();
  open_outputs();
  Json reference;
  if (!o_.reference_path.empty()) {
    reference = Json::parse(read_file(o_.reference_path), nullptr, false);
    if (reference.is_discarded()) throw Exit(EXIT_USAGE, o_.reference_path + ": not JSON");
  }
  write_header();
  InterruptGuard guard(context_.get());
  std::vector<Row> dense, all;
  for (int64_t length : lengths_) {
    const std::vector<Row> rows = run_length(static_cast<int>(length));
    report(rows);
    if (!rows.empty()) dense.push_back(rows[0]);
    if (o_.compare) all.insert(all.end(), rows.begin(), rows.end());
    if (stopped_) break;
  }
  if (o_.compare) report_comparison(all);
  if (o_.dense_only) {
    std::vector<eval::PositionBucket> buckets;
    try {
      if (!stopped_ && o_.nll_segments > 0) buckets = score_positions();
    } catch (const Exit& e) {
      if (e.code() != EXIT_INTERRUPTED) throw;
      stopped_ = true;
    }
    if (!buckets.empty()) {
      Json j;
      j["type"] = "nll";
      for (const eval::PositionBucket& b : buckets)
        j["nll"][b.name()] = number(b.sum / static_cast<double>(b.n));
      j["segments"] = o_.nll_segments;
      put_line(j);
    }
    if (!o_.common.json) write_out(eval::dense_text(dense, buckets, reference));
  }
  const Facts stats = context_stats(context_.get());
  notice(o_.common.quiet, "peak memory %s", human_bytes(stats.number("peak_rss_bytes")).c_str());
  Json j;
  j["type"] = "end";
  j["stopped"] = stopped_;
  j["peak_rss_bytes"] = stats.count("peak_rss_bytes");
  put_line(j);
  return stopped_ ? EXIT_INTERRUPTED : EXIT_OK;
}

}  // namespace

int run_eval(EvalOptions& options) { return Evaluator(options).run(); }

}  // namespace riffle::cli
