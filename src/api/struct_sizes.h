// Structs of callers whose header is older or newer than this library (riffle.h, "Versions").
#pragma once
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <iterator>

#include "api/api_handles.h"
#include "riffle.h"
#include "util/error.h"

namespace riffle {

// The size of a struct in version 1.0.0, the first whose programs run with later libraries.
template <class Struct>
inline constexpr size_t kFirstSize = 0;
template <>
inline constexpr size_t kFirstSize<riffle_model_options> = 48;
template <>
inline constexpr size_t kFirstSize<riffle_quantize_options> = 40;
template <>
inline constexpr size_t kFirstSize<riffle_chat_options> = 32;
template <>
inline constexpr size_t kFirstSize<riffle_selection> = 176;
template <>
inline constexpr size_t kFirstSize<riffle_context_options> = 304;
template <>
inline constexpr size_t kFirstSize<riffle_save_options> = 56;
template <>
inline constexpr size_t kFirstSize<riffle_generate_options> = 184;
template <>
inline constexpr size_t kFirstSize<riffle_scheduler_options> = 88;
template <>
inline constexpr size_t kFirstSize<riffle_model_info> = 216;
template <>
inline constexpr size_t kFirstSize<riffle_quantize_result> = 56;
template <>
inline constexpr size_t kFirstSize<riffle_plan> = 1096;
template <>
inline constexpr size_t kFirstSize<riffle_session_file_info> = 144;
template <>
inline constexpr size_t kFirstSize<riffle_stats> = 232;
template <>
inline constexpr size_t kFirstSize<riffle_iteration> = 112;

// No header of any version has structs as large as this.
inline constexpr size_t kMaxStructSize = 65536;

template <class Struct>
void check_size(size_t size, const char* what) {
  static_assert(kFirstSize<Struct> > 0 && kFirstSize<Struct> <= sizeof(Struct));
  if (size < kFirstSize<Struct> || size > kMaxStructSize)
    fail(RIFFLE_BAD_ARGUMENT,
         "%s: struct_size is %zu, expected %zu to %zu; set it to sizeof, or call the struct's "
         "_defaults function",
         what, size, kFirstSize<Struct>, kMaxStructSize);
}

// A struct that is a member of another one: its size never changes.
template <class Struct>
void check_member(const Struct& s, const char* what) {
  require_size(s, what);
  if (std::any_of(std::begin(s.reserved), std::end(s.reserved),
                  [](uint64_t word) { return word != 0; }))
    fail(RIFFLE_UNSUPPORTED,
         "%s: reserved is not 0, expected 0 in riffle %s; call the struct's _defaults function, or "
         "use a later libriffle",
         what, RIFFLE_VERSION);
}

// What riffle_*_defaults_sized does: writes no byte beyond `size`.
template <class Struct, class Set>
void give_defaults(Struct* to, size_t size, Set&& set) {
  if (!to || size < sizeof to->struct_size) return;
  Struct all;
  std::memset(&all, 0, sizeof all);  // the padding too: it may be a later member's place
  set(all);
  all.struct_size = size;
  std::memset(to, 0, size);
  std::memcpy(to, &all, std::min(size, sizeof all));
}

// The caller's options, with the defaults for members that its header does not have.
template <class Struct>
Struct known(const Struct* given, void (*defaults)(Struct*, size_t), const char* what) {
  Struct all;
  defaults(&all, sizeof all);
  if (!given) return all;
  const size_t size = given->struct_size;
  check_size<Struct>(size, what);
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  for (size_t i = sizeof all; i < size; ++i)
    if (bytes[i] != 0)
      fail(RIFFLE_UNSUPPORTED,
           "%s: a member beyond byte %zu is not 0 (struct_size is %zu), and riffle %s does not "
           "know it; "
           "leave it 0, or use a later libriffle",
           what, sizeof all, size, RIFFLE_VERSION);
  std::memcpy(&all, given, std::min(size, sizeof all));
  all.struct_size = sizeof all;
  return all;
}

// Fills in what the caller's header has of a struct. Later members, which this library does not
// know, become 0.
template <class Struct>
void give(Struct* to, const Struct& from, const char* what) {
  const size_t size = to->struct_size;
  check_size<Struct>(size, what);
  std::memset(to, 0, size);
  std::memcpy(to, &from, std::min(size, sizeof from));
  to->struct_size = size;
}

}  // namespace riffle
