#include "util/nearest_word.h"

#include <algorithm>
#include <vector>

namespace riffle {
namespace {

// Returns the fewest insertions, deletions, changes and swaps of neighbours that turn b into a.
size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        d[i][j] = i + j;
        continue;
      }
      d[i][j] =
          std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

// A text longer than this means no known word; the time grows with both lengths.
constexpr size_t kLongest = 64;

}  // namespace

bool NearestWord::offer(std::string_view word) {
  if (typed_.size() > kLongest) return false;
  size_t d = distance(typed_, word);
  const size_t shorter = std::min(typed_.size(), word.size());
  // A word that is cut short, or that has more text after it, is near too.
  if (shorter >= 3 && typed_.compare(0, shorter, word, 0, shorter) == 0) d = std::min<size_t>(d, 2);
  if (d > std::max<size_t>(1, typed_.size() / 3) || d >= best_) return false;
  best_ = d;
  return true;
}

}  // namespace riffle
