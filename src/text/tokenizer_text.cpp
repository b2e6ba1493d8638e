// UTF-8 and streaming, which all tokenizers share.
#include "text/tokenizer.h"
#include "util/error.h"

namespace riffle {

namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// The most bytes of a text that is tokenised at once. Sentencepiece models count positions of
// normalised text, up to 3 bytes for each byte of the text, in 31 bits. BPE has positions of 32
// bits, and may take 40 bytes for each byte of a word.
constexpr size_t kMaxTextBytes = 256 << 20;

// Returns the length of the character at text[pos], or 0 if there is none; then *subpart is the
// length of the maximal subpart (Unicode 15, 3.9, table 3-7: the longest beginning of a well-formed
// sequence, at least 1 byte), and *cut tells whether it is only the text's end that cut the
// character short.
size_t utf8_char(std::string_view text, size_t pos, size_t* subpart, bool* cut) {
  const auto at = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = at(pos);
  *subpart = 1;
  *cut = false;
  if (lead < 0x80) return 1;
  if (lead < 0xC2 || lead > 0xF4) return 0;
  const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // The second byte's range excludes overlong forms, surrogates and characters beyond U+10FFFF; the
  // others are 80..BF.
  uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (size_t i = 1; i < length; i++) {
    *subpart = i;
    *cut = pos + i == text.size();
    if (*cut || at(pos + i) < low || at(pos + i) > high) return 0;
    low = 0x80;
    high = 0xBF;
  }
  return length;
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

}  // namespace

size_t append_valid_utf8(std::string_view text, bool keep_cut, std::string* out) {
  for (size_t pos = 0; pos < text.size();) {
    size_t subpart;
    bool cut;
    const size_t length = utf8_char(text, pos, &subpart, &cut);
    if (length == 0 && cut && keep_cut) return pos;
    out->append(length ? text.substr(pos, length) : kReplacement);
    pos += length ? length : subpart;
  }
  return text.size();
}

std::string StreamDecoder::put(int32_t id) {
  std::string more = tokenizer_->bytes(id);
  if (more.empty()) return finish();  // a control piece ends a character that is not complete
  if (at_start_) {
    // The tokenizer decides whether the text's first space is dropped, so decode() is asked: it
    // drops the space of only this piece, and of a second such piece only if the vocabulary removes
    // extra spaces.
    const int32_t twice[2] = {id, id};
    const bool drop = more[0] == ' ' && tokenizer_->decode(twice, 1).size() < more.size();
    if (drop) more.erase(0, 1);
    at_start_ = drop && more.empty() && tokenizer_->decode(twice, 2).empty();
  }
  pending_ += more;
  std::string out;
  pending_.erase(0, append_valid_utf8(pending_, true, &out));
  return out;
}

std::string StreamDecoder::finish() {
  std::string out;
  append_valid_utf8(pending_, false, &out);
  pending_.clear();
  return out;
}

int64_t utf8_error(std::string_view text) {
  for (size_t pos = 0; pos < text.size();) {
    size_t subpart;
    bool cut;
    const size_t length = utf8_char(text, pos, &subpart, &cut);
    if (length == 0) return static_cast<int64_t>(pos);
    pos += length;
  }
  return -1;
}

void check_text(std::string_view text) {
  if (text.size() > kMaxTextBytes)
    fail(RIFFLE_BAD_ARGUMENT, "the text has %zu bytes, at most %zu are supported at once",
         text.size(), kMaxTextBytes);
  if (const int64_t bad = utf8_error(text); bad >= 0)
    fail(RIFFLE_BAD_TEXT, "the text is not UTF-8: invalid sequence at byte %lld",
         static_cast<long long>(bad));
}

int used_size(const std::vector<VocabPiece>& pieces) {
  size_t n = pieces.size();
  while (n > 0 && pieces[n - 1].type == VocabPiece::UNUSED) n--;
  return static_cast<int>(n > 0 ? n : pieces.size());
}

int byte_of_piece(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return -1;
  const int high = hex_digit(text[3]), low = hex_digit(text[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

}  // namespace riffle
