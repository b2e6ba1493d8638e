// riffle.h: the table of settings.
#include "util/settings.h"

extern "C" {

const riffle_setting* riffle_setting_at(size_t index) {
  const auto all = riffle::settings();
  return index < all.size() ? &all[index] : nullptr;
}

double riffle_setting_get(const riffle_setting* setting, const void* options) {
  return setting && options ? riffle::setting_value(*setting, options) : 0;
}

bool riffle_setting_set(const riffle_setting* setting, void* options, double value) {
  if (!setting || !options || !riffle::setting_allows(*setting, value)) return false;
  riffle::set_setting(*setting, options, value);
  return true;
}

}  // extern "C"
