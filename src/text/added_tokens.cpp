#include "text/added_tokens.h"

#include <utf8proc.h>

#include <algorithm>

namespace riffle {

namespace {

// Returns the character that begins at pos; -1 at the text's end.
int32_t char_at(std::string_view text, size_t pos) {
  if (pos >= text.size()) return -1;
  utf8proc_int32_t c = -1;
  utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data() + pos),
                   static_cast<utf8proc_ssize_t>(text.size() - pos), &c);
  return c;
}
size_t char_before(std::string_view text, size_t pos) {
  do pos--;
  while (pos > 0 && (static_cast<uint8_t>(text[pos]) & 0xC0) == 0x80);
  return pos;
}

// Tells whether c is in Unicode's White_Space.
bool is_space(int32_t c) {
  return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

// Tells whether c is in \w of UTS #18: Alphabetic, marks, decimal digits, connector punctuation,
// join controls.
bool is_word(int32_t c) {
  if (c < 0) return false;
  if (c == 0x200C || c == 0x200D) return true;
  // Other_Alphabetic except marks.
  if ((c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
      (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189)) {
    return true;
  }
  switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC: return true;
    default: return false;
  }
}

}  // namespace

void Spellings::sort() {
  std::sort(entries_.begin(), entries_.end());
  for (const Entry& entry : entries_) {
    if (!entry.first.empty()) first_bytes_[static_cast<uint8_t>(entry.first[0])] = true;
  }
}

// Narrows the sorted list byte by byte.
const Spellings::Entry* Spellings::longest_at(std::string_view text) const {
  if (text.empty() || !first_bytes_[static_cast<uint8_t>(text[0])]) return nullptr;
  const Entry* longest = nullptr;
  auto first = entries_.begin(), last = entries_.end();
  while (first != last && first->first.empty()) ++first;
  for (size_t k = 0; k < text.size() && first != last; k++) {
    const uint8_t want = static_cast<uint8_t>(text[k]);
    const auto byte = [k](const Entry& entry) { return static_cast<uint8_t>(entry.first[k]); };
    first =
        std::partition_point(first, last, [&](const Entry& entry) { return byte(entry) < want; });
    last =
        std::partition_point(first, last, [&](const Entry& entry) { return byte(entry) == want; });
    // The shortest sorts first. The first of several with the same spelling counts.
    if (first != last && first->first.size() == k + 1) {
      longest = &*first;
      while (first != last && first->first.size() == k + 1) ++first;
    }
  }
  return longest;
}

int32_t Spellings::id_of(std::string_view text) const {
  const auto it =
      std::lower_bound(entries_.begin(), entries_.end(), text,
                       [](const Entry& entry, std::string_view t) { return entry.first < t; });
  return it != entries_.end() && it->first == text ? it->second : -1;
}

void AddedTokens::add(const AddedToken& token, std::string spelling) {
  if (spelling.empty()) return;
  spellings_.add(std::move(spelling), static_cast<int32_t>(tokens_.size()));
  tokens_.push_back(token);
}

void AddedTokens::cut(std::string_view text, std::span<const TextSpan> special,
                      std::vector<Part>* parts) const {
  parts->clear();
  SpanWalk spans(special);
  size_t done = 0;
  for (size_t pos = 0; pos < text.size();) {
    const auto* found = spellings_.longest_at(text.substr(pos));
    if (found == nullptr) {
      pos++;
      continue;
    }
    const AddedToken& token = tokens_[found->second];
    size_t begin = pos, end = pos + found->first.size();
    pos = end;
    if (token.special && !spans.holds(begin, end)) {
      pos = spans.border(begin, end);
      continue;
    }
    if (token.single_word) {
      if (begin > 0 && is_word(char_at(text, char_before(text, begin)))) continue;
      if (is_word(char_at(text, end))) continue;
    }
    if (token.lstrip) {
      while (begin > done) {
        const size_t before = char_before(text, begin);
        if (!is_space(char_at(text, before))) break;
        begin = before;
      }
    }
    if (token.rstrip) {
      while (is_space(char_at(text, end))) {
        do end++;
        while (end < text.size() && (static_cast<uint8_t>(text[end]) & 0xC0) == 0x80);
      }
    }
    if (done < begin) parts->push_back({-1, done, begin});
    parts->push_back({token.id, begin, end});
    done = end;
  }
  if (done < text.size()) parts->push_back({-1, done, text.size()});
}

}  // namespace riffle
