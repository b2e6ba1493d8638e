// The dense selector: reads everything that the query sees, in token order. It is the exact
// reference.
#include "select/selector.h"

namespace riffle {
namespace {

class Dense : public Selector {
 public:
  const char* name() const override { return "dense"; }
  const SelectionRule* rule() const override { return &rule_; }
  const char* host_only() const override { return nullptr; }
  void begin(const Row& row, RowPlan& plan) const override { plan.everything(row); }

 private:
  ReadsEverything rule_;
};

}  // namespace

std::unique_ptr<Selector> make_dense() { return std::make_unique<Dense>(); }

}  // namespace riffle
