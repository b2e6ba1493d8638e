// riffle chat: a conversation, on a terminal or through a pipe.
#include <unistd.h>

#include <filesystem>
#include <map>
#include <optional>

#include "cli/chat_input.h"
#include "cli/common.h"
#include "cli/grammar.h"
#include "cli/help.h"
#include "cli/history_file.h"
#include "cli/line_editor.h"
#include "cli/reasoning.h"
#include "cli/session.h"
#include "cli/text_file.h"
#include "riffle_request.h"

namespace fs = std::filesystem;

namespace riffle::cli {
namespace {

constexpr std::string_view kQuotes = "\"\"\"";  // around a message of several lines

struct ChatOptions {
  CommonOptions common;
  std::string system, session;
  std::vector<std::string> stop;
  GrammarFlags grammar;
  bool ignore_eos = false;
};

class Chat {
 public:
  explicit Chat(ChatOptions& o)
      : o_(o), quiet_(o.common.quiet), editor_(history_path(), complete_chat) {
    o_.common.options.set("seed", o.common.seed ? *o.common.seed : riffle_random_seed());
  }

  int run() {
    if (!o_.session.empty()) check_session_target(o_.session);
    const GrammarText grammar = read_grammar(o_.grammar);
    model_ = load_model(o_.common);
    check_logit_bias(model_.get(), o_.common);
    grammar_ = make_grammar(model_.get(), grammar);
    say_unread_settings(o_.common);
    say_unread_thinking(model_.get(), o_.common);
    context_ = create_context(model_.get(), o_.common.options, o_.common.quiet);
    // On a terminal, an extra Ctrl-C is easily pressed and must not lose unsaved text.
    InterruptGuard guard(context_.get(), editor_.interactive() ? InterruptGuard::EndsBy::TERM
                                                               : InterruptGuard::EndsBy::ANY);
    session_ = create_session(context_.get());
    clear();
    std::error_code error;
    if (!o_.session.empty() && fs::exists(o_.session, error)) open(o_.session, true);
    said_ = say_notice(context_.get(), quiet_);
    if (editor_.interactive() && !quiet_) {
      const std::string seed = seed_text(o_.common.options);
      notice(false, "%s, %d tokens of context%s. /help lists commands.",
             o_.common.model_path.c_str(), n_ctx(), seed.empty() ? "" : (", " + seed).c_str());
    }
    for (;;) {
      // A failed turn leaves the conversation as it was. Nobody reads the notices of a pipe, so the
      // exit code reports it.
      try {
        const Input input = read_input();
        clear_interrupted();
        if (input.got == LineEditor::Got::INTERRUPTED_TEXT && !terminated()) continue;
        if (terminated()) {
          code_ = EXIT_INTERRUPTED;
          break;
        }
        if (input.got == LineEditor::Got::INTERRUPTED_EMPTY) {
          if (!may_leave()) continue;
          code_ = EXIT_INTERRUPTED;
          break;
        }
        if (input.got == LineEditor::Got::END) {
          save_before_leaving();
          break;
        }
        if (input.text.find_first_not_of(" \t\n") == input.text.npos) continue;
        editor_.remember(input.text);
        if (!input.is_command) ask(input.text), keep();
        else if (!command(input.text)) {
          save_before_leaving();
          break;
        }
      } catch (const Exit& e) {
        std::fprintf(stderr, "riffle: %s\n", *e.what() ? e.what() : "stopped");
        if (!editor_.interactive()) code_ = e.code();
      }
      if (terminated()) code_ = EXIT_INTERRUPTED;
      if (code_ == EXIT_INTERRUPTED) break;
      clear_interrupted();
    }
    if (editor_.interactive()) std::fputs("\n", stderr);
    if (unsaved_) keep();  // a message without an answer
    return code_;
  }

 private:
  int n_ctx() const { return static_cast<int>(riffle_context_length(context_.get())); }

  // Called after Ctrl-C at an empty prompt. Returns whether the chat may end.
  bool may_leave() {
    if (!editor_.interactive()) return true;
    if (unsaved_ && !o_.session.empty()) keep();  // another Ctrl-C stops the saving
    if (!unkept_) return true;
    notice(false,
           "[Ctrl-C does not leave: the conversation or a document is unsaved; /save FILE saves "
           "it, /exit leaves]");
    return false;
  }

  // Throws only if Ctrl-C stopped the saving; then the chat goes on. Other errors are reported on
  // leaving, when saving is tried again.
  void save_before_leaving() {
    try {
      if (unsaved_) keep();
    } catch (const Exit& e) {
      if (e.code() == EXIT_INTERRUPTED && editor_.interactive() && !terminated()) throw;
    }
  }

  struct Input {
    LineEditor::Got got;
    std::string text;         // a message, or a command with its "/"
    bool is_command = false;  // false for text that was pasted with line breaks or was in quotes
  };

  Input read_input() {
    Input input{};
    std::string& text = input.text;
    input.got = editor_.read("> ", text);
    if (input.got != LineEditor::Got::LINE) return input;
    if (text.starts_with(kQuotes)) {
      input.got = read_quoted(text);
      return input;
    }
    input.is_command = text.starts_with('/') && text.find('\n') == text.npos;
    while (!text.empty() && text.back() == '\\') {
      text.back() = '\n';
      std::string more;
      input.got = read_more(more);
      text += more;
      if (input.got == LineEditor::Got::END) input.got = LineEditor::Got::LINE;
      else if (input.got == LineEditor::Got::LINE) continue;
      return input;
    }
    return input;
  }

  // Reads the next line of a message. Ctrl-C drops the message and does not leave the chat.
  LineEditor::Got read_more(std::string& line) {
    const LineEditor::Got got = editor_.read("| ", line);
    return got == LineEditor::Got::INTERRUPTED_EMPTY && editor_.interactive()
               ? LineEditor::Got::INTERRUPTED_TEXT
               : got;
  }

  // text begins with the opening quotes. Reads up to the closing ones, and leaves the text between
  // them in `text`.
  LineEditor::Got read_quoted(std::string& text) {
    text.erase(0, kQuotes.size());
    while (!text.ends_with(kQuotes)) {
      std::string more;
      const LineEditor::Got got = read_more(more);
      if (got == LineEditor::Got::END)
        throw Exit(
            EXIT_RUN,
            "the input ended in a message that begins with \"\"\", expected \"\"\" at its end");
      if (got != LineEditor::Got::LINE) return got;
      text += (text.empty() ? "" : "\n") + more;
    }
    text.resize(text.size() - kQuotes.size());
    if (text.ends_with('\n')) text.pop_back();
    return LineEditor::Got::LINE;
  }

  // Saves the chat to the file of --session. Ctrl-C during an answer stops the answer, whose text
  // is saved. Another Ctrl-C stops the saving.
  void keep() {
    unsaved_ = true;
    if (o_.session.empty()) return;
    if (interrupted() && !editor_.interactive()) code_ = EXIT_INTERRUPTED;
    clear_interrupted();
    try {
      if (!save(o_.session, &kept_)) keep_beside();
    } catch (const Exit& e) {
      // A chat from a pipe ends here, and must not begin to save again.
      if (e.code() == EXIT_INTERRUPTED && !editor_.interactive()) unsaved_ = false;
      throw;
    }
    unsaved_ = unkept_ = false;
  }

  // Called if another chat has saved to the file of --session. Both are kept: from now on, this one
  // has a file of its own.
  void keep_beside() {
    const fs::path taken = o_.session;
    std::error_code error;
    for (int i = 2;; ++i) {
      fs::path free = taken;
      free.replace_filename(taken.stem().string() + "-" + std::to_string(i) +
                            taken.extension().string());
      kept_ = 0;
      if (fs::exists(free, error) || !save(free, &kept_)) continue;
      o_.session = free;
      break;
    }
    // Printed with -q too, since the chat is not in the file that was asked for.
    notice(false, "[%s: another chat was saved there; this one is kept in %s from now on]",
           taken.c_str(), o_.session.c_str());
  }

  bool save(const std::string& path, uint64_t* save_id = nullptr) {
    return save_session(context_.get(), session_.get(), path,
                        {.chat = true, .document = document_, .messages = messages_}, quiet_,
                        save_id);
  }

  // Continues a saved chat, or takes over a document that was read.
  void open(const std::string& path, bool to_keep = false) {
    const SessionFile file(path);
    if (to_keep && !file.text().chat)
      throw Exit(EXIT_RUN, path + ": found a document, expected a chat (/open reads documents)");
    const std::string wanted = o_.system;
    Session session = file.load(context_.get(), quiet_);
    clear();
    session_ = std::move(session);
    if (to_keep || is_kept(path)) kept_ = file.save_id();
    const SavedText& text = file.text();
    if (text.chat) saved_[real_path(path)] = file.save_id();
    if (text.chat) messages_ = text.messages;
    else if (!text.system.empty()) messages_ = {{"system", text.system}};
    const bool has_system = !messages_.empty() && messages_[0].role == "system";
    o_.system = has_system ? messages_[0].content : "";
    document_ = text.document;
    last_ = last_turn(messages_);
    opened_ = {path, file.tokens()};
    notice(quiet_, "[%s: %zu of %d tokens of context in use, %zu messages]", path.c_str(),
           riffle_session_length(session_.get()), n_ctx(), messages_.size());
    unsaved_ = !to_keep;
    if (unsaved_ && !o_.session.empty() && !is_kept(path))
      notice(quiet_, "[this replaces the chat in %s]", o_.session.c_str());
    if (to_keep && !wanted.empty() && wanted != o_.system) set_system(wanted);
  }

  void clear() {
    unsaved_ = unsaved_ || !messages_.empty() || !document_.empty();
    unkept_ = false;
    saved_.clear();
    messages_.clear();
    document_.clear();
    last_ = {};
    opened_ = {};
    if (!o_.system.empty()) messages_.push_back({"system", o_.system});
    check(riffle_session_truncate(session_.get(), 0), context_.get());
    riffle_reset_stats(context_.get());
  }

  void say_cleared() const {
    const char* const rest = o_.system.empty() ? "" : " except for the system message";
    if (kept_ && unsaved_)
      notice(quiet_, "[the conversation is empty%s; the chat in %s is replaced at the next save]",
             rest, o_.session.c_str());
    else notice(quiet_, "[the conversation is empty%s]", rest);
  }

  // Runs a command. Returns false if the chat is to end.
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
    if (word == "/help") std::fprintf(stderr, "%s\n", kChatHelp);
    else if (word == "/stats") show_stats();
    else if (word == "/clear") clear(), say_cleared();
    else if (word == "/load") load(rest), keep();
    else if (word == "/save") save_as(named(word, rest));
    else if (word == "/open") open(named(word, rest));
    else if (word == "/retry") retry(), keep();
    else if (word == "/system") set_system(rest);
    else if (word == "/set") set(rest);
    else if (word == "/think") think(rest);
    else throw Exit(EXIT_RUN, word + " is not a command; /help lists them");
    return true;
  }

  // Tells whether path names --session's file, in any spelling.
  bool is_kept(const std::string& path) const {
    std::error_code error;
    return !o_.session.empty() &&
           (real_path(path) == real_path(o_.session) || fs::equivalent(path, o_.session, error));
  }

  // Returns the same path before and after the file exists.
  static std::string real_path(const std::string& path) {
    std::error_code error;
    const fs::path target = link_target(fs::absolute(path, error));
    if (target.empty()) return path;
    // weakly_canonical by itself does not follow a link to a missing file.
    const fs::path real = fs::weakly_canonical(target, error);
    return error ? path : real.string();
  }

  void save_as(const std::string& path) {
    const bool kept = is_kept(path);
    if (kept) keep();  // to another file if another chat has taken this one
    else save_elsewhere(path);
    const bool moved = kept && !is_kept(path);
    notice(quiet_, "[saved in %s]", (moved ? o_.session : path).c_str());
  }

  // Saves to a file other than --session's: a new one, or one that has this conversation already.
  void save_elsewhere(const std::string& path) {
    const std::string real = real_path(path);
    const auto own = saved_.find(real);
    uint64_t id = own == saved_.end() ? 0 : own->second;
    std::error_code error;
    if (fs::exists(path, error) && is_new_file(path)) {
      save(path);
      id = SessionFile(path).save_id();
    } else if (!save(path, &id)) {
      throw not_replaced(EXIT_RUN, path, "a new file or one that has this conversation already");
    }
    saved_[real] = id;
    unkept_ = false;
  }

  static std::string named(const std::string& command, const std::string& typed) {
    const std::string path = typed_path(typed);
    if (path.empty())
      throw Exit(EXIT_RUN, command + ": found no file name, expected one after the command");
    return path;
  }

  // Reads the document now, so that a question about it needs only its own few tokens.
  // riffle_prefill_to drops the text that the template puts after the document.
  void load(const std::string& typed) {
    const std::string path = named("/load", typed);
    const std::string text = read_file(path);
    if (text.empty()) throw Exit(EXIT_RUN, path + ": found an empty file, expected text");
    check_no_nul(path, text);
    const std::string joined = document_.empty() ? text : with_document(document_, text);
    std::vector<Message> messages = messages_;
    messages.push_back({"user", with_document(joined, "")});
    const size_t before = riffle_session_length(session_.get());
    try {
      prefill(messages, "reading " + path);
    } catch (const Exit& e) {
      if (e.code() != EXIT_INTERRUPTED) throw;
      const size_t read = riffle_session_length(session_.get());
      std::string rest;
      if (read > before) {
        unkept_ = true;
        rest = text_of("; %zu tokens are read and kept: the same /load continues from there", read);
      }
      throw Exit(EXIT_INTERRUPTED, "stopped: " + path + " is not loaded" + rest);
    }
    document_ = joined;
    unkept_ = true;
    notice(quiet_, "[%s: %zu of %d tokens of context in use]", path.c_str(),
           riffle_session_length(session_.get()), n_ctx());
  }

  // Reads the conversation. Keeps the tokens of the session that the template prints again. If a
  // template drops reasoning from earlier turns, the tokens after it are read again. Returns
  // whether the answer begins inside reasoning.
  bool prefill(const std::vector<Message>& messages, const std::string& label) {
    const auto [tokens, in_reasoning] = chat_prompt(model_.get(), messages, o_.common.thinking);
    if (!opened_.tokens.empty())
      say_read_again(opened_.path, opened_.tokens, expected_of_file(), session_.get(), tokens,
                     quiet_);
    opened_ = {};
    Progress progress(label, quiet_);
    const riffle_status status = riffle_prefill_to(session_.get(), tokens.data(), tokens.size(),
                                                   Progress::callback, &progress);
    progress.finish();
    if (status == RIFFLE_CONTEXT_FULL)
      throw Exit(EXIT_CONTEXT_FULL,
                 text_of("%s (%s)", riffle_context_error(context_.get()),
                         is_alone(messages) ? "-c N sets the length of the context"
                                            : "/clear starts afresh"));
    check(status, context_.get());
    return in_reasoning;
  }

  // Returns true if /clear would not shorten the prompt: it has one message, with a document of its
  // own or none.
  bool is_alone(const std::vector<Message>& messages) const {
    const bool has_system = !messages.empty() && messages[0].role == "system";
    return document_.empty() && messages.size() == (has_system ? 2 : 1);
  }

  // Returns the number of tokens of an opened file with which the next prompt begins, if only that
  // prompt is new. A template may print a kept answer differently from what the model wrote, above
  // all without its reasoning.
  size_t expected_of_file() const {
    if (!document_.empty() || messages_.empty() || messages_.back().role != "assistant")
      return opened_.tokens.size();
    const std::vector<Message> asked(messages_.begin(), messages_.end() - 1);
    return chat_prompt(model_.get(), asked, o_.common.thinking).tokens.size();
  }

  // One question: the conversation up to it, and the loaded document that the question contains.
  struct Turn {
    std::vector<Message> messages;
    std::string document;
  };

  // Returns a kept conversation up to its last question, which contains its document. The result
  // has no messages if there is no question.
  static Turn last_turn(std::vector<Message> messages) {
    while (!messages.empty() && messages.back().role != "user") messages.pop_back();
    return {std::move(messages), ""};
  }

  void ask(const std::string& question) {
    Turn turn{messages_, document_};
    turn.messages.push_back(
        {"user", document_.empty() ? question : with_document(document_, question)});
    last_ = turn;
    answer(std::move(turn));
  }

  void retry() {
    if (last_.messages.empty())
      throw Exit(EXIT_RUN, "/retry: there is no message yet, expected one to answer again");
    answer(last_);
    // The next seed of the chat, since the same one would give the same text.
    if (o_.common.options.number("temp") > 0)
      notice(quiet_, "[this answer has the seed %llu; /set seed %llu and /retry give it again]",
             static_cast<unsigned long long>(used_seed_),
             static_cast<unsigned long long>(used_seed_));
    else
      notice(quiet_,
             "[temperature 0 gives the same answer again; /set temp 0.8 gives other answers]");
  }

  // Sets the system message of this conversation from now on, and of later ones after /clear.
  void set_system(const std::string& text) {
    const auto replace = [&](std::vector<Message> messages) {
      if (!messages.empty() && messages[0].role == "system") messages.erase(messages.begin());
      if (!text.empty()) messages.insert(messages.begin(), {"system", text});
      return messages;
    };
    std::vector<Message> probe = replace(messages_);
    probe.push_back({"user", "x"});
    chat_tokens(model_.get(), probe);  // refused now if the chat template has no system message
    messages_ = replace(messages_);
    if (!last_.messages.empty()) last_.messages = replace(last_.messages);
    o_.system = text;
    unsaved_ = true;
    notice(quiet_, text.empty() ? "[no system message]" : "[the system message is set]");
  }

  // Sets reasoning for the following answers, as --think and --no-think do.
  void think(const std::string& level) {
    if (level.empty()) return notice(false, "[thinking: %s]", thinking_text(o_.common.thinking));
    const std::optional<Thinking> thinking = thinking_named(level);
    if (!thinking)
      throw Exit(EXIT_RUN, "/think: found '" + level + "', expected on, off, low, medium or high");
    o_.common.thinking = *thinking;
    say_unread_thinking(model_.get(), o_.common);
    notice(quiet_, "[thinking: %s]", thinking_text(o_.common.thinking));
  }

  void set(const std::string& rest) {
    const size_t space = rest.find_first_of(" \t");
    if (rest.empty()) {
      std::fputs(chat_settings(o_.common).c_str(), stderr);
      return;
    }
    const size_t value = rest.find_first_not_of(" \t", space);
    if (space == rest.npos || value == rest.npos)
      throw Exit(EXIT_RUN, "/set " + rest + ": found no value, expected /set NAME VALUE");
    // The next answer uses exactly the seed that was set, as the first one uses --seed.
    if (set_chat_setting(o_.common, rest.substr(0, space), rest.substr(value))) answers_ = 0;
  }

  void answer(Turn turn) {
    const bool in_reasoning = prefill(turn.messages, "reading");
    Options g = o_.common.options;
    // The first answer uses the chat's seed itself, as run does. The others use seeds derived from
    // it: a question asked again gets another answer, and the same seed and questions give the same
    // conversation.
    if (answers_) g.set("seed", riffle_derived_seed(g.size("seed"), answers_));
    ++answers_;
    used_seed_ = g.size("seed");
    g.set("trim-start", true);
    g.set("ignore-eos", o_.ignore_eos);
    g.set_stop(o_.stop);
    g.set_grammar(grammar_.get());
    g.set("reasoning", reasoning_of(true, in_reasoning, o_.common.thinking));
    StreamedAnswer answer(answer_parts(model_.get(), in_reasoning), true, quiet_);
    riffle_result result{};
    check(riffle_generate(session_.get(), g.get(), StreamedAnswer::on_token, &answer, &result),
          context_.get());
    if (!answer.error.empty()) throw Exit(EXIT_RUN, answer.error);
    answer.finish();
    write_out("\n");
    said_ = say_notice(context_.get(), quiet_, said_);
    if (result.finish == RIFFLE_FINISH_CONTEXT)
      notice(quiet_, "[the context is full; /clear starts afresh]");
    if (result.finish == RIFFLE_FINISH_LENGTH)
      notice(quiet_, "[cut after %d tokens (-n); /set max-tokens N allows more]", result.n_tokens);
    say_unfinished_reasoning(answer, result, quiet_);
    if (result.finish == RIFFLE_FINISH_ABORTED) notice(quiet_, "[stopped]");
    if (result.finish == RIFFLE_FINISH_ABORTED && answer.text.empty() && answer.reasoning.empty())
      throw Exit(EXIT_INTERRUPTED, "");
    // The answer stays in the conversation even if it was cut short.
    messages_ = std::move(turn.messages);
    messages_.push_back({"assistant", answer.text, answer.reasoning});
    unkept_ = true;
    if (document_ == turn.document) document_.clear();
    if (result.finish == RIFFLE_FINISH_ABORTED && !editor_.interactive()) code_ = EXIT_INTERRUPTED;
  }

  void show_stats() {
    say_notice(context_.get(), false);
    const Facts s = context_stats(context_.get());
    Options last = o_.common.options;
    last.set("seed", used_seed_);
    const std::string seed = answers_ ? seed_text(last) : seed_text(o_.common.options);
    std::fprintf(stderr,
                 "%s%s\n%zu of %d tokens of context in use; KV in host memory %s; peak memory %s\n",
                 stats_line(s).c_str(), seed.empty() ? "" : (", " + seed).c_str(),
                 riffle_session_length(session_.get()), n_ctx(),
                 human_bytes(s.number("host_kv_bytes")).c_str(),
                 human_bytes(s.number("peak_rss_bytes")).c_str());
  }

  ChatOptions& o_;
  bool quiet_;
  LineEditor editor_;
  Model model_;
  Grammar grammar_;
  Context context_;
  Session session_;
  std::vector<Message> messages_;
  std::string said_;      // the part of the context's notice that was printed
  std::string document_;  // a loaded document, waiting for its question
  struct {
    std::string path;
    std::vector<int32_t> tokens;
  } opened_;           // the file that the session came from, until the next prompt
  Turn last_;          // for /retry; without messages: nothing was asked yet
  uint64_t kept_ = 0;  // id of the save expected in the file of --session; 0: no file
  std::map<std::string, uint64_t> saved_;  // ids of this conversation's saves in other files
  uint64_t answers_ = 0;                   // number of answers begun since the seed was set
  uint64_t used_seed_ = 0;                 // seed of the last answer
  bool unsaved_ = false;                   // changed since it was saved in --session's file
  bool unkept_ = false;                    // a document or an answer is in no file
  int code_ = EXIT_OK;
};

}  // namespace

void add_chat(CLI::App& app, Command& chosen) {
  auto o = std::make_shared<ChatOptions>();
  CLI::App& command =
      add_command(app, "chat", "Talk with the model; /load puts a document in front of a question");
  set_notes(
      command,
      "/help lists the commands of a conversation; /exit or Ctrl-D leaves it. Ctrl-C stops the\n"
      "answer, not the chat; at an empty prompt it leaves, unless something is unsaved.\n"
      "Without a terminal, each line of stdin is a question, each answer ends in a line break,\n"
      "and Ctrl-C ends the chat. A model's reasoning is printed on stderr, dimmed, if that is a\n"
      "terminal; -q hides it.",
      kChatHelp);
  add_text(command, "--system", o->system, "system message").value("TEXT");
  add_text(command, "--session", o->session,
           "save the chat in this file after every answer, and continue the chat that is in it")
      .value("FILE")
      .check(named_file);
  add_stop_flag(command, o->stop);
  add_switch(command, "--ignore-eos", o->ignore_eos, "continue past the end-of-sequence token")
      .group(kSamplingGroup);
  add_grammar_flags(command, o->grammar);
  add_common_flags(
      command, o->common,
      CONTEXT_FLAGS | SELECTION_FLAGS | SAMPLING_FLAGS | CHAT_FLAG | THINK_FLAGS | WEIGHTS_FLAG);
  when_parsed(command, [o, &chosen] { chosen = [o] { return Chat(*o).run(); }; });
}

}  // namespace riffle::cli
