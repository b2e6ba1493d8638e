// Stands in for the selectors of published papers in a build of the core alone.
#include "select/registry.h"
#include "util/settings.h"

namespace riffle {

void add_papers(SelectorRegistry&) {}
void add_papers(SettingsTable&) {}

}  // namespace riffle
