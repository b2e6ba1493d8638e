#include "cli/keys.h"

#include <catch2/catch.hpp>
#include <clocale>
#include <string>

using namespace riffle::cli;

namespace {

// Returns the line that the editor makes of these bytes. '|' is a pause, in which no key is
// pressed.
std::wstring typed(const std::string& bytes, bool raw = false) {
  std::setlocale(LC_CTYPE, "C.UTF-8");
  size_t at = 0;
  KeyReader keys([&](int ms) -> int {
    for (;;) {
      if (at == bytes.size()) return KeyReader::kEnd;
      if (bytes[at] != '|') return static_cast<unsigned char>(bytes[at++]);
      if (ms >= 0) return KeyReader::kNothing;
      ++at;
    }
  });
  std::wstring out;
  for (wchar_t c = 0; keys.next(&c, raw) == 1;) out += c;
  return out;
}

const std::wstring kWordLeft = L"\033b", kWordRight = L"\033f";

}  // namespace

TEST_CASE("Keys: words move with every terminal's sequences", "[cli]") {
  // xterm, xterm with Alt, iTerm2, rxvt Ctrl, rxvt and tmux Alt, PuTTY and old forms, letters.
  for (const char* key : {"\033[1;5D", "\033[1;3D", "\033[1;9D", "\033Od", "\033\033[D",
                          "\033\033OD", "\033[1;7D", "\033O5D", "\033b"})
    CHECK(typed(key) == kWordLeft);
  for (const char* key : {"\033[1;5C", "\033[1;3C", "\033Oc", "\033\033[C", "\033O5C", "\033f"})
    CHECK(typed(key) == kWordRight);
  CHECK(typed("\033[3;5~") == L"\033d");
  CHECK(typed("\033[3^") == L"\033d");
}

TEST_CASE("Keys: arrows, Home, End and Delete in every form", "[cli]") {
  for (const char* key : {"\033[D", "\033OD", "\033[1;2D", "\033[d"}) CHECK(typed(key) == L"\002");
  for (const char* key : {"\033[C", "\033OC", "\033[c"}) CHECK(typed(key) == L"\006");
  for (const char* key : {"\033[A", "\033OA"}) CHECK(typed(key) == L"\020");
  for (const char* key : {"\033[B", "\033OB"}) CHECK(typed(key) == L"\016");
  for (const char* key :
       {"\033[H", "\033OH", "\033[1~", "\033[7~", "\033[7^", "\033[7$", "\033[1;5H"})
    CHECK(typed(key) == L"\001");
  for (const char* key : {"\033[F", "\033OF", "\033[4~", "\033[8~", "\033[8@"})
    CHECK(typed(key) == L"\005");
  CHECK(typed("\033[3~") == L"\033[3~");
  CHECK(typed("\033OM") == L"\r");
}

TEST_CASE("Keys: what is not known types nothing", "[cli]") {
  for (const char* key : {"\033[5~",
                          "\033[6~",
                          "\033[5;5~",
                          "\033[2~",
                          "\033OP",
                          "\033OS",
                          "\033[15~",
                          "\033[24;2~",
                          "\033[[A",
                          "\033[[E",
                          "\033[1;2P",
                          "\033[Z",
                          "\033[I",
                          "\033[O",
                          "\033[200;5u",
                          "\033[?1;2c",
                          "\033[<0;10;10M",
                          "\033[27;5;9~",
                          "\033]11;rgb:0000/0000/0000\007",
                          "\033]0;x\033\\",
                          "\033P1$r0m\033\\",
                          "\033x",
                          "\033\xC3\xA9",
                          "\033[1;5A",
                          "\033[99999999999999999999~"})
    CHECK(typed(std::string("a") + key + "z") == L"az");
  CHECK(typed("\033|") == L"");         // Escape
  CHECK(typed("\033|\r") == L"\r");     // Enter counts, however long ago that was
  CHECK(typed("\033|b") == kWordLeft);  // typed one after the other
  CHECK(typed("\033|x") == L"x");
  CHECK(typed("\033[|x") == L"x");  // Alt and a bracket
  CHECK(typed("\033P|x") == L"x");
  CHECK(typed("\033[12\r") == L"\r");  // cut off
}

TEST_CASE("Keys: a broken character ends at the next key", "[cli]") {
  CHECK(typed("caf\xC3\xA9\r") == L"caf\u00e9\r");
  CHECK(typed("caf\xE9\r") == L"caf\uFFFD\r");
  CHECK(typed("\xE9\xC3\xA9") == L"\uFFFD\u00e9");
  CHECK(typed("\xF0\x9F\x98x") == L"\uFFFDx");
  CHECK(typed("\xE2\x82\033[C") == L"\uFFFD\006");
  CHECK(typed("\xFF\xFE") == L"\uFFFD\uFFFD");
  CHECK(typed("\x80z") == L"\uFFFDz");
}

TEST_CASE("Keys: pasted text has no keys", "[cli]") {
  CHECK(typed("\033[200~") == L"\033[200~");
  CHECK(typed("\033[201~") == L"");
  CHECK(typed("a\033[Cb\xE9", true) == L"a\033[Cb");  // cut in a character at the end of all input
  CHECK(typed("b\xE9\033[201~", true) == L"b\uFFFD\033[201~");
}
