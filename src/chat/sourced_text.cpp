#include "chat/sourced_text.h"

#include <algorithm>

namespace riffle {

size_t SourcedText::run_at(size_t pos) const {
  const auto at = std::upper_bound(runs_.begin(), runs_.end(), pos,
                                   [](size_t p, const Run& run) { return p < run.end; });
  return static_cast<size_t>(at - runs_.begin());
}

int SourcedText::source_at(size_t pos) const {
  const size_t run = run_at(pos);
  return run < runs_.size() ? runs_[run].source : kTemplate;
}

void SourcedText::append(std::string_view text, int source) {
  if (text.empty()) return;
  text_ += text;
  if (!runs_.empty() && runs_.back().source == source) runs_.back().end = text_.size();
  else runs_.push_back({text_.size(), source});
}

void SourcedText::append(const SourcedText& text, size_t begin, size_t end) {
  end = std::min(end, text.size());
  const std::string_view all = text.text_;
  for (size_t run = text.run_at(begin); begin < end; run++) {
    const size_t to = std::min(text.runs_[run].end, end);
    append(all.substr(begin, to - begin), text.runs_[run].source);
    begin = to;
  }
}

SourcedText SourcedText::part(size_t begin, size_t end) const {
  SourcedText out;
  out.append(*this, begin, end);
  return out;
}

}  // namespace riffle
