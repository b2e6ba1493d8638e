// riffle chat: a conversation, on a terminal or through a pipe.
#include <unistd.h>

#include "cli/common.h"
#include "cli/line_editor.h"
#include "cli/seed.h"

namespace riffle::cli {
namespace {

const char* const kHelp = R"(/load FILE  read a document; it goes in front of your next question
/stats      what was read, how fast, and the seed
/clear      forget the conversation
/help       this
/exit       leave (also Ctrl-D)
A line that ends in \ goes on in the next. Ctrl-C stops an answer; at an empty prompt it leaves.)";

struct ChatOptions {
  CommonOptions common;
  std::string system;
  std::vector<std::string> stop;
  bool ignore_eos = false;
};

class Chat {
 public:
  explicit Chat(ChatOptions& o) : o_(o), quiet_(o.common.quiet), editor_(history_path()) {
    o_.common.sampling.seed = o.common.seed ? *o.common.seed : draw_seed();
  }

  int run() {
    model_ = load_model(o_.common);
    say_unread_settings(o_.common);
    context_ = create_context(model_.get(), o_.common.context, o_.common.quiet);
    session_ = create_session(context_.get());
    clear();
    InterruptGuard guard(context_.get());
    said_ = say_notice(context_.get(), quiet_);
    if (editor_.interactive() && !quiet_) {
      const std::string seed = seed_text(o_.common.sampling);
      notice(false, "%s, %d tokens of context%s. /help lists commands.",
             o_.common.model_path.c_str(), n_ctx(), seed.empty() ? "" : (", " + seed).c_str());
    }
    std::string line;
    for (;;) {
      const LineEditor::Got got = read_question(line);
      clear_interrupted();
      if (got == LineEditor::Got::INTERRUPTED_TEXT) continue;
      if (got == LineEditor::Got::INTERRUPTED_EMPTY) return EXIT_INTERRUPTED;
      if (got == LineEditor::Got::END) break;
      if (line.find_first_not_of(" \t") == line.npos) continue;
      editor_.remember(line);
      // A turn that failed leaves the conversation as it was. A pipe has nobody to see it, so the
      // exit code tells.
      try {
        if (line[0] == '/') {
          if (!command(line)) break;
        } else {
          ask(line);
        }
      } catch (const Exit& e) {
        std::fprintf(stderr, "riffle: %s\n", *e.what() ? e.what() : "stopped");
        if (!editor_.interactive()) code_ = e.code();
        if (!editor_.interactive() && e.code() == EXIT_INTERRUPTED) return code_;
      }
      clear_interrupted();
    }
    if (editor_.interactive()) std::fputs("\n", stderr);
    return code_;
  }

 private:
  int n_ctx() const { return static_cast<int>(riffle_context_length(context_.get())); }

  LineEditor::Got read_question(std::string& line) {
    LineEditor::Got got = editor_.read("> ", line);
    while (got == LineEditor::Got::LINE && !line.empty() && line.back() == '\\') {
      line.back() = '\n';
      std::string more;
      got = editor_.read("| ", more);
      line += more;
      if (got == LineEditor::Got::END) return LineEditor::Got::LINE;
    }
    return got;
  }

  void clear() {
    messages_.clear();
    document_.clear();
    if (!o_.system.empty()) messages_.push_back({"system", o_.system});
    check(riffle_session_truncate(session_.get(), 0), context_.get());
    riffle_reset_stats(context_.get());
  }

  // False: leave.
  bool command(const std::string& line) {
    const size_t space = line.find_first_of(" \t");
    const std::string word = line.substr(0, space);
    std::string rest = space == line.npos
                           ? ""
                           : line.substr(line.find_first_not_of(" \t", space) == line.npos
                                             ? line.size()
                                             : line.find_first_not_of(" \t", space));
    while (!rest.empty() && (rest.back() == ' ' || rest.back() == '\t')) rest.pop_back();
    if (word == "/exit" || word == "/quit" || word == "/bye") return false;
    if (word == "/help") std::fprintf(stderr, "%s\n", kHelp);
    else if (word == "/stats") show_stats();
    else if (word == "/clear") clear();
    else if (word == "/load") load(rest);
    else throw Exit(EXIT_RUN, word + " is not a command; /help lists them");
    return true;
  }

  // Reads the document now, so that questions about it need only their own few tokens: what follows
  // the document in the template is dropped again by riffle_prefill_to.
  void load(const std::string& path) {
    if (path.empty()) throw Exit(EXIT_RUN, "/load wants a file name");
    const std::string text = read_file(path);
    if (text.empty()) throw Exit(EXIT_RUN, path + ": the file is empty");
    const std::string joined = document_.empty() ? text : with_document(document_, text);
    std::vector<Message> messages = messages_;
    messages.push_back({"user", with_document(joined, "")});
    try {
      prefill(messages, "reading " + path);
    } catch (const Exit& e) {
      if (e.code() == EXIT_INTERRUPTED)
        throw Exit(EXIT_INTERRUPTED, "stopped: " + path + " is not loaded");
      throw;
    }
    document_ = joined;
    notice(quiet_, "[%s: %zu of %d tokens of context in use]", path.c_str(),
           riffle_session_length(session_.get()), n_ctx());
  }

  void prefill(const std::vector<Message>& messages, const std::string& label) {
    const std::vector<int32_t> tokens = chat_tokens(model_.get(), messages);
    Progress progress(label, quiet_);
    const riffle_status status = riffle_prefill_to(session_.get(), tokens.data(), tokens.size(),
                                                   Progress::callback, &progress);
    progress.finish();
    if (status == RIFFLE_CONTEXT_FULL)
      throw Exit(EXIT_CONTEXT_FULL,
                 text_of("%s (/clear starts afresh)", riffle_context_error(context_.get())));
    check(status, context_.get());
  }

  struct Answer {
    std::string text, error;
    static bool on_token(void* self, size_t, int32_t, const char* piece, size_t n) {
      auto& a = *static_cast<Answer*>(self);
      try {  // no exception may cross the library
        a.text.append(piece, n);
        if (n) write_out({piece, n});
        return true;
      } catch (const std::exception& e) {
        a.error = e.what();
        return false;
      }
    }
  };

  void ask(const std::string& question) {
    std::vector<Message> messages = messages_;
    messages.push_back({"user", document_.empty() ? question : with_document(document_, question)});
    prefill(messages, "reading");
    riffle_generate_options g;
    riffle_generate_defaults(&g);
    g.max_tokens = o_.common.max_tokens;
    g.sampling = o_.common.sampling;
    // The first answer takes the session's seed itself, as run does. The others take seeds that
    // follow from it: a question asked again gets another answer, and the same seed and questions
    // give the same conversation.
    if (answers_) g.sampling.seed = derived_seed(o_.common.sampling.seed, answers_);
    ++answers_;
    g.trim_start = true;
    g.ignore_eos = o_.ignore_eos;
    std::vector<const char*> stop;
    for (const std::string& s : o_.stop) stop.push_back(s.c_str());
    g.stop = stop.data();
    g.n_stop = stop.size();
    Answer answer;
    riffle_result result{};
    check(riffle_generate(session_.get(), &g, Answer::on_token, &answer, &result), context_.get());
    if (!answer.error.empty()) throw Exit(EXIT_RUN, answer.error);
    write_out("\n");
    said_ = say_notice(context_.get(), quiet_, said_);
    if (result.finish == RIFFLE_FINISH_CONTEXT)
      notice(quiet_, "[the context is full; /clear starts afresh]");
    if (result.finish == RIFFLE_FINISH_ABORTED) notice(quiet_, "[stopped]");
    if (result.finish == RIFFLE_FINISH_ABORTED && answer.text.empty())
      throw Exit(EXIT_INTERRUPTED, "");
    // What was said stays said, also if it was cut short.
    messages.push_back({"assistant", answer.text});
    messages_ = std::move(messages);
    document_.clear();
    if (result.finish == RIFFLE_FINISH_ABORTED && !editor_.interactive())
      throw Exit(EXIT_INTERRUPTED, "");
  }

  void show_stats() {
    say_notice(context_.get(), false);
    const riffle_stats s = context_stats(context_.get());
    const std::string seed = seed_text(o_.common.sampling);
    std::fprintf(stderr,
                 "%s%s\n%zu of %d tokens of context in use; KV in host memory %s; peak memory %s\n",
                 stats_line(s).c_str(), seed.empty() ? "" : (", " + seed).c_str(),
                 riffle_session_length(session_.get()), n_ctx(),
                 human_bytes(static_cast<double>(s.host_kv_bytes)).c_str(),
                 human_bytes(static_cast<double>(s.peak_rss_bytes)).c_str());
  }

  ChatOptions& o_;
  bool quiet_;
  LineEditor editor_;
  Model model_;
  Context context_;
  Session session_;
  std::vector<Message> messages_;
  std::string said_;      // of the context's notice
  std::string document_;  // loaded, waiting for its question
  uint64_t answers_ = 0;  // begun in this session
  int code_ = EXIT_OK;
};

}  // namespace

void add_chat(CLI::App& app, Command& chosen) {
  auto o = std::make_shared<ChatOptions>();
  CLI::App* sub = app.add_subcommand(
      "chat", "Talk with the model; /load puts a document in front of a question");
  sub->footer(std::string(kHelp) +
              "\nWithout a terminal, each line of stdin is a question and each answer ends in a "
              "line break.");
  sub->add_option("--system", o->system, "system message")->type_name("TEXT");
  sub->add_option("--stop", o->stop, "end an answer before this text; may be repeated")
      ->type_name("TEXT")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  sub->add_flag("--ignore-eos", o->ignore_eos, "go on past the end-of-sequence token");
  add_common_flags(*sub, o->common,
                   CONTEXT_FLAGS | SELECTION_FLAGS | SAMPLING_FLAGS | CHAT_FLAG | WEIGHTS_FLAG);
  sub->final_callback([o, &chosen] { chosen = [o] { return Chat(*o).run(); }; });
}

}  // namespace riffle::cli
