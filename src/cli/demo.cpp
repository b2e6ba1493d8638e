// riffle demo: a model reads a long document once, then answers questions about it, dense and
// sparse; a table says what each way read. The shipped model has a document and questions of its
// own beside it; for any other model numbers are hidden in that document, in the model's own chat
// template.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/common.h"
#include "cli/eval/tasks.h"
#include "cli/eval/vocabulary.h"

namespace riffle::cli {
namespace {

struct DemoOptions {
  CommonOptions common;
  std::string document, questions;
};

struct Question {
  std::string text,
      expected;  // expected: the very words, or (hidden) a number that the answer must name
  std::vector<int32_t> prompt;  // document and question
};

struct Script {
  std::string document;  // where its text is from
  size_t n_tokens;       // of the document
  bool hidden;           // facts of ours are hidden in it
  std::vector<Question> questions;
};

// What one way of attending did over all questions.
struct Tally {
  std::vector<std::string> answers;
  int correct = 0;
  riffle_stats stats{};
};

std::string beside_model(const CommonOptions& common, const char* name) {
  const std::string model = resolve_model_path(common.model_path);
  const size_t slash = model.rfind('/');
  return (slash == std::string::npos ? std::string() : model.substr(0, slash + 1)) + name;
}

// One question a line; behind a tab, what the document says.
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

// Eight numbers hidden in the sample text, for a model that has no document of its own.
Script script_of_needles(const DemoOptions& o, riffle_model* model, const riffle_model_info& info) {
  constexpr int kNeedles = 8, kMostTokens = 24000;
  const std::string path = o.document.empty() ? sample_text_path(o.common.model_path) : o.document;
  const eval::Vocabulary vocabulary = eval_vocabulary(model, info);
  const eval::PromptForm form = eval::prompt_form(vocabulary);
  const std::vector<int32_t> text = eval::encode_text(vocabulary, read_file(path));
  const int n_ctx = o.common.context.n_ctx > 0 ? o.common.context.n_ctx : info.n_ctx_train;
  const int length = static_cast<int>(std::min<int64_t>({kMostTokens, n_ctx, std::ssize(text)}));
  eval::Random random(1);
  eval::Document doc;
  try {
    doc = eval::build_document(
        {eval::Task::MAGIC, std::vector<eval::Task>(kNeedles, eval::Task::NEEDLE)}, length,
        o.common.max_tokens, 0, 1, text, vocabulary, form, random);
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
                   int32_t max_tokens) {
  check(riffle_prefill_to(session, q.prompt.data(), q.prompt.size(), nullptr, nullptr), context);
  riffle_generate_options g;
  riffle_generate_defaults(&g);
  g.max_tokens = max_tokens;
  g.sampling.temperature = 0;
  g.trim_start = true;
  std::string text;
  const auto append = [](void* user, size_t, int32_t, const char* piece, size_t n) {
    static_cast<std::string*>(user)->append(piece, n);
    return true;
  };
  riffle_result result{};
  check(riffle_generate(session, &g, append, &text, &result), context);
  if (result.finish == RIFFLE_FINISH_ABORTED) throw Exit(EXIT_INTERRUPTED, "");
  return text;
}

int demo_main(DemoOptions& o) {
  const auto start = std::chrono::steady_clock::now();
  Model model = load_model(o.common);
  const riffle_model_info info = model_info(model.get());
  riffle_context_options& options = o.common.context;
  // A model with files of its own beside it, or given ones; else facts are hidden in the sample
  // text.
  std::error_code error;
  if (o.questions.empty()) {
    const std::string beside = beside_model(o.common, "demo-questions.txt");
    if (std::filesystem::exists(beside, error)) o.questions = beside;
  }
  if (!o.questions.empty() && o.document.empty()) o.document = beside_model(o.common, "demo.txt");
  const Script script = o.questions.empty() ? script_of_needles(o, model.get(), info)
                                            : script_of_files(o, model.get());
  const std::vector<Question>& questions = script.questions;
  const size_t n_document = script.n_tokens;
  const int64_t blocks =
      static_cast<int64_t>(n_document) / options.block_size * info.n_layers * info.n_kv_heads;
  // A pool a quarter the size of the document's KV, about what one step reads and a little more: on
  // a GPU, or emulated.
  if (options.device != RIFFLE_DEVICE_CPU && !options.slots && !options.gpu_mem)
    options.slots = std::max<int64_t>(blocks / 4, 64);
  Context context = create_context(model.get(), options, o.common.quiet);
  Session session = create_session(context.get());
  InterruptGuard guard(context.get());
  say_notice(context.get(), o.common.quiet);
  notice(o.common.quiet, "%s reads %zu tokens of %s", info.name, n_document,
         script.document.c_str());
  const std::vector<int32_t>& first = questions[0].prompt;
  {
    Progress progress("reading " + std::to_string(first.size()) + " tokens", o.common.quiet);
    check(riffle_prefill(session.get(), first.data(), first.size(), Progress::callback, &progress),
          context.get());
  }
  const riffle_stats read = context_stats(context.get());

  riffle_selection sparse = options.selection, dense = sparse;
  dense.selector = RIFFLE_SELECTOR_DENSE;
  const std::pair<const char*, riffle_selection> ways[] = {
      {"dense", dense}, {selector_name(sparse.selector), sparse}};
  Tally tallies[2];
  for (int w = 0; w < 2; ++w) {
    check(riffle_set_selection(context.get(), &ways[w].second), context.get());
    riffle_reset_stats(context.get());
    for (const Question& q : questions) {
      const std::string text = answer(context.get(), session.get(), q, o.common.max_tokens);
      if (!o.common.json && w == 0)
        write_out((tallies[0].answers.empty() ? "\nQ " : "Q ") + q.text + "\nA " + text + "\n");
      tallies[w].correct += is_right(script, q, text);
      tallies[w].answers.push_back(text);
    }
    tallies[w].stats = context_stats(context.get());
  }
  int same = 0, lost = 0;
  for (size_t i = 0; i < questions.size(); ++i) {
    same += tallies[0].answers[i] == tallies[1].answers[i];
    lost += is_right(script, questions[i], tallies[0].answers[i]) &&
            !is_right(script, questions[i], tallies[1].answers[i]);
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();

  if (o.common.json) {
    Json out = {{"document_tokens", n_document}, {"prefill", stats_json(read)},
                {"seconds", number(seconds)},    {"same_answers", same},
                {"lost_answers", lost},          {"questions", questions.size()}};
    for (int w = 0; w < 2; ++w)
      out["ways"].push_back({{"selector", ways[w].first},
                             {"answers", tallies[w].answers},
                             {"correct", tallies[w].correct},
                             {"stats", stats_json(tallies[w].stats)}});
    print_json(out);
  } else {
    for (size_t i = 0; i < questions.size(); ++i)
      if (tallies[0].answers[i] != tallies[1].answers[i])
        write_out(std::string("\n") + ways[1].first + " answered otherwise: " + questions[i].text +
                  "\n  " + tallies[1].answers[i] + "\n");
    const bool pooled = read.pool_slots > 0;  // the CPU reads the KV where it is
    std::string pool;
    if (pooled) {
      const double bytes =
          double(read.pool_slots) * double(read.host_kv_bytes) / std::max<double>(1, blocks);
      pool = text_of(", behind a pool of %lld slots (%s)", static_cast<long long>(read.pool_slots),
                     human_bytes(bytes).c_str());
    }
    write_out(
        text_of("\nThe document was read at %.0f tokens/s; its KV, %s, stays in host memory%s.\n",
                prefill_rate(read), human_bytes(double(read.host_kv_bytes)).c_str(), pool.c_str()));
    std::vector<std::string> header = {"answering", "correct", "KV read"};
    if (pooled) header.insert(header.end(), {"pool hits", "copied to pool"});
    header.push_back("tokens/s");
    Table table(header);
    for (int w = 0; w < 2; ++w) {
      const riffle_stats& s = tallies[w].stats;
      std::vector<std::string> line = {
          ways[w].first,
          std::to_string(tallies[w].correct) + "/" + std::to_string(questions.size()),
          percent(kv_read_pct(s))};
      if (pooled)
        line.insert(line.end(), {percent(pool_hit_pct(s)), human_bytes(double(s.loaded_bytes))});
      line.push_back(text_of("%.0f", decode_rate(s)));
      table.add(line);
    }
    table.print();
    write_out(text_of("%d of %zu answers are the same, dense and %s; %.0f seconds in all.\n", same,
                      questions.size(), ways[1].first, seconds));
  }
  return lost == 0 ? EXIT_OK : EXIT_RUN;
}

}  // namespace

void add_demo(CLI::App& app, Command& chosen) {
  auto o = std::make_shared<DemoOptions>();
  o->common.max_tokens = 64;
  CLI::App* sub =
      app.add_subcommand("demo", "Watch a model read a long document and answer, dense and sparse");
  sub->footer("Ends with 1 if an answer that is right when dense is not right when sparse.");
  sub->add_option("--document", o->document,
                  "text to read (default: demo.txt beside the model, else the shipped one)")
      ->type_name("FILE");
  sub->add_option("--questions", o->questions,
                  "lines of QUESTION<tab>ANSWER (default: demo-questions.txt beside the model; "
                  "without it numbers are hidden in the text)")
      ->type_name("FILE");
  add_common_flags(*sub, o->common,
                   CONTEXT_FLAGS | SELECTION_FLAGS | JSON_FLAG | CHAT_FLAG | WEIGHTS_FLAG);
  sub->final_callback([o, &chosen] { chosen = [o] { return demo_main(*o); }; });
}

}  // namespace riffle::cli
