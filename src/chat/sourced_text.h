// Text that knows the source of every byte: a chat template, or a message of the conversation.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace riffle {

class SourcedText {
 public:
  // Sources; any other is the number of a message. kTools: definitions of tools.
  static constexpr int kTemplate = -1, kTools = -2;
  // The bytes from the end of the previous run up to `end`. Neighbours have different sources, and
  // no run is empty.
  struct Run {
    size_t end;
    int source;
  };

  SourcedText() = default;
  explicit SourcedText(std::string_view text, int source = kTemplate) { append(text, source); }

  const std::string& str() const { return text_; }
  std::string_view view() const { return text_; }
  const std::vector<Run>& runs() const { return runs_; }
  size_t size() const { return text_.size(); }
  bool empty() const { return text_.empty(); }
  int source_at(size_t pos) const;

  void append(std::string_view text, int source = kTemplate);
  void append(const SourcedText& text, size_t begin = 0, size_t end = std::string::npos);
  SourcedText part(size_t begin, size_t end = std::string::npos) const;

 private:
  size_t run_at(size_t pos) const;  // index of the run that holds the byte at pos

  std::string text_;
  std::vector<Run> runs_;
};

}  // namespace riffle
