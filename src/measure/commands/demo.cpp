// riffle demo: a model reads a long document once, then answers questions about it, dense and
// sparse. A table shows the KV that each way read. The shipped model has a document and questions
// in its folder. For any other model, numbers are hidden in that document, and the questions are in
// the model's own chat template.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/common.h"
#include "cli/help.h"
#include "measure/commands/commands.h"
#include "measure/commands/eval/tasks.h"
#include "measure/commands/eval/vocabulary.h"

namespace riffle::cli {
namespace {

struct DemoOptions {
  CommonOptions common;
  std::string document, questions;
};

struct Question {
  std::string text,
      expected;  // expected: the exact answer, or (hidden) a number that the answer must name
  std::vector<int32_t> prompt;  // document and question
};

struct Script {
  std::string document;  // origin of the text
  size_t n_tokens;       // tokens of the document
  bool hidden;           // numbers are hidden in it
  std::vector<Question> questions;
};

// Results of one way of attending over all questions.
struct Tally {
  std::vector<std::string> answers;
  int correct = 0;
  Facts stats;
};

// Reads one question a line, and after a tab the answer that the document gives.
std::vector<Question> read_questions(const std::string& path) {
  std::vector<Question> out;
  const std::string text = read_file(path);
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    at = end + 1;
    const size_t tab = line.find('\t');
    if (tab == std::string::npos) continue;
    out.push_back({line.substr(0, tab), line.substr(tab + 1), {}});
  }
  if (out.empty()) throw Exit(EXIT_RUN, path + ": no line of the form QUESTION<tab>ANSWER");
  return out;
}

Script script_of_files(const DemoOptions& o, riffle_model* model) {
  std::string document = read_file(o.document);
  while (!document.empty() && document.back() == '\n') document.pop_back();
  Script script{o.document, tokenize(model, document, RIFFLE_TOKENIZE_BOS).size(), false,
                read_questions(o.questions)};
  for (Question& q : script.questions)
    q.prompt = chat_tokens(model, {{"user", with_document(document, q.text)}});
  return script;
}

// Hides eight numbers in the sample text, for a model that has no document of its own.
Script script_of_needles(const DemoOptions& o, riffle_model* model, const Facts& info) {
  constexpr int kNeedles = 8, kMostTokens = 24000;
  const std::string path = o.document.empty() ? sample_text_path(o.common.model_path) : o.document;
  const eval::Vocabulary vocabulary = eval_vocabulary(model, info);
  const eval::PromptForm form = eval::prompt_form(vocabulary);
  const std::vector<int32_t> text = eval::encode_text(vocabulary, read_file(path));
  const int64_t given = o.common.options.count("ctx"),
                n_ctx = given > 0 ? given : info.count("n_ctx_train");
  const int length = static_cast<int>(std::min<int64_t>({kMostTokens, n_ctx, std::ssize(text)}));
  eval::Random random(1);
  eval::Document doc;
  try {
    doc = eval::build_document(
        {eval::Task::MAGIC, std::vector<eval::Task>(kNeedles, eval::Task::NEEDLE)}, length,
        static_cast<int>(o.common.options.count("max-tokens")), 0, 1, text, vocabulary, form,
        random);
  } catch (const std::runtime_error& e) {
    throw Exit(EXIT_RUN, path + ": " + e.what());
  }
  Script script{path + ", with " + std::to_string(kNeedles) + " numbers hidden in it",
                doc.tokens.size(),
                true,
                {}};
  for (const eval::Question& q : doc.questions) {
    script.questions.push_back({q.question_text, q.values[0], doc.tokens});
    script.questions.back().prompt.insert(script.questions.back().prompt.end(), q.tail.begin(),
                                          q.tail.end());
  }
  return script;
}

bool is_right(const Script& script, const Question& q, const std::string& answer) {
  if (!script.hidden) return answer == q.expected;
  eval::Question asked{};
  asked.values = {q.expected};
  return eval::answer_right(asked, answer);
}

std::string answer(riffle_context* context, riffle_session* session, const Question& q,
                   int64_t max_tokens) {
  check(riffle_prefill_to(session, q.prompt.data(), q.prompt.size(), nullptr, nullptr), context);
  Options g;
  g.set("max-tokens", max_tokens);
  g.set("temp", 0);
  g.set("trim-start", true);
  std::string text;
  const auto append = [](void* user, size_t, const riffle_token* token) {
    static_cast<std::string*>(user)->append(token->text, token->text_len);
    return true;
  };
  riffle_result result{};
  check(riffle_generate(session, g.get(), append, &text, &result), context);
  if (result.finish == RIFFLE_FINISH_ABORTED) throw Exit(EXIT_INTERRUPTED, "");
  return text;
}

// One way of attending to the document, and its results.
struct Way {
  std::string name;
  Options selection;
  Tally tally{};
};

struct Outcome {
  Facts read;  // counters of reading the document
  double slot_bytes = 0;
  Way ways[2];   // dense, and the selector
  int same = 0;  // number of answers that are the same both ways
  int lost = 0;  // number of answers that are right with dense attention, not with the selector
  double seconds = 0;
};

// Chooses the given files, or else the files in the model's folder. Without questions, numbers are
// hidden in the sample text.
Script choose_script(DemoOptions& o, riffle_model* model, const Facts& info) {
  std::error_code error;
  if (o.questions.empty()) {
    const std::string beside =
        beside_model(resolve_model_path(o.common.model_path), "demo-questions.txt");
    if (std::filesystem::exists(beside, error)) o.questions = beside;
  }
  if (o.questions.empty()) return script_of_needles(o, model, info);
  if (o.document.empty())
    o.document = beside_model(resolve_model_path(o.common.model_path), "demo.txt");
  return script_of_files(o, model);
}

void answer_all(const DemoOptions& o, riffle_context* context, riffle_session* session,
                const Script& script, bool shows, Way& way) {
  check(riffle_context_select(context, way.selection.get()), context);
  riffle_reset_stats(context);
  Tally& tally = way.tally;
  for (const Question& q : script.questions) {
    const std::string text = answer(context, session, q, o.common.options.count("max-tokens"));
    if (shows) write_out((tally.answers.empty() ? "\nQ " : "Q ") + q.text + "\nA " + text + "\n");
    tally.correct += is_right(script, q, text);
    tally.answers.push_back(text);
  }
  tally.stats = context_stats(context);
}

void compare_answers(const Script& script, Outcome& out) {
  const auto &dense = out.ways[0].tally.answers, &sparse = out.ways[1].tally.answers;
  for (size_t i = 0; i < script.questions.size(); ++i) {
    const Question& q = script.questions[i];
    out.same += dense[i] == sparse[i];
    out.lost += is_right(script, q, dense[i]) && !is_right(script, q, sparse[i]);
  }
}

Json demo_json(const Script& script, const Outcome& out) {
  Json json = {{"document_tokens", script.n_tokens}, {"prefill", stats_json(out.read)},
               {"seconds", number(out.seconds)},     {"same_answers", out.same},
               {"lost_answers", out.lost},           {"questions", script.questions.size()}};
  for (const Way& way : out.ways)
    json["ways"].push_back({{"selector", way.name},
                            {"answers", way.tally.answers},
                            {"correct", way.tally.correct},
                            {"stats", stats_json(way.tally.stats)}});
  return json;
}

void print_table(size_t n_questions, const Outcome& out) {
  const bool pooled = out.read.count("pool_slots") > 0;  // device cpu has no pool
  std::vector<std::string> header = {"answering", "correct", "KV read"};
  if (pooled) header.insert(header.end(), {"pool hits", "copied to pool"});
  header.push_back("tokens/s");
  Table table(header);
  for (const Way& way : out.ways) {
    const Facts& s = way.tally.stats;
    std::vector<std::string> line = {
        way.name, std::to_string(way.tally.correct) + "/" + std::to_string(n_questions),
        percent(kv_read_pct(s))};
    if (pooled)
      line.insert(line.end(), {percent(pool_hit_pct(s)), human_bytes(s.number("loaded_bytes"))});
    line.push_back(text_of("%.0f", decode_rate(s)));
    table.add(line);
  }
  table.print();
}

void print_outcome(const Script& script, const Outcome& out) {
  const auto &dense = out.ways[0].tally.answers, &sparse = out.ways[1].tally.answers;
  const char* const selector = out.ways[1].name.c_str();
  for (size_t i = 0; i < script.questions.size(); ++i)
    if (dense[i] != sparse[i])
      write_out(std::string("\n") + selector +
                " answered differently: " + script.questions[i].text + "\n  " + sparse[i] + "\n");
  const Facts& read = out.read;
  std::string pool;
  if (read.count("pool_slots") > 0) {
    const double bytes = read.number("pool_slots") * out.slot_bytes;
    pool = text_of(", behind a pool of %.0f slots (%s)", read.number("pool_slots"),
                   human_bytes(bytes).c_str());
  }
  write_out(
      text_of("\nThe document was read at %.0f tokens/s; its KV, %s, stays in host memory%s.\n",
              prefill_rate(read), human_bytes(read.number("host_kv_bytes")).c_str(), pool.c_str()));
  print_table(script.questions.size(), out);
  write_out(text_of("%d of %zu answers are the same, dense and %s; %.0f seconds in all.\n",
                    out.same, script.questions.size(), selector, out.seconds));
}

int demo_main(DemoOptions& o) {
  const auto start = std::chrono::steady_clock::now();
  Model model = load_model(o.common);
  const Facts info = model_info(model.get());
  Options& options = o.common.options;
  const Script script = choose_script(o, model.get(), info);
  Outcome out;
  // If planning fails, creating the context fails too and reports the error.
  Options document = options;
  document.set("ctx", static_cast<uint64_t>(script.n_tokens));
  const Facts plan = plan_of(model.get(), document);
  out.slot_bytes = plan.number("slot_bytes");
  // The pool, of a GPU or emulated, has a quarter of the size of the document's KV, a little more
  // than one step reads.
  if (options.is("device", "auto") && plan.text("device") == "cpu") options.set("device", "emu");
  if (!options.is("device", "cpu") && !options.count("slots") && !options.size("gpu-mem"))
    options.set("slots", std::max<int64_t>(plan.count("host_kv") /
                                               std::max<int64_t>(1, plan.count("slot_bytes")) / 4,
                                           64));
  Context context = create_context(model.get(), options, o.common.quiet);
  Session session = create_session(context.get());
  InterruptGuard guard(context.get());
  say_notice(context.get(), o.common.quiet);
  notice(o.common.quiet, "%s reads %zu tokens of %s", info.text("name").c_str(), script.n_tokens,
         script.document.c_str());
  const std::vector<int32_t>& first = script.questions[0].prompt;
  {
    Progress progress("reading " + std::to_string(first.size()) + " tokens", o.common.quiet);
    check(riffle_prefill(session.get(), first.data(), first.size(), Progress::callback, &progress),
          context.get());
  }
  out.read = context_stats(context.get());
  out.ways[0] = {"dense", options, {}};
  out.ways[0].selection.set("selector", "dense");
  out.ways[1] = {options.text("selector"), options, {}};
  for (Way& way : out.ways)
    answer_all(o, context.get(), session.get(), script, !o.common.json && &way == out.ways, way);
  compare_answers(script, out);
  out.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (o.common.json) print_json(demo_json(script, out));
  else print_outcome(script, out);
  return out.lost == 0 ? EXIT_OK : EXIT_RUN;
}

}  // namespace

void add_demo(CLI::App& app, Command& chosen) {
  auto o = std::make_shared<DemoOptions>();
  o->common.options.set("max-tokens", 64);
  // Auto would read a short document whole, and both ways would be the same.
  o->common.options.set("selector", "share");
  CLI::App& command =
      add_command(app, "demo", "Watch a model read a long document and answer, dense and sparse");
  set_notes(command,
            "Exit code 1: an answer that dense attention gets right is wrong with the selector.",
            "");
  add_text(command, "--document", o->document,
           "text to read; default: demo.txt next to the model, else the shipped one")
      .value("FILE");
  add_text(command, "--questions", o->questions,
           "lines of QUESTION<tab>ANSWER; default: demo-questions.txt next to the model, "
           "else the questions ask for numbers hidden in the text")
      .value("FILE");
  add_common_flags(command, o->common,
                   CONTEXT_FLAGS | SELECTION_FLAGS | JSON_FLAG | CHAT_FLAG | WEIGHTS_FLAG);
  when_parsed(command, [o, &chosen] { chosen = [o] { return demo_main(*o); }; });
}

}  // namespace riffle::cli
