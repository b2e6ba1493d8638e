#include "cli/prompt.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "cli/common.h"
#include "cli/help.h"
#include "cli/text_file.h"

namespace riffle::cli {
namespace {

enum class Input {
  NONE,    // closed, not readable, a terminal, /dev/null or another device, a file at its end
  FILE,    // a file that no program has read from
  BEGUN,   // a file whose beginning another program has read
  STREAM,  // a pipe, a FIFO or a socket
};

Input standard_input() {
  struct stat s {};
  const int flags = ::fcntl(STDIN_FILENO, F_GETFL);
  if (flags < 0 || (flags & O_ACCMODE) == O_WRONLY || (flags & O_PATH) ||
      ::fstat(STDIN_FILENO, &s) != 0)
    return Input::NONE;
  if (S_ISFIFO(s.st_mode) || S_ISSOCK(s.st_mode)) return Input::STREAM;
  if (S_ISCHR(s.st_mode)) return Input::NONE;
  const off_t at = ::lseek(STDIN_FILENO, 0, SEEK_CUR);
  if (at <= 0) return Input::FILE;  // the size is not checked: files in /proc report 0
  return at < s.st_size ? Input::BEGUN : Input::NONE;
}

// Reads standard input to its end, with read and poll, since another process may have made this
// pipe non-blocking. optional: -p gives a prompt, so a silent pipe may be unrelated to it.
std::string read_input(bool quiet, bool optional) {
  using Clock = std::chrono::steady_clock;
  std::string text;
  char buffer[1 << 16];
  auto last = Clock::now();
  bool said = quiet || is_terminal(STDIN_FILENO);
  for (;;) {
    pollfd waiting{STDIN_FILENO, POLLIN, 0};
    const int ready = ::poll(&waiting, 1, 200);
    if (ready > 0) {
      const ssize_t n = ::read(STDIN_FILENO, buffer, sizeof buffer);
      if (n == 0 && is_lfs_pointer(text)) throw Exit(EXIT_RUN, lfs_complaint("stdin"));
      if (n == 0) return without_mark(std::move(text));
      if (n < 0 && errno != EINTR && errno != EAGAIN)
        throw Exit(EXIT_RUN, std::string("stdin: cannot read: ") + std::strerror(errno));
      if (n > 0) text.append(buffer, static_cast<size_t>(n));
      check_text_size("stdin", text.size());
      last = Clock::now();
      continue;
    }
    const auto silent = Clock::now() - last;
    if (!said && silent > std::chrono::seconds(text.empty() ? 1 : kSilence)) {
      const char* const hint =
          optional && text.empty() ? "; < /dev/null if there is nothing to read" : "";
      notice(false, "[waiting for standard input%s%s]", text.empty() ? "" : " to end", hint);
      said = true;
    }
    if (optional && text.empty() && silent > std::chrono::seconds(kSilence))
      throw Exit(EXIT_RUN,
                 text_of("stdin: found a pipe that stays open and has sent nothing for %d s, "
                         "expected a document to put before -p, or the end of input; "
                         "give < /dev/null if there is no document, or -f - to wait for one",
                         kSilence));
  }
}

bool file_is_input(const PromptFlags& flags) {
  return flags.file_given.given() && flags.file == "-";
}

}  // namespace

void add_prompt_flags(CLI::App& app, PromptFlags& flags) {
  flags.text_given =
      add_text(app, "-p,--prompt", flags.text, "the prompt; piped text goes before it")
          .value("TEXT");
  flags.file_given = add_text(app, "-f,--file", flags.file,
                              "read the prompt from a file (-: stdin); -p TEXT then follows it")
                         .value("FILE");
}

std::string PromptParts::text() const {
  if (!asked) return document;
  return document.empty() ? question : with_document(document, question);
}

PromptParts read_prompt_parts(const PromptFlags& flags, bool quiet) {
  PromptParts parts;
  parts.asked = flags.text_given.given();
  parts.question = flags.text;
  parts.source = "standard input";
  if (flags.file_given.given()) {
    if (!file_is_input(flags)) parts.source = flags.file;
    parts.document = file_is_input(flags) ? read_input(quiet, false) : read_file(flags.file);
  } else if (parts.asked) {
    const Input input = standard_input();
    if (input == Input::FILE || input == Input::STREAM) parts.document = read_input(quiet, true);
    // A text of only line breaks does not count as a document.
    if (parts.document.find_first_not_of("\r\n") == std::string::npos) parts.document.clear();
  } else if (!is_terminal(STDIN_FILENO)) {
    parts.document = read_input(quiet, false);
  } else {
    throw Exit(EXIT_USAGE, "no prompt: give -p TEXT, -f FILE or pipe it in");
  }
  if (parts.text().empty()) throw Exit(EXIT_RUN, "the prompt is empty");
  return parts;
}

void say_piped_document(const PromptFlags& flags, const PromptParts& parts, bool quiet) {
  if (!parts.asked || parts.document.empty() || flags.file_given.given()) return;
  notice(quiet, "[standard input, %s, is the document before -p; give < /dev/null if it is not]",
         human_bytes(static_cast<double>(parts.document.size())).c_str());
}

std::string prompt_text(const PromptFlags& flags, bool quiet) {
  return read_prompt_parts(flags, quiet).text();
}

void say_unread_input(const PromptFlags& flags, bool quiet) {
  if (file_is_input(flags) || !(flags.file_given.given() || flags.text_given.given())) return;
  const Input input = standard_input();
  if (input == Input::BEGUN)
    return notice(quiet,
                  "[standard input is not read: some of it has been read before; "
                  "-f - reads the rest]");
  if (!flags.file_given.given()) return;
  int waiting = 0;
  struct stat s {};
  const bool held =
      input == Input::FILE
          ? ::fstat(STDIN_FILENO, &s) == 0 && s.st_size > 0
          : input == Input::STREAM && ::ioctl(STDIN_FILENO, FIONREAD, &waiting) == 0 && waiting > 0;
  if (held)
    notice(quiet,
           "[standard input is not read: -f names the document; "
           "-f - reads standard input]");
}

void add_message_flags(CLI::App& app, MessageFlags& flags) {
  const Flag raw =
      add_switch(app, "--raw", flags.raw, "continue the prompt as it is, without a chat template");
  add_switch(app, "--chat", flags.chat,
             "wrap the prompt in the chat template; an error if the model has none")
      .group(kSamplingGroup)
      .excludes(raw);
  add_text(app, "--system", flags.system, "system message; implies --chat")
      .value("TEXT")
      .excludes(raw);
}

void exclude_raw(CLI::App& app) {
  for (const char* flag : {"--chat-template", "--think", "--no-think", "--chat-template-kwargs"})
    flag_named(app, flag).excludes(flag_named(app, "--raw"));
}

bool is_message(const MessageFlags& flags, const CommonOptions& common, riffle_model* model) {
  if (flags.raw) return false;
  if (flags.chat || !flags.system.empty() || !common.options.text("chat-template").empty())
    return true;
  if (!model_info(model).text("chat_template_name").empty()) return true;
  // Forming a prompt fails, and the error says why there is no template.
  const riffle_message probe{"user", "x", nullptr};
  size_t n = 0;
  riffle_chat_prompt(model, &probe, 1, nullptr, nullptr, 0, &n, nullptr);
  std::string why = riffle_model_error(model);
  why.resize(std::min(why.find(';'), why.size()));
  notice(common.quiet,
         "[the prompt is continued as plain text: %s; --chat-template NAME makes it "
         "a message, --raw confirms plain text]",
         why.c_str());
  return false;
}

void check_length(riffle_model* model, const std::string& text, const Options& options) {
  if (text.size() < size_t{1} << 20) return;
  const Facts info = model_info(model);
  const int64_t n_ctx = options.count("ctx");
  const auto most = static_cast<size_t>(n_ctx ? n_ctx : info.count("n_ctx_train"));
  size_t longest = 1;
  for (int32_t token = 0; token < info.id("vocab_size"); ++token)
    longest = std::max(longest, token_bytes(model, token).size());
  // A tokenizer may drop white space, and no normalisation makes a text four times shorter.
  const auto bytes = static_cast<size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) > ' '; }));
  if (const size_t least = bytes / (4 * longest); least > most)
    throw Exit(
        EXIT_CONTEXT_FULL,
        text_of("the prompt has %zu tokens or more, but the context holds %zu", least, most));
}

ChatPrompt question_prompt(riffle_model* model, const std::string& system, const std::string& text,
                           bool message, const Thinking& thinking, const Options& answer) {
  if (!message) return {tokenize(model, text, RIFFLE_TOKENIZE_BOS)};
  std::vector<Message> messages;
  if (!system.empty()) messages.push_back({"system", system});
  messages.push_back({"user", text});
  return chat_prompt(model, messages, thinking, answer);
}

void say_fitted(const ChatPrompt& prompt, bool quiet) {
  if (!prompt.fitted.empty()) notice(quiet, "[%s]", fitted_text(prompt.fitted));
}

}  // namespace riffle::cli
