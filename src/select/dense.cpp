// Everything that the query sees, in token order: the exact reference.
#include "select/selector.h"

namespace riffle {
namespace {

class Dense : public Selector {
 public:
  const char* name() const override { return "dense"; }
  SelectionRule rule() const override {
    SelectionRule r;
    r.everything = true;
    return r;
  }
  void begin(const Row& row, RowPlan& plan) const override { plan.everything(row); }
};

}  // namespace

std::unique_ptr<Selector> make_dense() { return std::make_unique<Dense>(); }

}  // namespace riffle
