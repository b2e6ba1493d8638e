// Makes text safe to print on a terminal: without sequences that a terminal obeys.
#pragma once
#include <string>
#include <string_view>

namespace riffle::cli {

// Rewrites a stream of text that comes in pieces. Answers, documents and the metadata of files are
// untrusted: raw, an OSC 52 in them would write the user's clipboard, and CSI sequences would clear
// the screen or draw false text. These become the six characters of their JSON escapes, such as
// \u001b, so that JSON stays the same JSON:
//   - C0 controls except \n and \t, DEL, and the C1 controls U+0080 to U+009F. \r\n becomes \n;
//   - the overrides U+202D and U+202E, the only ones that show letters in another order than the
//     text's. Bidirectional marks, embeddings and isolates stay: Arabic and Hebrew text needs them.
// Bytes that are not valid UTF-8 become U+FFFD, since terminals with 8-bit controls obey some of
// them.
class Printable {
 public:
  // Returns the text that can be shown now. The beginning of a character, and \r, wait for the next
  // piece.
  std::string put(std::string_view piece);
  std::string finish();  // returns the bytes that still wait

 private:
  void put_byte(unsigned char byte, std::string& out);
  void put_character(char32_t character, std::string& out);
  void break_character(std::string& out);

  std::string held_;     // the beginning of a character
  size_t length_ = 0;    // length of that character
  bool return_ = false;  // \r came last
};

std::string printable(std::string_view text);
// The same for a cell of a table or a part of a line: \n and \t are replaced, too.
std::string one_line(std::string_view text);

}  // namespace riffle::cli
