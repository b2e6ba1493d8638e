// riffle chat: a conversation, on a terminal or through a pipe.
#include <unistd.h>

#include <filesystem>
#include <map>
#include <optional>

#include "cli/chat_input.h"
#include "cli/chat_tools.h"
#include "cli/common.h"
#include "cli/grammar.h"
#include "cli/help.h"
#include "cli/history_file.h"
#include "cli/line_editor.h"
#include "cli/printable.h"
#include "cli/prompt.h"
#include "cli/reasoning.h"
#include "cli/session.h"
#include "cli/text_file.h"
#include "riffle_request.h"

namespace fs = std::filesystem;

namespace riffle::cli {
namespace {

struct ChatOptions {
  CommonOptions common;
  std::string system, session, tools;
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
    if (!o_.tools.empty()) tools_ = read_tools(o_.tools);
    model_ = load_model(o_.common);
    check_logit_bias(model_.get(), o_.common);
    grammar_ = make_grammar(model_.get(), grammar);
    say_unread_settings(o_.common);
    say_unread_thinking(model_.get(), o_.common);
    // Tools that the model cannot have are refused now, not at the first question.
    if (!o_.tools.empty()) (void)formed({{"user", "x"}});
    context_ = create_context(model_.get(), o_.common.options, o_.common.quiet);
    // On a terminal, an extra Ctrl-C is easily pressed and must not lose unsaved text.
    InterruptGuard guard(context_.get(), editor_.interactive() ? InterruptGuard::EndsBy::TERM
                                                               : InterruptGuard::EndsBy::ANY);
    session_ = create_session(context_.get());
    clear();
    std::error_code error;
    if (!o_.session.empty() && fs::exists(o_.session, error)) open(o_.session, true);
    said_ = say_notice(context_.get(), quiet_);
    const std::string seed = seed_text(o_.common.options);
    if (!editor_.interactive()) {
      if (!seed.empty()) notice(quiet_, "[%s]", seed.c_str());
    } else if (!quiet_) {
      notice(false, "%s, %d tokens of context%s. /help lists commands.",
             o_.common.model_path.c_str(), n_ctx(), seed.empty() ? "" : (", " + seed).c_str());
    }
    for (;;) {
      // A failed turn leaves the conversation as it was. Nobody reads the notices of a pipe, so the
      // exit code reports it.
      try {
        const ChatInput input = read_chat_input(editor_);
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
    return save_session(
        context_.get(), session_.get(), path,
        {.chat = true, .document = document_, .messages = messages_, .tools = tools_}, quiet_,
        save_id);
  }

  // Continues a saved chat, or takes over a document that was read.
  void open(const std::string& path, bool to_keep = false) {
    const SessionFile file(path);
    if (to_keep && !file.text().chat)
      throw Exit(EXIT_RUN, path + ": found a document, expected a chat (/open reads documents)");
    const std::string wanted = o_.system;
    if (o_.tools.empty() && !file.text().tools.list.empty())
      (void)chat_prompt(model_.get(), {{"user", "x"}}, o_.common.thinking, {}, file.text().tools);
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
    if (o_.tools.empty()) tools_ = text.tools;
    last_ = {answerable(messages_), ""};
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
    else if (word == "/save") save_as(named_path(word, rest));
    else if (word == "/open") open(named_path(word, rest));
    else if (word == "/result") give_result(rest), keep();
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

  // Reads the document now, so that a question about it needs only its own few tokens.
  // riffle_prefill_to drops the text that the template puts after the document.
  void load(const std::string& typed) {
    const std::string path = named_path("/load", typed);
    require_no_waiting_call();
    const std::string text = read_file(path);
    if (text.empty()) throw Exit(EXIT_RUN, path + ": found an empty file, expected text");
    check_no_nul(path, text);
    const std::string joined = document_.empty() ? text : with_document(document_, text);
    std::vector<Message> messages = messages_;
    messages.push_back({"user", with_document(joined, "")});
    const size_t before = riffle_session_length(session_.get());
    try {
      prefill(formed(messages), is_alone(messages), "reading " + path);
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

  ChatPrompt formed(const std::vector<Message>& messages, const Options& answer = {}) const {
    return chat_prompt(model_.get(), messages, o_.common.thinking, answer, tools_);
  }

  // Reads the conversation. Keeps the tokens of the session that the template prints again. If a
  // template drops reasoning from earlier turns, the tokens after it are read again. alone: as of
  // is_alone.
  void prefill(const ChatPrompt& prompt, bool alone, const std::string& label) {
    const std::vector<int32_t>& tokens = prompt.tokens;
    if (std::exchange(fitted_, prompt.fitted) != prompt.fitted) say_fitted(prompt, quiet_);
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
                         alone ? "-c N sets the length of the context" : "/clear starts afresh"));
    check(status, context_.get());
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
    return formed(asked).tokens.size();
  }

  // One question: the conversation up to it, and the loaded document that the question contains.
  struct Turn {
    std::vector<Message> messages;
    std::string document;
  };

  // Chat templates have a call's result behind the call, so a question has to wait for it.
  void require_no_waiting_call() const {
    const std::vector<ToolCall> waiting = waiting_calls(messages_);
    if (!waiting.empty())
      throw Exit(EXIT_RUN, "found calls without a result (" + names_of(waiting) +
                               "), expected their results before the next message; /result NAME "
                               "TEXT gives one, /retry answers the last message again");
  }

  void give_result(const std::string& typed) {
    Turn turn{messages_, ""};
    turn.messages.push_back(result_message(waiting_calls(messages_), typed));
    if (const std::vector<ToolCall> more = waiting_calls(turn.messages); !more.empty()) {
      messages_ = std::move(turn.messages);
      unkept_ = true;
      return notice(quiet_, "[these calls still need a result: %s; /result NAME TEXT gives it]",
                    names_of(more).c_str());
    }
    last_ = turn;
    answer(std::move(turn));
  }

  void ask(const std::string& question) {
    require_no_waiting_call();
    Turn turn{messages_, document_};
    turn.messages.push_back(
        {"user", document_.empty() ? question : with_document(document_, question)});
    last_ = turn;
    answer(std::move(turn));
  }

  void retry() {
    if (last_.messages.empty())
      throw Exit(EXIT_RUN,
                 "/retry: found no message, expected one to answer again; type one first");
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
    // Refused now if the chat template refuses it.
    (void)formed(text.empty() ? std::vector<Message>{{"user", "x"}}
                              : std::vector<Message>{{"system", text}, {"user", "x"}});
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
    const std::string why = unread_thinking(model_.get(), *thinking, "type /think ");
    notice(quiet_, "[thinking: %s%s%s]", thinking_text(*thinking),
           why.empty() ? "" : ", without effect: ", why.c_str());
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
    Options g = o_.common.options;
    // The first answer uses the chat's seed itself, as run does. The others use seeds derived from
    // it: a question asked again gets another answer, and the same seed and questions give the same
    // conversation.
    if (answers_) g.set("seed", riffle_derived_seed(g.size("seed"), answers_));
    g.set("ignore-eos", o_.ignore_eos);
    g.set_stop(o_.stop);
    g.set_grammar(grammar_.get());
    const ChatPrompt prompt = formed(turn.messages, g);
    prefill(prompt, is_alone(turn.messages), "reading");
    ++answers_;
    used_seed_ = g.size("seed");
    StreamedAnswer answer(prompt.request.get(), true, quiet_);
    riffle_result result{};
    check(riffle_generate(session_.get(), prompt.options(g), StreamedAnswer::on_token, &answer,
                          &result),
          context_.get());
    if (!answer.error.empty()) throw Exit(EXIT_RUN, answer.error);
    answer.finish(result);
    if (!answer.text.empty() || answer.calls.empty()) write_out("\n");
    for (const ToolCall& call : answer.calls) write_out(call_line(call));
    said_ = say_notice(context_.get(), quiet_, said_);
    if (result.finish == RIFFLE_FINISH_CONTEXT)
      notice(quiet_, "[the context is full; /clear starts afresh]");
    if (result.finish == RIFFLE_FINISH_LENGTH)
      notice(quiet_, "[cut after %d tokens (-n); /set max-tokens N allows more]", result.n_tokens);
    if (is_unfinished_reasoning(answer, result))  // the notices above name what allows more
      notice(quiet_, "[all of these tokens are reasoning; /think off asks for none]");
    if (result.finish == RIFFLE_FINISH_ABORTED) notice(quiet_, "[stopped]");
    const bool empty = answer.text.empty() && answer.reasoning.empty() && answer.calls.empty();
    if (result.finish == RIFFLE_FINISH_ABORTED && empty) throw Exit(EXIT_INTERRUPTED, "");
    // The answer stays in the conversation even if it was cut short.
    messages_ = std::move(turn.messages);
    messages_.push_back({"assistant", answer.text, answer.reasoning, answer.calls});
    unkept_ = true;
    if (document_ == turn.document) document_.clear();
    if (result.finish == RIFFLE_FINISH_ABORTED && !editor_.interactive()) code_ = EXIT_INTERRUPTED;
    else say_broken(answer);
  }

  // A call that the model wrote wrongly is not kept, since no template could print it.
  void say_broken(const StreamedAnswer& answer) {
    if (answer.tool_error.empty()) return;
    const std::string wrote =
        answer.broken.empty() ? "" : ": " + one_line(answer.broken[0].substr(0, 200));
    std::fprintf(stderr, "riffle: %s%s; the call is not kept, /retry answers again\n",
                 answer.tool_error.c_str(), wrote.c_str());
    if (!editor_.interactive()) code_ = EXIT_RUN;
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
  Tools tools_;
  Context context_;
  Session session_;
  std::vector<Message> messages_;
  std::string said_;      // the part of the context's notice that was printed
  std::string fitted_;    // the change to the conversation that was printed
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
  const Flag tools =
      add_text(command, "--tools", o->tools, "functions that the model may call (OpenAI's tools)")
          .group(kAnswerGroup)
          .value("FILE")
          .check(not_empty);
  add_grammar_flags(command, o->grammar);
  for (const char* flag : {"--json-schema", "--grammar"}) flag_named(command, flag).excludes(tools);
  add_common_flags(
      command, o->common,
      CONTEXT_FLAGS | SELECTION_FLAGS | SAMPLING_FLAGS | CHAT_FLAG | THINK_FLAGS | WEIGHTS_FLAG);
  when_parsed(command, [o, &chosen] { chosen = [o] { return Chat(*o).run(); }; });
}

}  // namespace riffle::cli
