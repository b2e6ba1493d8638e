// The struct behind riffle_options: settings by name.
#pragma once
#include <optional>
#include <string>

#include "util/options.h"
#include "util/settings.h"

struct riffle_options {
  riffle::ModelOptions model;
  riffle::ContextOptions context;  // with the selection
  riffle::SchedulerOptions scheduler;
  riffle::GenerateOptions answer;  // with the sampling
  riffle::ConversationOptions chat;
  riffle::QuantizeOptions quantize;
  mutable std::string text;  // the text that riffle_options_get returned last
  char error[512] = "";

  // Returns the struct whose members are the settings of this kind.
  void* part(riffle::OptionsKind kind);
  const void* part(riffle::OptionsKind kind) const {
    return const_cast<riffle_options*>(this)->part(kind);
  }
};

namespace riffle {

// Returns the caller's options, or the defaults for null.
const riffle_options& options_or_defaults(const riffle_options* options);

// Finds a setting; throws RIFFLE_BAD_ARGUMENT, with the nearest name.
const Setting& known_setting(const char* name);

// Sets a member of one of the structs by name. Throws RIFFLE_BAD_ARGUMENT.
void set_option(const Setting& setting, riffle_options& options, const char* value);

}  // namespace riffle
