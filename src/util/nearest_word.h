// Finds the word that a user most likely meant.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace riffle {

class NearestWord {
 public:
  explicit NearestWord(std::string_view typed) : typed_(typed) {}
  // Returns whether this word is nearer than all before it, and near at all.
  bool offer(std::string_view word);

 private:
  std::string typed_;
  size_t best_ = SIZE_MAX;
};

}  // namespace riffle
