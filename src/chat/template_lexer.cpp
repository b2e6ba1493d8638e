#include "chat/template_lexer.h"

#include <algorithm>
#include <charconv>
#include <cstdarg>
#include <cstring>

#include "chat/python_text.h"
#include "text/tokenizer.h"
#include "util/c_locale.h"
#include "util/error.h"

namespace riffle {

void bad_template(int line, const char* format, ...) {
  va_list args;
  va_start(args, format);
  const std::string text = vformat(format, args);
  va_end(args);
  fail(RIFFLE_UNSUPPORTED, "the model's chat template, line %d: %.299s", line, text.c_str());
}

namespace {

constexpr size_t kMaxTemplateBytes = 1 << 20;
constexpr size_t kMaxTokens = 1 << 17;  // tokens of all tags together

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_byte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || is_digit(c) ||
         static_cast<uint8_t>(c) >= 0x80;
}

int hex_digit(char c) {
  if (is_digit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) {}

  std::vector<TemplateTag> run() {
    while (pos_ < text_.size()) {
      const size_t open = next_tag();
      put_text(open);
      if (open == std::string_view::npos) break;
      pos_ = open;
      const char type = text_[open + 1];
      if (type == '#') comment();
      else if (type == '%' && raw_end(open) != 0) raw(raw_end(open));
      else tag(type);
    }
    return std::move(tags_);
  }

 private:
  // Effect of the end of a tag on the text after it.
  enum class After { NOTHING, BREAK, SPACE };

  size_t next_tag() const {
    size_t pos = pos_;
    for (; (pos = text_.find('{', pos)) != std::string_view::npos; pos++) {
      if (pos + 1 < text_.size() && std::strchr("%{#", text_[pos + 1]) && text_[pos + 1]) break;
    }
    return pos;
  }

  char sign_at(size_t pos) const {
    return pos < text_.size() && (text_[pos] == '-' || text_[pos] == '+') ? text_[pos] : 0;
  }

  // Appends the text from pos_ to a tag at `open` (npos: the end), without the white space that the
  // tag strips.
  void put_text(size_t open) {
    std::string_view text = text_.substr(pos_, open == text_.npos ? open : open - pos_);
    const int line = line_;
    count_lines(text);
    if (open != text_.npos) text = before_tag(text, open);
    if (text.empty()) return;
    tags_.push_back({TemplateTag::TEXT, line, std::string(text), {}});
  }

  std::string_view before_tag(std::string_view text, size_t open) const {
    const char sign = sign_at(open + 2);
    if (sign == '-') return strip_right(text);
    if (sign == '+' || text_[open + 1] == '{') return text;
    const size_t line = text.rfind('\n') + 1;  // npos + 1 is 0
    if ((line > 0 || line_starts_) && strip_left(text.substr(line)).empty())
      return text.substr(0, line);
    return text;
  }

  void count_lines(std::string_view text) {
    line_ += static_cast<int>(std::count(text.begin(), text.end(), '\n'));
  }

  void go_on(size_t pos, After after) {
    const size_t begin = pos;
    if (after == After::SPACE) {
      pos = text_.size() - strip_left(text_.substr(pos)).size();
    } else if (after == After::BREAK && pos < text_.size() && text_[pos] == '\n') {
      pos++;
    }
    count_lines(text_.substr(begin, pos - begin));
    line_starts_ = pos > begin && text_[pos - 1] == '\n';
    pos_ = pos;
  }

  void comment() {
    const size_t end = text_.find("#}", pos_ + 2);
    if (end == text_.npos) bad_template(line_, "found {# without #}");
    count_lines(text_.substr(pos_, end - pos_));
    const char sign = end > pos_ + 2 ? sign_at(end - 1) : 0;
    go_on(end + 2, sign == '-' ? After::SPACE : sign == '+' ? After::NOTHING : After::BREAK);
  }

  // Returns the end of a tag {% word %} at `open`, and the sign before its end; 0: there is no such
  // tag.
  size_t word_tag(size_t open, std::string_view word, char* sign) const {
    if (!text_.substr(open).starts_with("{%")) return 0;
    size_t pos = open + 2 + (sign_at(open + 2) != 0);
    pos = text_.size() - strip_left(text_.substr(pos)).size();
    if (!text_.substr(pos).starts_with(word)) return 0;
    pos += word.size();
    pos = text_.size() - strip_left(text_.substr(pos)).size();
    *sign = sign_at(pos);
    pos += *sign != 0;
    return text_.substr(pos).starts_with("%}") ? pos + 2 : 0;
  }
  size_t raw_end(size_t open) const {
    char sign;
    const size_t end = word_tag(open, "raw", &sign);
    return sign == '+' ? 0 : end;
  }

  // Reads the text after {% raw %}, which ends at `begin`, up to {% endraw %}.
  void raw(size_t begin) {
    const int line = line_;
    count_lines(text_.substr(pos_, begin - pos_));
    go_on(begin, text_[begin - 3] == '-' ? After::SPACE : After::NOTHING);
    char sign = 0;
    size_t open = pos_, end = 0;
    for (; (open = text_.find("{%", open)) != text_.npos; open++) {
      if ((end = word_tag(open, "endraw", &sign)) != 0) break;
    }
    if (open == text_.npos) bad_template(line, "found {%% raw %%} without {%% endraw %%}");
    put_text(open);
    count_lines(text_.substr(open, end - open));
    go_on(end, sign == '-' ? After::SPACE : sign == '+' ? After::NOTHING : After::BREAK);
  }

  void tag(char type) {
    TemplateTag tag{type == '%' ? TemplateTag::STATEMENT : TemplateTag::OUTPUT, line_, "", {}};
    const std::string_view close = type == '%' ? "%}" : "}}";
    std::string open;  // brackets, which keep the tag from closing
    for (size_t pos = pos_ + 2 + (sign_at(pos_ + 2) != 0); pos < text_.size();) {
      const char sign = type == '%' || text_[pos] == '-' ? sign_at(pos) : 0;
      if (open.empty() && text_.substr(pos + (sign != 0)).starts_with(close)) {
        tags_.push_back(std::move(tag));
        const After after = sign == '-'                  ? After::SPACE
                            : type == '{' || sign == '+' ? After::NOTHING
                                                         : After::BREAK;
        return go_on(pos + (sign != 0) + 2, after);
      }
      if (is_space(char_at(text_, pos))) {
        line_ += text_[pos] == '\n';
        pos += char_bytes(text_, pos);
        continue;
      }
      if (++n_tokens_ > kMaxTokens) bad_template(line_, "found more than %zu tokens", kMaxTokens);
      TemplateToken token;
      pos = read_token(pos, &token);
      if (token.kind == TemplateToken::SIGN) balance(token.text[0], &open);
      tag.tokens.push_back(std::move(token));
    }
    bad_template(tag.line, "found a tag without %.2s", close.data());
  }

  void balance(char c, std::string* open) const {
    if (c == '(' || c == '[' || c == '{') open->push_back(c == '(' ? ')' : c == '[' ? ']' : '}');
    if (c != ')' && c != ']' && c != '}') return;
    if (open->empty() || open->back() != c)
      bad_template(line_, "found '%c' that closes nothing", c);
    open->pop_back();
  }

  size_t read_token(size_t pos, TemplateToken* token) {
    const char c = text_[pos];
    if (is_digit(c)) return read_number(pos, token);
    if (is_name_byte(c)) {
      size_t end = pos;
      while (end < text_.size() && is_name_byte(text_[end])) end++;
      token->kind = TemplateToken::NAME;
      token->text = text_.substr(pos, end - pos);
      return end;
    }
    if (c == '\'' || c == '"') return read_string(pos, token);
    for (const char* two : {"==", "!=", "<=", ">=", "**", "//"}) {
      if (text_.substr(pos, 2) == two) {
        token->text = two;
        return pos + 2;
      }
    }
    if (!std::strchr("+-*/%~<>=()[]{}.,:|;", c) || !c)
      bad_template(line_, "found the character '%.*s', which is not part of an expression",
                   static_cast<int>(char_bytes(text_, pos)), text_.data() + pos);
    token->text = c;
    return pos + 1;
  }

  size_t digits(size_t pos) const {
    while (pos < text_.size() &&
           (is_digit(text_[pos]) ||
            (text_[pos] == '_' && pos + 1 < text_.size() && is_digit(text_[pos + 1]))))
      pos++;
    return pos;
  }

  size_t read_number(size_t pos, TemplateToken* token) {
    size_t end = digits(pos);
    bool real = false;
    // The numbers in a.0.1 are indices, not decimals.
    const bool indexed = pos > 0 && text_[pos - 1] == '.';
    const auto digit_at = [&](size_t at) { return at < text_.size() && is_digit(text_[at]); };
    if (!indexed && end < text_.size() && text_[end] == '.' && digit_at(end + 1)) {
      end = digits(end + 1);
      real = true;
    }
    if (!indexed && end < text_.size() && (text_[end] == 'e' || text_[end] == 'E')) {
      const size_t first = end + 1 + (sign_at(end + 1) != 0);
      if (digit_at(first)) {
        end = digits(first);
        real = true;
      }
    }
    std::string plain(text_.substr(pos, end - pos));
    plain.erase(std::remove(plain.begin(), plain.end(), '_'), plain.end());
    token->kind = real ? TemplateToken::REAL : TemplateToken::INTEGER;
    const char* const last = plain.data() + plain.size();
    const auto read = real ? std::from_chars(plain.data(), last, token->real)
                           : std::from_chars(plain.data(), last, token->number);
    const bool octal =
        !real && plain.size() > 1 && plain[0] == '0' && plain.find_first_not_of('0') != plain.npos;
    if (read.ec != std::errc() || read.ptr != last || octal ||
        (end < text_.size() && is_name_byte(text_[end])))
      bad_template(line_, "found the number %.40s, expected a decimal one of 64 bits",
                   plain.c_str());
    return end;
  }

  size_t read_string(size_t pos, TemplateToken* token) {
    size_t end = pos + 1;
    while (end < text_.size() && text_[end] != text_[pos]) end += text_[end] == '\\' ? 2 : 1;
    if (end >= text_.size()) bad_template(line_, "found a string that does not end");
    token->kind = TemplateToken::STRING;
    const std::string_view inside = text_.substr(pos + 1, end - pos - 1);
    for (size_t i = 0; i < inside.size();) {
      if (inside[i] == '\\') i = read_escape(inside, i + 1, &token->text);
      else token->text += inside[i++];
    }
    count_lines(inside);
    return end + 1;
  }

  // Reads an escape, whose text after the backslash begins at pos. Returns its end.
  size_t read_escape(std::string_view text, size_t pos, std::string* out) const {
    static constexpr std::string_view kFrom = "ntrabfv\\'\"", kTo = "\n\t\r\a\b\f\v\\'\"";
    const char c = text[pos];
    if (c == '\n') return pos + 1;
    if (const size_t at = kFrom.find(c); at != kFrom.npos) {
      *out += kTo[at];
      return pos + 1;
    }
    char32_t value = 0;
    size_t n = 0;
    if (c >= '0' && c <= '7') {
      for (; n < 3 && pos < text.size() && text[pos] >= '0' && text[pos] <= '7'; n++)
        value = value * 8 + static_cast<char32_t>(text[pos++] - '0');
      append_char(out, value);
      return pos;
    }
    const size_t hex = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (hex == 0 && c != 'N') {
      *out += '\\';  // an unknown escape stands for itself
      return pos;
    }
    for (pos++; n < hex && pos < text.size() && hex_digit(text[pos]) >= 0; n++)
      value = value * 16 + static_cast<char32_t>(hex_digit(text[pos++]));
    if (hex == 0 || n < hex || value > 0x10FFFF || (value >= 0xD800 && value < 0xE000))
      bad_template(line_, "found the escape \\%c, which names no character here", c);
    append_char(out, value);
    return pos;
  }

  std::string_view text_;
  size_t pos_ = 0;
  int line_ = 1;
  size_t n_tokens_ = 0;
  bool line_starts_ = true;  // pos_ is at the beginning of a line
  std::vector<TemplateTag> tags_;
};

}  // namespace

std::vector<TemplateTag> cut_template(std::string_view text) {
  if (text.size() > kMaxTemplateBytes)
    bad_template(1, "found a template of %zu bytes, expected at most 1 MiB", text.size());
  if (const int64_t at = utf8_error(text); at >= 0)
    bad_template(1, "byte %lld is not UTF-8", static_cast<long long>(at));
  std::string source;
  source.reserve(text.size());
  for (size_t i = 0; i < text.size(); i++) {  // converts the line breaks of all systems
    if (text[i] != '\r') source += text[i];
    else if (i + 1 == text.size() || text[i + 1] != '\n') source += '\n';
  }
  if (source.ends_with('\n')) source.pop_back();
  return Lexer(source).run();
}

}  // namespace riffle
