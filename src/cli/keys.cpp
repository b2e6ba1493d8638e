#include "cli/keys.h"

#include <charconv>
#include <cwchar>
#include <string_view>
#include <utility>

namespace riffle::cli {
namespace {

constexpr int kEscape = 0x1B, kBackspace = 0x08, kErase = 0x7F;
// The bytes of one key arrive within this time, even over a slow line.
constexpr int kSoonMs = 100;
constexpr wchar_t kReplacement = 0xFFFD;
// Meta with one of these letters edits words or moves through the history.
constexpr std::string_view kMetaLetters = "bfdulcpnBFDULCPN";

bool is_final(int byte) { return byte >= 0x40 && byte <= 0x7E; }

// Returns the decimal number at the beginning of the text or after `skip` semicolons; 0 if there is
// none.
int number_in(std::string_view text, int skip) {
  for (; skip > 0; --skip) {
    const size_t at = text.find(';');
    if (at == text.npos) return 0;
    text.remove_prefix(at + 1);
  }
  int n = 0;
  std::from_chars(text.data(), text.data() + text.size(), n);
  return n;
}

}  // namespace

int KeyReader::byte(int ms) {
  if (over_) return over_;
  if (pushed_ != kNothing) return std::exchange(pushed_, kNothing);
  const int b = source_(ms);
  if (b == kEnd || b == kStop) over_ = b;
  return b;
}

int KeyReader::byte_soon() { return byte(kSoonMs); }

void KeyReader::emit(const char* keys) {
  for (; *keys; ++keys) queue_.push_back(static_cast<unsigned char>(*keys));
}

int KeyReader::next(wchar_t* out, bool raw) {
  while (queue_.empty()) {
    const int b = byte(-1);
    if (b < 0) {
      over_ = 0;
      return b == kEnd ? 0 : -1;
    }
    if (b == kEscape && !raw) escape();
    else character(b);
  }
  *out = queue_.front();
  queue_.pop_front();
  return 1;
}

// A byte that does not continue a character ends it, and is read by itself: so the Enter key works
// even after bytes in another encoding.
void KeyReader::character(int first) {
  mbstate_t state{};
  for (int b = first;; b = byte(-1)) {
    if (b < 0) return;
    const bool begun = !std::mbsinit(&state);
    const char c = static_cast<char>(b);
    wchar_t wide = 0;
    const size_t used = std::mbrtowc(&wide, &c, 1, &state);
    if (used == static_cast<size_t>(-2)) continue;  // in the middle of a character
    const bool broken = used == static_cast<size_t>(-1);
    queue_.push_back(broken ? kReplacement : wide);
    if (broken && begun) pushed_ = b;
    return;
  }
}

void KeyReader::escape() {
  // A user may also press Escape and then a letter, with any pause between.
  int b = byte_soon();
  const bool together = b != kNothing;
  if (!together) b = byte(-1);
  bool alt = false;
  if (b == kEscape && together) {  // rxvt and tmux send an Escape before a key if Alt is held
    alt = true;
    b = byte_soon();
  }
  if (b < 0) return;
  if (b == '[' && together) return sequence(alt);
  if (b == 'O' && together) return application_key(alt);
  if (together && std::string_view("]P_^X").find(static_cast<char>(b)) != std::string_view::npos)
    return text_sequence();
  if (b == kErase || b == kBackspace ||
      kMetaLetters.find(static_cast<char>(b)) != kMetaLetters.npos)
    return emit((std::string("\033") + static_cast<char>(b)).c_str());
  if (!together || b < ' ') {
    pushed_ = b;  // Escape by itself does nothing
    return;
  }
  character(b);  // an unknown Meta key is dropped together with its character
  if (!queue_.empty()) queue_.pop_back();
}

// ESC [ parameters final
void KeyReader::sequence(bool alt) {
  std::string parameters;
  for (;;) {
    const int b = byte_soon();
    if (b < 0) return;  // Alt and a bracket
    const char c = static_cast<char>(b);
    if (c == '[' && parameters.empty()) {  // a function key of the Linux console
      byte_soon();
      return;
    }
    if (c == '$') {  // rxvt ends keys with it; elsewhere more follows
      const int after = byte_soon();
      if (after != kNothing) pushed_ = after;
      if (after < 0 || !is_final(after)) return key(c, parameters, alt);
      continue;
    }
    if (is_final(b)) return key(c, parameters, alt);
    if (b < ' ' || b > '~') {  // it was cut off
      pushed_ = b;
      return;
    }
    if (parameters.size() < 64) parameters += c;
  }
}

// Reads ESC O final. Some terminals put a number before `final` for the keys that are held.
void KeyReader::application_key(bool alt) {
  std::string parameters;
  for (;;) {
    const int b = byte_soon();
    if (b < 0) return;
    const char c = static_cast<char>(b);
    if ((c >= '0' && c <= '9') || c == ';') {
      if (parameters.size() < 64) parameters += c;
      continue;
    }
    if (b < ' ' || b > '~') pushed_ = b;
    else if (c == 'M') emit("\r");  // Enter of the keypad
    else if (parameters.empty() || parameters.find(';') != parameters.npos)
      // rxvt sends lower case letters if Ctrl is held.
      key(c >= 'a' && c <= 'd' ? static_cast<char>(c - 'a' + 'A') : c, parameters,
          alt || (c >= 'a' && c <= 'd'));
    else key(c, "1;" + parameters, alt);
    return;
  }
}

// Skips a reply of the terminal: up to BEL or ESC \, if it arrives at once.
void KeyReader::text_sequence() {
  for (;;) {
    int b = byte_soon();
    if (b < 0 || b == 0x07) return;
    if (b != kEscape) continue;
    b = byte_soon();
    if (b >= 0 && b != '\\') pushed_ = b;
    return;
  }
}

void KeyReader::key(char final_byte, const std::string& parameters, bool alt) {
  if (parameters.find_first_not_of("0123456789;") != parameters.npos) return;
  // 1 and the sum of Shift 1, Alt 2, Ctrl 4, Meta 8.
  const int held = number_in(parameters, 1) > 0 ? number_in(parameters, 1) - 1 : 0;
  const bool by_word = alt || (held & ~1) != 0;
  switch (final_byte) {
    case 'A': return held || alt ? void() : emit("\020");
    case 'B': return held || alt ? void() : emit("\016");
    case 'C': return emit(by_word ? "\033f" : "\006");
    case 'D': return emit(by_word ? "\033b" : "\002");
    case 'c': return emit("\006");  // rxvt, with Shift
    case 'd': return emit("\002");
    case 'H': return emit("\001");
    case 'F': return emit("\005");
    case '~':
    case '^':
    case '$':
    case '@': return numbered_key(final_byte, number_in(parameters, 0), by_word);
    default: return;
  }
}

void KeyReader::numbered_key(char final_byte, int number, bool changed) {
  if (number == 1 || number == 7) emit("\001");
  else if (number == 4 || number == 8) emit("\005");
  else if (number == 3) emit(changed || final_byte == '^' ? "\033d" : kDelete);
  else if (number == 200 && final_byte == '~') emit(kPaste);
}

}  // namespace riffle::cli
