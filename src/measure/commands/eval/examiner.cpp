#include "measure/commands/eval/examiner.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "cli/common.h"

namespace riffle::cli {
namespace {

using eval::best_token;
using eval::Document;
using eval::log_sum_exp;
using eval::Question;
using eval::Row;
using eval::Setting;
using eval::Usage;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

bool reads_itself(const Options& s) {
  return s.is("selector", "tokenselect") && s.is("positions", "list");
}

}  // namespace

Examiner::Examiner(const EvalOptions& options, riffle_model* model, riffle_context* context,
                   int n_ctx, std::vector<Setting> settings, std::vector<bool> mapped)
    : o_(options),
      model_(model),
      context_(context),
      vocab_size_(model_info(model).id("vocab_size")),
      n_ctx_(n_ctx),
      has_pool_(context_stats(context).count("pool_slots") > 0),
      settings_(std::move(settings)),
      mapped_(std::move(mapped)) {
  for (size_t s = 0; s < settings_.size(); ++s) {
    size_t session = 0;
    while (session < sessions_.size() &&
           (reads_itself(settings_[s].selection) ||
            reads_itself(settings_[reader_of_[session]].selection) ||
            settings_[s].prefill_share != settings_[reader_of_[session]].prefill_share))
      ++session;
    session_of_.push_back(session);
    if (session < sessions_.size()) continue;
    sessions_.push_back(create_session(context_));
    reader_of_.push_back(s);
  }
  current_ = sessions_[0].get();
}

const float* Examiner::step(int32_t token) {
  riffle_session* session = current_;
  check(riffle_step(context_, &session, &token, 1), context_);
  const float* logits = riffle_logits(session);
  if (!logits) throw Exit(EXIT_RUN, "no logits after a decode step");
  return logits;
}

void Examiner::use(size_t setting) { use_session(session_of_[setting]); }

void Examiner::use_session(size_t session) {
  session_ = session;
  current_ = sessions_[session].get();
  const Setting& reader = settings_[reader_of_[session]];
  check(riffle_context_select(context_, reader.selection.get()), context_);
  if (!o_.prefill_shares.empty())
    check(riffle_set_prefill_share(context_, static_cast<float>(reader.prefill_share.value_or(0))),
          context_);
}

void Examiner::prefill(const int32_t* tokens, size_t n, Progress* progress) {
  if (n == 0) return;
  check(riffle_prefill(current_, tokens, n, progress ? Progress::callback : nullptr, progress),
        context_);
}

void Examiner::go_back(const std::vector<int32_t>& text, size_t n) {
  const size_t keep = riffle_session_reach(current_, n);
  truncate(keep);
  prefill(text.data() + keep, n - keep, nullptr);
}

void Examiner::on_report(void* user, const riffle_row_report* report) {
  Examiner& self = *static_cast<Examiner*>(user);
  self.usage_.add(*report);
  if (self.map_) self.map_->add(*report);
}

std::vector<riffle_score> Examiner::score(const std::vector<int32_t>& tokens, Progress& progress) {
  std::vector<riffle_score> scores(tokens.size());
  use(0);
  truncate(0);
  check(riffle_prefill_scored(current_, tokens.data(), tokens.size(), scores.data(),
                              Progress::callback, &progress),
        context_);
  return scores;
}

void Examiner::begin(const Setting& setting) {
  usage_ = Usage();
  reread_bytes_ = 0;
  check(riffle_context_select(context_, setting.selection.get()), context_);
  selector_ = setting.selection.text("selector");
  const bool coverage = o_.coverage && selector_ != "dense";
  check(riffle_set_row_report(context_, on_report, this, coverage), context_);
  riffle_reset_stats(context_);
}

Usage Examiner::end() {
  Facts stats = context_stats(context_);
  stats.set("loaded_bytes", stats.number("loaded_bytes") - reread_bytes_);
  usage_.add(stats);
  check(riffle_set_row_report(context_, nullptr, nullptr, false), context_);
  return std::move(usage_);
}

// Cuts back to the first n tokens of the prompt. A selector's later state (candidates, a cached
// selection) must not reach the next answer, and a selector that learns from the queries at a
// prompt's end must learn from the end of this prompt. So the end is read again under the current
// setting. Dense prefill gives the same KV wherever it is cut (on a GPU to within rounding).
void Examiner::rewind(const std::vector<int32_t>& prompt, size_t n) {
  constexpr size_t kReread = 64;
  const bool remembers = selector_ == "tokenselect" || selector_ == "lfps";
  size_t keep = !reads_itself(settings_[reader_of_[session_]].selection) && remembers
                    ? n - std::min(n, kReread)
                    : n;
  // The cut is not at the document's end either: state that lfps learnt there would be kept.
  if (keep == document_end_ && keep > 0 && keep < n) --keep;
  keep = riffle_session_reach(current_, keep);
  truncate(keep);
  // With a pool, prefill loads all KV once. The selector's figures must not include these bytes.
  const double before = context_stats(context_).number("loaded_bytes");
  prefill(prompt.data() + keep, n - keep, nullptr);
  reread_bytes_ += context_stats(context_).number("loaded_bytes") - before;
}

// Returns the greedy answer to the prompt under the current setting.
Examiner::Spoken Examiner::speak(size_t limit, bool keep_logits) {
  rewind(prompt_, prompt_.size() - 1);
  Spoken spoken;
  int32_t token = prompt_.back();
  while (spoken.tokens.size() < limit &&
         riffle_session_length(current_) < static_cast<size_t>(n_ctx_)) {
    const float* logits = step(token);
    if (keep_logits) spoken.by.emplace_back(logits, vocab_size_);
    token = best_token(logits, vocab_size_);
    spoken.tokens.push_back(token);
    if (riffle_is_end_token(model_, token)) break;
  }
  // An end token is not part of the text, even if the token has a text.
  std::vector<int32_t> said = spoken.tokens;
  if (!said.empty() && riffle_is_end_token(model_, said.back())) said.pop_back();
  spoken.text = detokenize(model_, said);
  return spoken;
}

// Runs the dense answer's tokens under the current setting, and compares the token that the setting
// would have drawn at each step.
eval::Agreement Examiner::follow(const Spoken& dense) {
  rewind(prompt_, prompt_.size() - 1);
  eval::Agreement agreement;
  bool parted = false;
  for (size_t i = 0; i < dense.tokens.size(); ++i) {
    const float* logits = step(i == 0 ? prompt_.back() : dense.tokens[i - 1]);
    const bool same = best_token(logits, vocab_size_) == dense.tokens[i];
    parted |= !same;
    agreement.same += same;
    agreement.until_parting += !parted;
    agreement.divergence.push_back(static_cast<float>(dense.by[i].divergence(logits)));
  }
  agreement.answers = 1;
  agreement.identical = !parted;
  return agreement;
}

EvalAnswer Examiner::answer(const Question& q, Spoken& dense, bool is_dense) {
  const size_t limit = std::max(q.answer.size(), static_cast<size_t>(o_.answer_tokens));
  EvalAnswer a;
  if (is_dense) {
    dense = speak(limit, settings_.size() > 1);
    a.text = dense.text;
    a.in_order = dense.tokens == q.answer;
  } else {
    a.agreement = follow(dense);
    if (map_) maps_.push_back(std::move(*map_));
    map_.reset();  // before speak runs the same positions again
    // If every step agrees, the setting's own answer is the dense one.
    Spoken spoken;
    if (!a.agreement.identical) spoken = speak(limit, false);
    const Spoken& own = a.agreement.identical ? dense : spoken;
    a.text = own.text;
    a.in_order = own.tokens == q.answer;
  }
  a.right = eval::answer_right(q, a.text);
  return a;
}

void Examiner::describe(eval::HeatMap& map, const Setting& setting, const Question& question,
                        const EvalAnswer& answer) const {
  map.setting = setting.label;
  map.is_paper = setting.paper_default;
  map.length = length_;
  map.question = question.question_text;
  map.answer = question.answer_text;
  map.depth = question.depth;
  map.right = answer.right;
}

std::vector<std::vector<EvalAnswer>> Examiner::ask(const Document& doc, Progress& progress,
                                                   std::vector<Row>& rows) {
  const size_t n_questions = doc.questions.size(), n_settings = settings_.size();
  document_end_ = doc.tokens.size();
  std::vector<std::vector<EvalAnswer>> answers(n_questions, std::vector<EvalAnswer>(n_settings));
  std::vector<size_t> prepared(sessions_.size(),
                               n_questions);  // by session: the question whose tail it holds
  std::vector<Spoken> dense(has_pool_ ? n_questions : 1);
  for (size_t k = 0; k < n_questions * n_settings; ++k) {
    // With a pool, one setting answers all questions before the next setting does. Otherwise every
    // setting would find blocks in the pool that dense attention had left there.
    const size_t q = has_pool_ ? k % n_questions : k / n_settings;
    const size_t s = has_pool_ ? k / n_questions : k % n_settings;
    const Question& question = doc.questions[q];
    const Clock::time_point start = Clock::now();
    use(s);
    if (std::exchange(prepared[session_of_[s]], q) != q) {
      go_back(doc.tokens, doc.tokens.size());
      prefill(question.tail.data(), question.tail.size() - 1, nullptr);
    }
    prompt_ = doc.tokens;
    prompt_.insert(prompt_.end(), question.tail.begin(), question.tail.end());
    begin(settings_[s]);
    const bool is_mapped = mapped_[s] && is_first_ && q == 0;
    if (is_mapped) map_ = std::make_unique<eval::HeatMap>();
    EvalAnswer& a = answers[q][s];
    a = answer(question, dense[has_pool_ ? q : 0], s == 0);
    const Usage usage = end();
    if (is_mapped) describe(maps_.back(), settings_[s], question, a);
    a.read_pct = usage.read_pct();
    const EvalAnswer& dense_answer = answers[q][0];
    Row& row = rows[s];
    row.answers.add(usage);
    row.agreement.add(a.agreement);
    eval::Marks m;
    m.n = 1;
    m.dense = dense_answer.right;
    m.sparse = a.right;
    m.both = dense_answer.right && a.right;
    m.dense_in_order = dense_answer.in_order;
    row.tasks[static_cast<int>(question.task)].add(m);
    row.seconds += seconds_since(start);
    progress.update(static_cast<double>(k + 1), static_cast<double>(n_questions * n_settings));
  }
  return answers;
}

// Measures the held-out nll at the end of the document, without its facts. Requires: the session
// holds all tokens except the last nll_tokens + 1. After: it holds the same tokens.
void Examiner::read_text(const Document& doc, Progress& progress, std::vector<Row>& rows) {
  const size_t n = doc.tokens.size(), begin_at = n - static_cast<size_t>(o_.nll_tokens);
  std::vector<double> dense(n, 0);
  for (size_t s = 0; s < settings_.size(); ++s) {
    const Clock::time_point start = Clock::now();
    use(s);
    begin(settings_[s]);
    rewind(doc.tokens, begin_at - 1);
    Row& row = rows[s];
    double sum = 0, dense_sum = 0, squares = 0;
    uint64_t counted = 0;
    for (size_t i = begin_at; i < n; ++i) {
      const float* logits = step(doc.tokens[i - 1]);
      const double nll =
          log_sum_exp(logits, vocab_size_) - static_cast<double>(logits[doc.tokens[i]]);
      if (s == 0) dense[i] = nll;
      if (!doc.is_text[i]) continue;
      sum += nll;
      dense_sum += dense[i];
      squares += (nll - dense[i]) * (nll - dense[i]);
      ++counted;
      progress.update(static_cast<double>(s * (n - begin_at) + i - begin_at),
                      static_cast<double>(settings_.size() * (n - begin_at)));
    }
    const Usage usage = end();
    // The sums are added only now, so that an interrupted pass does not count.
    row.text_nll_sparse += sum;
    row.text_nll_dense += dense_sum;
    row.text_nll_squares += squares;
    row.text_tokens += counted;
    row.text.add(usage);
    row.seconds += seconds_since(start);
  }
  for (size_t i = 0; i < sessions_.size(); ++i) {
    use_session(i);
    go_back(doc.tokens, begin_at - 1);
  }
}

std::vector<std::vector<EvalAnswer>> Examiner::run(const Document& doc, const std::string& label,
                                                   int length, bool is_first,
                                                   std::vector<Row>& rows) {
  length_ = length;
  is_first_ = is_first;
  size_t held = 0;
  // Makes all sessions read on to `end`.
  const auto read_to = [&](size_t end) {
    for (size_t i = 0; i < sessions_.size(); ++i) {
      use_session(i);
      if (held == 0) truncate(0);
      Progress progress(label + ", prefill" + (i ? " by " + settings_[reader_of_[i]].label : ""),
                        o_.common.quiet);
      const Facts before = context_stats(context_);
      prefill(doc.tokens.data() + held, end - held, &progress);
      const Facts after = context_stats(context_);
      const auto grown = [&](const char* name) { return after.count(name) - before.count(name); };
      for (size_t s = 0; s < settings_.size(); ++s) {
        if (session_of_[s] != i || !settings_[s].prefill_share) continue;
        rows[s].tiles_seen += grown("prefill_tiles_seen");
        rows[s].tiles_read += grown("prefill_tiles_read");
      }
    }
    held = end;
  };
  // The end of a register or a list of words is not held-out text.
  if (o_.nll_tokens > 0 && !doc.is_whole && !o_.dense_only) {
    if (doc.tokens.size() < static_cast<size_t>(o_.nll_tokens) + 2)
      throw Exit(
          EXIT_USAGE,
          text_of(
              "--nll %d: a document of --length %d has %zu tokens besides its question and answer, "
              "expected at least %d; give a smaller --nll or --answer-tokens",
              o_.nll_tokens, length, doc.tokens.size(), o_.nll_tokens + 2));
    read_to(doc.tokens.size() - static_cast<size_t>(o_.nll_tokens) - 1);
    Progress progress(label + ", held-out text", o_.common.quiet);
    read_text(doc, progress, rows);
  }
  read_to(doc.tokens.size());
  Progress progress(label + ", questions", o_.common.quiet);
  return ask(doc, progress, rows);
}

}  // namespace riffle::cli
