#include "model/chat_template.h"

#include <algorithm>
#include <set>

#include "model/tokenizer.h"
#include "util/error.h"

namespace riffle {
namespace {

constexpr const char* kKnownKinds =
    "riffle knows Llama 2 ([INST] with <<SYS>>), plain [INST] and ChatML (<|im_start|>)";
constexpr size_t kMaxTemplateBytes = 1 << 20;

enum class Kind {
  INST,    // <s>[INST] {user} [/INST] {assistant}</s>, contents as they are, no system message
  LLAMA2,  // <s>[INST] <<SYS>>\n{system}\n<</SYS>>\n\n{user} [/INST] {assistant} </s>, contents stripped
  CHATML   // <|im_start|>{role}\n{content}<|im_end|>\n
};

// What a Jinja template says, spelled one way: outside of quotes no spaces, in quotes \n for a line break, quotes
// single, x['y'] for x.y, 'ab' for 'a'+'b'. Templates are told apart by what they print.
struct Outline {
  std::string statements;         // the insides of all {% %}
  std::set<std::string> outputs;  // the insides of all {{ }}, but for raise_exception(...)
  std::string literal;            // what stands outside of any tag and would be printed as it is
};

void replace_all(std::string* text, std::string_view from, std::string_view to) {
  for (size_t pos = 0; (pos = text->find(from, pos)) != std::string::npos; pos += to.size()) {
    text->replace(pos, from.size(), to);
  }
}

std::string canonical(std::string_view code) {
  std::string out;
  char quote = 0;
  for (size_t i = 0; i < code.size(); i++) {
    const char c = code[i];
    if (quote == 0) {
      if (c == '\'' || c == '"') quote = c;
      if (c != ' ' && c != '\t' && c != '\n' && c != '\r') out += quote ? '\'' : c;
    } else if (c == quote) {
      quote = 0;
      out += '\'';
    } else if (c == '\\' && i + 1 < code.size()) {
      out += c;
      out += code[++i];
    } else {
      c == '\n' ? out += "\\n" : out += c;
    }
  }
  replace_all(&out, "'+'", "");
  replace_all(&out, "message.content", "message['content']");
  replace_all(&out, "message.role", "message['role']");
  replace_all(&out, "|trim", ".strip()");
  return out;
}

// Position of the tag's closing "%}" or "}}", text inside quotes skipped; npos if there is none.
size_t tag_end(std::string_view text, size_t pos, std::string_view close) {
  char quote = 0;
  for (; pos < text.size(); pos++) {
    const char c = text[pos];
    if (quote != 0) {
      if (c == '\\') pos++;
      else if (c == quote) quote = 0;
    } else if (c == '\'' || c == '"') {
      quote = c;
    } else if (text.substr(pos).starts_with(close)) {
      return pos;
    }
  }
  return std::string_view::npos;
}

// What stands beside a piece of literal text.
struct Beside {
  bool begin = false, end = false;                       // the template's begin, end
  bool statement_left = false, statement_right = false;  // a {% %} or {# #}
  bool dash_left = false, dash_right = false;            // a tag with a '-' on the text's side
};

// Literal text as Hugging Face has Jinja print it: the template's last line break goes, trim_blocks drops the line
// break after a statement, lstrip_blocks the indentation before one, a '-' all white space on its side.
std::string_view literal_text(std::string_view text, const Beside& beside) {
  constexpr const char* kSpace = " \t\r\n";
  if (beside.end && text.ends_with('\n')) text.remove_suffix(text.ends_with("\r\n") ? 2 : 1);
  bool line_start = beside.begin;
  if (beside.statement_left && (text.starts_with('\n') || text.starts_with("\r\n"))) {
    text.remove_prefix(text.front() == '\n' ? 1 : 2);
    line_start = true;
  }
  if (beside.statement_right) {
    const size_t keep = text.find_last_not_of(" \t") + 1;  // npos + 1 is 0
    if (keep == 0 ? line_start : text[keep - 1] == '\n') text = text.substr(0, keep);
  }
  if (beside.dash_left) text.remove_prefix(std::min(text.find_first_not_of(kSpace), text.size()));
  if (beside.dash_right) text = text.substr(0, text.find_last_not_of(kSpace) + 1);
  return text;
}

// Position of the next "{%", "{{" or "{#"; npos if there is none.
size_t tag_begin(std::string_view text, size_t pos) {
  for (; (pos = text.find('{', pos)) != std::string_view::npos; pos++) {
    if (pos + 1 < text.size() && (text[pos + 1] == '%' || text[pos + 1] == '{' || text[pos + 1] == '#')) break;
  }
  return pos;
}

// False if a tag does not close.
bool outline(std::string_view text, Outline* out) {
  Beside beside;
  beside.begin = true;
  for (size_t pos = 0;;) {
    const size_t open = tag_begin(text, pos);
    beside.end = open == std::string_view::npos;
    const char type = beside.end ? 0 : text[open + 1];
    beside.statement_right = type == '%' || type == '#';
    beside.dash_right = !beside.end && text.substr(open + 2).starts_with('-');
    out->literal += literal_text(text.substr(pos, open - pos), beside);
    if (beside.end) return true;

    const size_t first = open + 2 + beside.dash_right;
    const size_t last = type == '#'   ? text.find("#}", first)
                        : type == '%' ? tag_end(text, first, "%}")
                                      : tag_end(text, first, "}}");
    if (last == std::string_view::npos) return false;
    std::string_view code = text.substr(first, last - first);
    beside = Beside();
    beside.statement_left = type != '{';
    beside.dash_left = code.ends_with('-');
    if (beside.dash_left) code.remove_suffix(1);
    const std::string inside = canonical(code);
    if (type == '%') out->statements += inside + ";";
    if (type == '{' && !inside.starts_with("raise_exception(")) out->outputs.insert(inside);
    pos = last + 2;
  }
}

// True, with *kind and *bos_first, if text is one of the known templates.
bool recognise(std::string_view text, Kind* kind, bool* bos_first) {
  Outline template_;
  if (text.size() > kMaxTemplateBytes || !outline(text, &template_) || !template_.literal.empty()) return false;
  const std::set<std::string>& outputs = template_.outputs;
  const auto states = [&](const char* part) { return template_.statements.find(part) != std::string::npos; };
  *bos_first = false;
  if (outputs ==
      std::set<std::string>{"bos_token+'[INST] '+message['content']+' [/INST]'", "' '+message['content']+eos_token"}) {
    *kind = Kind::INST;
    return !states("set") && !states("'system'");
  }
  if (outputs ==
      std::set<std::string>{"bos_token+'[INST] '+content.strip()+' [/INST]'", "' '+content.strip()+' '+eos_token"}) {
    *kind = Kind::LLAMA2;  // but not the variant that makes up a system message where there is none
    return states("setcontent='<<SYS>>\\n'+system_message+'\\n<</SYS>>\\n\\n'+message['content']") &&
           !states("setsystem_message='") && !states("DEFAULT_SYSTEM");
  }
  std::set<std::string> rest = outputs;
  *bos_first = rest.erase("bos_token") > 0;
  *kind = Kind::CHATML;  // likewise: a made-up system message would be one more output
  return !states("'system'") && !states("setmessages") &&
         rest == std::set<std::string>{"'<|im_start|>'+message['role']+'\\n'+message['content']+'<|im_end|>\\n'",
                                       "'<|im_start|>assistant\\n'"};
}

// Python's str.strip(): all that Unicode calls white space, and the separators 1C to 1F.
std::string_view stripped(std::string_view text) {
  const auto space_at = [&](size_t pos) -> size_t {
    const uint8_t c = static_cast<uint8_t>(text[pos]);
    if (c == ' ' || (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x1F)) return 1;
    const std::string_view two = text.substr(pos, 2), three = text.substr(pos, 3);
    if (two == "\xC2\x85" || two == "\xC2\xA0") return 2;
    if (three == "\xE1\x9A\x80" || three == "\xE2\x80\xA8" || three == "\xE2\x80\xA9" || three == "\xE2\x80\xAF" ||
        three == "\xE2\x81\x9F" || three == "\xE3\x80\x80") {
      return 3;
    }
    return three.size() == 3 && three.starts_with("\xE2\x80") && three >= "\xE2\x80\x80" && three <= "\xE2\x80\x8A" ? 3
                                                                                                                    : 0;
  };
  while (!text.empty()) {
    const size_t n = space_at(0);
    if (n == 0) break;
    text.remove_prefix(n);
  }
  for (bool again = true; again;) {
    again = false;
    for (size_t n = 1; n <= 3 && n <= text.size(); n++) {
      if (space_at(text.size() - n) == n) {
        text.remove_suffix(n);
        again = true;
        break;
      }
    }
  }
  return text;
}

// Collects plain text and control tokens in turn. Plain text is only encoded when a control token or the end comes, so
// that neighbouring texts are encoded as one, as Hugging Face's LlamaTokenizer does. In it, control pieces that a
// message spells out stay plain text. User-defined pieces ([INST] is one in some models) do not: sentencepiece matches
// them in any text, and the ids could not be its own if that were prevented.
class TokenWriter {
 public:
  explicit TokenWriter(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  void text(std::string_view text) { plain_ += text; }
  void control(int32_t id) {
    flush();
    ids_.push_back(id);
  }
  std::vector<int32_t> take() {
    flush();
    return std::move(ids_);
  }

 private:
  void flush() {
    const std::vector<int32_t> more = tokenizer_.encode(plain_, false, false);
    ids_.insert(ids_.end(), more.begin(), more.end());
    plain_.clear();
  }

  const Tokenizer& tokenizer_;
  std::string plain_;
  std::vector<int32_t> ids_;
};

// [system,] user, assistant, user, ..., user
void check_roles(const std::vector<ChatMessage>& messages, Kind kind) {
  if (messages.empty()) fail(RIFFLE_BAD_ARGUMENT, "the conversation has no messages");
  const bool system_first = messages[0].role == "system";
  if (system_first && kind == Kind::INST) {
    fail(RIFFLE_BAD_ARGUMENT, "message 0 has role 'system', but this model's chat template has no system messages");
  }
  for (size_t i = 0; i < messages.size(); i++) {
    if (utf8_error(messages[i].role) >= 0) fail(RIFFLE_BAD_TEXT, "the role of message %zu is not UTF-8", i);
    if (const int64_t bad = utf8_error(messages[i].content); bad >= 0) {
      fail(RIFFLE_BAD_TEXT, "message %zu is not UTF-8: invalid sequence at byte %lld", i, static_cast<long long>(bad));
    }
    if (i == 0 && system_first) continue;
    const char* expected = (i - system_first) % 2 == 0 ? "user" : "assistant";
    if (messages[i].role != expected) {
      fail(RIFFLE_BAD_ARGUMENT, "message %zu has role '%.40s', expected '%s'", i, messages[i].role.c_str(), expected);
    }
  }
  if (messages.back().role != "user") {
    fail(RIFFLE_BAD_ARGUMENT, "the last message has role '%s', expected 'user'", messages.back().role.c_str());
  }
}

int32_t need_control(const Tokenizer& tokenizer, const char* piece) {
  const int32_t id = tokenizer.control_id(piece);
  if (id < 0) {
    fail(RIFFLE_UNSUPPORTED, "the chat template is ChatML, but the vocabulary has no control piece %s", piece);
  }
  return id;
}

void need_bos_eos(const Tokenizer& tokenizer) {
  if (tokenizer.bos_id() < 0 || tokenizer.eos_id() < 0) {
    fail(RIFFLE_UNSUPPORTED, "the chat template needs beginning- and end-of-sequence tokens, the model has none");
  }
}

std::vector<int32_t> chatml_tokens(const Tokenizer& tokenizer, const std::vector<ChatMessage>& messages,
                                   bool bos_first) {
  const int32_t start = need_control(tokenizer, "<|im_start|>"), end = need_control(tokenizer, "<|im_end|>");
  TokenWriter out(tokenizer);
  if (bos_first) {
    if (tokenizer.bos_id() < 0) fail(RIFFLE_UNSUPPORTED, "the chat template begins with bos_token, the model has none");
    out.control(tokenizer.bos_id());
  }
  for (const ChatMessage& message : messages) {
    out.control(start);
    out.text(message.role + "\n" + message.content);
    out.control(end);
    out.text("\n");
  }
  out.control(start);
  out.text("assistant\n");
  return out.take();
}

std::vector<int32_t> inst_tokens(const Tokenizer& tokenizer, const std::vector<ChatMessage>& messages, bool llama2) {
  need_bos_eos(tokenizer);
  TokenWriter out(tokenizer);
  std::string system;
  for (const ChatMessage& message : messages) {
    if (message.role == "system") {
      system = "<<SYS>>\n" + message.content + "\n<</SYS>>\n\n";
      continue;
    }
    const std::string whole = system + message.content;
    const std::string_view content = llama2 ? stripped(whole) : std::string_view(whole);
    if (message.role == "user") {
      out.control(tokenizer.bos_id());
      out.text("[INST] ");
      out.text(content);
      out.text(" [/INST]");
    } else {
      out.text(" ");
      out.text(content);
      if (llama2) out.text(" ");
      out.control(tokenizer.eos_id());
    }
    system.clear();
  }
  return out.take();
}

}  // namespace

std::vector<int32_t> chat_tokens(const Tokenizer& tokenizer, std::string_view template_text,
                                 const std::vector<ChatMessage>& messages) {
  if (template_text.empty()) fail(RIFFLE_UNSUPPORTED, "the model carries no chat template; %s", kKnownKinds);
  Kind kind;
  bool bos_first;
  if (!recognise(template_text, &kind, &bos_first)) {
    fail(RIFFLE_UNSUPPORTED, "the model's chat template is none that riffle knows; %s", kKnownKinds);
  }
  check_roles(messages, kind);
  if (kind == Kind::CHATML) return chatml_tokens(tokenizer, messages, bos_first);
  return inst_tokens(tokenizer, messages, kind == Kind::LLAMA2);
}

}  // namespace riffle
