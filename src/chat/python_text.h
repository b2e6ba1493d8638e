// Functions on characters that match Python's str: white space, case, repr. Texts are valid UTF-8.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "chat/sourced_text.h"
#include "util/utf8.h"

namespace riffle {

char32_t char_at(std::string_view text, size_t pos);   // the character that begins at pos
size_t char_begin(std::string_view text, size_t end);  // beginning of the character before end
// Returns the byte offset of character n (from 0), or the text's size if it has no more than n.
size_t char_offset(std::string_view text, size_t n);
void append_char(std::string* out, char32_t c);
// Returns the byte offset of the first `what` from pos on, or npos; in linear time for any texts.
size_t find_text(std::string_view text, std::string_view what, size_t pos = 0);

// str.isspace(): all that Unicode calls white space, and the separators 1C to 1F.
bool is_space(char32_t c);
std::string_view strip_left(std::string_view text);
std::string_view strip_right(std::string_view text);

enum class CharKind { LETTER, DECIMAL, DIGIT, NUMERIC, OTHER };
CharKind char_kind(char32_t c);
bool is_upper(char32_t c);
bool is_lower(char32_t c);
bool is_titled(char32_t c);
bool is_cased(char32_t c);

enum class Case { UPPER, LOWER, TITLE, CAPITAL, SWAPPED };
// TITLE: str.title(); CAPITAL: str.capitalize().
SourcedText with_case(const SourcedText& text, Case what);

// Appends repr(text). Its characters keep their sources.
void append_repr(const SourcedText& text, SourcedText* out);
std::string repr_of(double value);

}  // namespace riffle
