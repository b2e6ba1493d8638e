#include "import/end_tokens.h"

#include <algorithm>
#include <iterator>

namespace riffle {

bool is_end_token_name(std::string_view text) {
  return std::find(std::begin(kEndTokenNames), std::end(kEndTokenNames), text) !=
         std::end(kEndTokenNames);
}

void add_end_token(int id, Config* config) {
  if (id >= 0 && !config->ends_answer(id)) config->eos_ids.push_back(id);
}

}  // namespace riffle
