// riffle tokenize: text to token ids and back.
#include <charconv>
#include <nlohmann/json.hpp>

#include "cli/common.h"
#include "cli/printable.h"
#include "cli/prompt.h"

namespace riffle::cli {
namespace {

struct TokenizeOptions {
  CommonOptions common;
  PromptFlags prompt;
  bool ids_only = false, no_bos = false, special = false, chat = false;
  std::vector<std::string> decode;
  Flag decode_given;
};

std::vector<int32_t> parse_ids(const std::vector<std::string>& words) {
  std::vector<int32_t> ids;
  for (const std::string& word : words) {
    const char* p = word.data();
    const char* const end = p + word.size();
    while (p != end) {
      if (*p == ' ' || *p == ',' || *p == '\n' || *p == '\t') {
        ++p;
        continue;
      }
      int32_t id = 0;
      const auto [next, error] = std::from_chars(p, end, id);
      if (error != std::errc())
        throw Exit(EXIT_USAGE, "--decode: found '" + word + "', expected token ids such as 1 2 3");
      ids.push_back(id);
      p = next;
    }
  }
  if (ids.empty()) throw Exit(EXIT_USAGE, "--decode: found no token ids, expected at least one");
  return ids;
}

int tokenize_main(TokenizeOptions& o) {
  const bool decode = o.decode_given.given();
  std::vector<int32_t> ids;
  if (decode) ids = parse_ids(o.decode);
  const std::string text = decode ? "" : prompt_text(o.prompt, o.common.quiet);
  Model model = load_model(o.common);
  if (!decode) say_unread_input(o.prompt, o.common.quiet);
  if (decode) {
    const std::string out = detokenize(model.get(), ids);
    if (o.common.json) print_json({{"text", out}, {"ids", ids}, {"version", riffle_version()}});
    else write_out(out + "\n");
    return EXIT_OK;
  }
  uint32_t flags = 0;
  if (!o.no_bos) flags |= RIFFLE_TOKENIZE_BOS;
  if (o.special) flags |= RIFFLE_TOKENIZE_SPECIAL;
  ids = o.chat ? chat_tokens(model.get(), {{"user", text}}) : tokenize(model.get(), text, flags);
  std::string lines;
  Json pieces = Json::array();
  for (const int32_t id : ids) {
    const char* piece = riffle_token_piece(model.get(), id);
    if (o.common.json) pieces.push_back(piece ? piece : "");
    else if (o.ids_only) lines += (lines.empty() ? "" : " ") + std::to_string(id);
    else lines += std::to_string(id) + "\t" + one_line(piece ? piece : "") + "\n";
  }
  if (o.common.json)
    print_json({{"n_tokens", ids.size()},
                {"ids", ids},
                {"pieces", pieces},
                {"version", riffle_version()}});
  else write_out(o.ids_only ? lines + "\n" : lines);
  return EXIT_OK;
}

}  // namespace

void add_tokenize(CLI::App& app, Command& chosen) {
  auto o = std::make_shared<TokenizeOptions>();
  CLI::App& command =
      add_command(app, "tokenize", "Show the token ids and pieces of a text, or the text of ids");
  add_prompt_flags(command, o->prompt);
  add_switch(command, "--ids-only", o->ids_only, "print only the ids, on one line");
  add_switch(command, "--no-bos", o->no_bos, "leave out the beginning-of-sequence token");
  add_switch(command, "--special", o->special,
             "read control tokens written in the text (such as <s>) as those tokens");
  add_switch(command, "--chat", o->chat, "wrap the text in the model's chat template");
  o->decode_given = add_texts(command, "--decode", o->decode, "print the text of these ids")
                        .value("ID ...")
                        .values(1, 1 << 30);
  add_common_flags(command, o->common, JSON_FLAG | CHAT_FLAG);
  when_parsed(command, [o, &chosen] { chosen = [o] { return tokenize_main(*o); }; });
}

}  // namespace riffle::cli
