#include "engine/proposer.h"

#include "engine/lookup.h"

namespace riffle {

std::unique_ptr<Proposer> make_proposer(int most_ahead) {
  if (most_ahead == 0) return nullptr;
  return std::make_unique<Lookup>();
}

}  // namespace riffle
