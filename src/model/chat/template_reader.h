// What a chat template would print for a conversation, found without knowing the conversation:
// contents are stand-ins. This tells templates apart by what they do, however they are spelled. It
// is no template engine: it knows the few operations that chat templates are made of, no
// conversation ever reaches it, and whatever depends on what a message says, or on anything that is
// not known here, has the answer "unknown".
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "model/chat/template_syntax.h"

namespace riffle {

// A piece of text of which parts are not known yet.
struct TextPiece {
  enum Kind {
    LITERAL,  // text
    CONTENT,  // the content of message number
    BOS,
    EOS,     // the tokens themselves
    TRIMMED  // inside, without the white space around it (Python's str.strip)
  };
  Kind kind = LITERAL;
  std::string text;
  int message = 0;
  std::vector<TextPiece> inside;
  bool operator==(const TextPiece&) const = default;
};
using TextPieces = std::vector<TextPiece>;

// Both keep pieces in one spelling, so that equal texts are equal lists: no empty literals, no two
// side by side, TRIMMED only where it could still matter.
void append(TextPieces* text, const TextPieces& more);
void append_literal(TextPieces* text, std::string_view more);
TextPieces trimmed(TextPieces text);

class TemplateReader {
 public:
  // text: the template. bos, eos: what bos_token and eos_token are; "": not defined.
  TemplateReader(std::string_view text, std::string bos, std::string eos);

  enum class Outcome { PRINTED, RAISED, UNKNOWN };  // RAISED: the template refuses the conversation
  // *text: what is printed for messages of these roles, a generation prompt asked for, no tools, no
  // documents. LITERAL, CONTENT and TRIMMED pieces only. Takes bounded time whatever the template
  // is.
  Outcome read(const std::vector<std::string>& roles, TextPieces* text);

  // The sum of the whole numbers that reading has met so far, each place of the template counted
  // once: numbers this small are all by which the template can tell one long conversation from
  // another.
  int64_t numbers() const;

 private:
  TemplateTree tree_;
  bool parsed_;  // after the tree that it fills
  std::string bos_, eos_;
  std::vector<bool> met_;  // expressions of kind INTEGER
};

}  // namespace riffle
