#include "model/chat/chat_template.h"

#include <algorithm>

#include "model/text/tokenizer.h"
#include "util/error.h"

namespace riffle {
namespace {

// Runs of text: the format's own, with control pieces in it, or what somebody wrote.
struct Run {
  enum Kind { FORMAT, WRITTEN, BOS, EOS } kind;
  std::string text;
};

void flatten(const TextPieces& pieces, const std::vector<ChatMessage>& messages,
             std::vector<Run>* runs) {
  for (const TextPiece& piece : pieces) {
    switch (piece.kind) {
      case TextPiece::LITERAL: runs->push_back({Run::FORMAT, piece.text}); break;
      case TextPiece::CONTENT:
        runs->push_back({Run::WRITTEN, messages[static_cast<size_t>(piece.message)].content});
        break;
      case TextPiece::BOS: runs->push_back({Run::BOS, ""}); break;
      case TextPiece::EOS: runs->push_back({Run::EOS, ""}); break;
      case TextPiece::TRIMMED: {
        std::vector<Run> inside;
        flatten(piece.inside, messages, &inside);
        size_t first = 0, last = inside.size();
        for (; first < last; first++) {
          inside[first].text = strip_left(inside[first].text);
          if (!inside[first].text.empty()) break;
        }
        for (; last > first; last--) {
          inside[last - 1].text = strip_right(inside[last - 1].text);
          if (!inside[last - 1].text.empty()) break;
        }
        for (; first < last; first++) runs->push_back(std::move(inside[first]));
        break;
      }
    }
  }
}

std::vector<Run> chat_runs(const ChatFormat& format, const std::vector<ChatMessage>& messages) {
  if (messages.empty()) fail(RIFFLE_BAD_ARGUMENT, "the conversation has no messages");
  const bool system = messages[0].role == "system";
  if (system && format.family->system_place == ChatFamily::NONE) {
    fail(RIFFLE_BAD_ARGUMENT,
         "message 0 has role 'system', but this model's chat template has no system messages");
  }
  for (size_t i = 0; i < messages.size(); i++) {
    if (utf8_error(messages[i].role) >= 0)
      fail(RIFFLE_BAD_TEXT, "the role of message %zu is not UTF-8", i);
    if (const int64_t bad = utf8_error(messages[i].content); bad >= 0) {
      fail(RIFFLE_BAD_TEXT, "message %zu is not UTF-8: invalid sequence at byte %lld", i,
           static_cast<long long>(bad));
    }
    if (i == 0 && system) continue;
    const char* expected = (i - system) % 2 == 0 ? "user" : "assistant";
    if (messages[i].role != expected) {
      fail(RIFFLE_BAD_ARGUMENT, "message %zu has role '%.40s', expected '%s'", i,
           messages[i].role.c_str(), expected);
    }
  }
  if (messages.back().role != "user") {
    fail(RIFFLE_BAD_ARGUMENT, "the last message has role '%s', expected 'user'",
         messages.back().role.c_str());
  }
  std::vector<Run> runs;
  flatten(chat_pieces(format, system, (messages.size() - system + 1) / 2), messages, &runs);
  return runs;
}

std::vector<std::string> words(std::string_view text) {
  std::vector<std::string> out;
  while (!text.empty()) {
    const size_t space = std::min(text.find(' '), text.size());
    out.emplace_back(text.substr(0, space));
    text.remove_prefix(std::min(space + 1, text.size()));
  }
  return out;
}

// Collects plain text and control tokens in turn. Plain text is only encoded when a control token
// or the end comes, so that neighbouring texts are encoded as one, as Hugging Face's LlamaTokenizer
// does. In it, control pieces that a message spells out stay plain text. User-defined pieces
// ([INST] is one in some models) do not: sentencepiece matches them in any text, and the ids could
// not be its own if that were prevented.
class TokenWriter {
 public:
  TokenWriter(const Tokenizer& tokenizer, const ChatFormat& format) : tokenizer_(tokenizer) {
    const ChatFamily& family = *format.family;
    for (const std::string& piece : words(family.required)) {
      const int32_t id = tokenizer.control_id(piece);
      if (id < 0) {
        fail(RIFFLE_UNSUPPORTED,
             "the chat template is of the kind %s, but the vocabulary has no control piece %s",
             family.name, piece.c_str());
      }
      markers_.emplace_back(piece, id);
    }
    for (const std::string& piece : words(family.markers)) {
      if (const int32_t id = tokenizer.control_id(piece); id >= 0) markers_.emplace_back(piece, id);
    }
    for (const int32_t id : {tokenizer.bos_id(), tokenizer.eos_id()}) {
      if (id >= 0 && *tokenizer.piece(id)) markers_.emplace_back(tokenizer.piece(id), id);
    }
  }

  void put(const Run& run) {
    switch (run.kind) {
      case Run::WRITTEN: plain_ += run.text; return;
      case Run::BOS: return control(tokenizer_.bos_id(), "beginning");
      case Run::EOS: return control(tokenizer_.eos_id(), "end");
      case Run::FORMAT: break;
    }
    for (size_t pos = 0; pos < run.text.size();) {
      const std::pair<std::string, int32_t>* longest = nullptr;
      for (const auto& marker : markers_) {
        if (run.text.compare(pos, marker.first.size(), marker.first) == 0 &&
            (!longest || marker.first.size() > longest->first.size())) {
          longest = &marker;
        }
      }
      if (longest) control(longest->second, "");
      else plain_ += run.text[pos];
      pos += longest ? longest->first.size() : 1;
    }
  }

  std::vector<int32_t> take() {
    flush();
    return std::move(ids_);
  }

 private:
  void control(int32_t id, const char* which) {
    if (id < 0)
      fail(RIFFLE_UNSUPPORTED,
           "the chat template needs the %s-of-sequence token, the model has none", which);
    flush();
    ids_.push_back(id);
  }
  void flush() {
    const std::vector<int32_t> more = tokenizer_.encode(plain_, false, false);
    ids_.insert(ids_.end(), more.begin(), more.end());
    plain_.clear();
  }

  const Tokenizer& tokenizer_;
  std::vector<std::pair<std::string, int32_t>> markers_;
  std::string plain_;
  std::vector<int32_t> ids_;
};

}  // namespace

std::string chat_text(const ChatFormat& format, const std::string& bos, const std::string& eos,
                      const std::vector<ChatMessage>& messages) {
  std::string out;
  for (const Run& run : chat_runs(format, messages)) {
    out += run.kind == Run::BOS ? bos : run.kind == Run::EOS ? eos : run.text;
  }
  return out;
}

std::vector<int32_t> chat_tokens(const Tokenizer& tokenizer, const ChatFormat& format,
                                 const std::vector<ChatMessage>& messages) {
  const std::vector<Run> runs = chat_runs(format, messages);
  TokenWriter out(tokenizer, format);
  for (const Run& run : runs) out.put(run);
  return out.take();
}

std::vector<int32_t> chat_end_ids(const Tokenizer& tokenizer, const ChatFormat& format) {
  std::vector<int32_t> ids;
  for (const std::string& piece : words(format.family->turn_end)) {
    if (const int32_t id = tokenizer.control_id(piece); id >= 0) ids.push_back(id);
  }
  return ids;
}

}  // namespace riffle
