// Programs that were compiled with another version of riffle.h: their structs are shorter or
// longer.
#include "api/struct_sizes.h"

#include <bit>
#include <catch2/catch.hpp>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "tests/engine/test_model.h"

using namespace riffle;
using namespace riffle::test;

namespace {

// A struct of another size, with bytes behind it that nobody may touch.
template <class Struct>
class Sized {
 public:
  explicit Sized(size_t size) : size_(size), bytes_(size + 64, kUntouched) {
    std::memset(bytes_.data(), 0, size);
    std::memcpy(bytes_.data(), &size, sizeof size);
  }
  Struct* get() { return reinterpret_cast<Struct*>(bytes_.data()); }
  unsigned char& byte(size_t i) { return bytes_[i]; }
  bool whole() const {
    for (size_t i = size_; i < bytes_.size(); ++i)
      if (bytes_[i] != kUntouched) return false;
    return true;
  }

 private:
  static constexpr unsigned char kUntouched = 0xab;
  size_t size_;
  std::vector<unsigned char> bytes_;
};

// The sizes of this struct in the released versions, and longer ones, of versions to come. call
// gets the struct, filled in by `defaults` where that is not null, and returns what riffle said.
template <class Struct, class Call>
void check_versions(const char* name, void (*defaults)(Struct*, size_t), Call call) {
  for (const size_t size : {kFirstSize<Struct>, sizeof(Struct), sizeof(Struct) + 24}) {
    INFO(name << " of " << size << " bytes");
    Sized<Struct> s(size);
    if (defaults) {
      std::memset(s.get(), 0xcd, size);
      defaults(s.get(), size);
      CHECK(s.get()->struct_size == size);
    }
    std::string text;
    CHECK(call(s.get(), &text) == RIFFLE_OK);
    CHECK(text == "");
    CHECK(s.whole());
    CHECK(s.get()->struct_size == size);
  }
  for (const size_t size : {size_t{0}, size_t{7}, kFirstSize<Struct> - 8, size_t{1} << 40}) {
    INFO(name << " that says " << size << " bytes");
    Sized<Struct> s(sizeof(Struct));
    if (defaults) defaults(s.get(), sizeof(Struct));
    s.get()->struct_size = size;
    std::string text;
    CHECK(call(s.get(), &text) == RIFFLE_BAD_ARGUMENT);
    CHECK(s.whole());
  }
  if (!defaults) return;
  Sized<Struct> newer(sizeof(Struct) + 24);
  defaults(newer.get(), sizeof(Struct) + 24);
  newer.byte(sizeof(Struct) + 9) = 1;
  std::string text;
  INFO(name);
  CHECK(call(newer.get(), &text) == RIFFLE_UNSUPPORTED);
  CHECK(text.find("and riffle " RIFFLE_VERSION " does not know it") != std::string::npos);
}

}  // namespace

TEST_CASE("structs: programs of version 1.0.0 and of later ones", "[api]") {
  riffle_context_options o;
  riffle_context_defaults(&o);
  o.device = RIFFLE_DEVICE_CPU;
  o.n_ctx = 256;
  Runtime r(std::bit_cast<ContextOptions>(o));
  riffle_session* session = r.session();
  const std::vector<int32_t> tokens = {1, 300, 301, 302};
  r.check(riffle_prefill(session, tokens.data(), tokens.size(), nullptr, nullptr));
  char err[512] = "";
  const auto said = [&](riffle_status status, std::string* text) {
    *text = status == RIFFLE_OK ? "" : err;
    return status;
  };
  const auto of_context = [&](riffle_status status, std::string* text) {
    *text = status == RIFFLE_OK ? "" : riffle_context_error(r.context);
    return status;
  };

  check_versions<riffle_model_options>(
      "model options", riffle_model_defaults_sized, [&](auto* s, std::string* text) {
        riffle_model* model = nullptr;
        const riffle_status status = riffle_model_load(shipped_model(), s, &model, err, sizeof err);
        riffle_model_free(model);
        return said(status, text);
      });
  check_versions<riffle_context_options>(
      "context options", riffle_context_defaults_sized, [&](auto* s, std::string* text) {
        s->device = RIFFLE_DEVICE_CPU;
        s->n_ctx = 256;
        riffle_context* context = nullptr;
        const riffle_status status = riffle_context_create(r.model, s, &context, err, sizeof err);
        riffle_context_free(context);
        return said(status, text);
      });
  check_versions<riffle_plan>("plan", nullptr, [&](auto* s, std::string* text) {
    return said(riffle_plan_memory(r.model, &o, s, err, sizeof err), text);
  });
  check_versions<riffle_model_info>("info", nullptr, [&](auto* s, std::string* text) {
    *text = "";
    return riffle_model_get_info(r.model, s);
  });
  check_versions<riffle_stats>("stats", nullptr, [&](auto* s, std::string* text) {
    *text = "";
    return riffle_get_stats(r.context, s);
  });
  check_versions<riffle_chat_options>(
      "chat options", riffle_chat_defaults_sized, [&](auto* s, std::string* text) {
        const riffle_message message = {"user", "Hello"};
        std::vector<int32_t> out(256);
        size_t n = 0;
        const riffle_status status =
            riffle_chat_prompt(r.model, &message, 1, s, out.data(), out.size(), &n, nullptr);
        *text = status == RIFFLE_OK ? "" : riffle_model_error(r.model);
        return status;
      });
  check_versions<riffle_selection>("selection", riffle_selection_defaults_sized,
                                   [&](auto* s, std::string* text) {
                                     return of_context(riffle_set_selection(r.context, s), text);
                                   });
  check_versions<riffle_generate_options>(
      "generate options", riffle_generate_defaults_sized, [&](auto* s, std::string* text) {
        s->max_tokens = 2;
        return of_context(riffle_generate(session, s, nullptr, nullptr, nullptr), text);
      });
  check_versions<riffle_scheduler_options>(
      "scheduler options", riffle_scheduler_defaults_sized, [&](auto* s, std::string* text) {
        riffle_scheduler* scheduler = nullptr;
        const riffle_status status = riffle_scheduler_create(r.context, s, &scheduler);
        riffle_scheduler_free(scheduler);
        return of_context(status, text);
      });
  riffle_scheduler* scheduler = nullptr;
  r.check(riffle_scheduler_create(r.context, nullptr, &scheduler));
  check_versions<riffle_iteration>("iteration", nullptr, [&](auto* s, std::string* text) {
    return of_context(riffle_scheduler_step(scheduler, s), text);
  });
  riffle_scheduler_free(scheduler);
}

TEST_CASE("structs: an array has the caller's step, and reserved members are 0", "[api]") {
  riffle_context_options o;
  riffle_context_defaults(&o);
  o.device = RIFFLE_DEVICE_CPU;
  o.n_ctx = 256;
  Runtime r(std::bit_cast<ContextOptions>(o));
  const std::vector<int32_t> tokens = {1, 300, 301, 302};
  std::vector<riffle_session*> sessions = {r.session(), r.session()};
  for (riffle_session* s : sessions)
    r.check(riffle_prefill(s, tokens.data(), tokens.size(), nullptr, nullptr));
  const size_t step = sizeof(riffle_generate_options) + 40;
  std::vector<char> options(2 * step);
  for (int i = 0; i < 2; ++i) {
    auto* one = reinterpret_cast<riffle_generate_options*>(options.data() + i * step);
    riffle_generate_defaults_sized(one, step);
    one->max_tokens = 2 + i;
    one->ignore_eos = true;
  }
  riffle_result results[2];
  r.check(riffle_generate_many(r.context, sessions.data(),
                               reinterpret_cast<riffle_generate_options*>(options.data()), 2,
                               nullptr, nullptr, results));
  CHECK(results[0].n_tokens == 2);
  CHECK(results[1].n_tokens == 3);

  riffle_generate_options g;
  riffle_generate_defaults(&g);
  g.sampling.reserved[2] = 1;
  CHECK(riffle_generate(sessions[0], &g, nullptr, nullptr, nullptr) == RIFFLE_UNSUPPORTED);
  CHECK(std::string(riffle_context_error(r.context)).find("sampling: reserved is not 0") == 0);
  riffle_selection s;
  riffle_selection_defaults(&s);
  s.reserved[0] = 1;
  CHECK(riffle_set_selection(r.context, &s) == RIFFLE_UNSUPPORTED);
}

// Members that took the place of reserved ones: version 1.0.0 has 0 there.
TEST_CASE("structs: what was reserved may be 0", "[api]") {
  static_assert(sizeof(riffle_sampling) == 136 && offsetof(riffle_sampling, xtc_probability) == 72);
  riffle_context_options o;
  riffle_context_defaults(&o);
  o.device = RIFFLE_DEVICE_CPU;
  o.n_ctx = 256;
  Runtime r(std::bit_cast<ContextOptions>(o));
  std::vector<int32_t> answers[2];
  for (int i = 0; i < 2; ++i) {
    riffle_session* session = r.session({1, 300, 301, 302});
    riffle_generate_options g;
    riffle_generate_defaults(&g);
    g.max_tokens = 20;
    g.ignore_eos = true;
    if (i == 1) std::memset(&g.sampling.xtc_probability, 0, 64);
    const auto take = [](void* user, size_t, const riffle_token* t) {
      static_cast<std::vector<int32_t>*>(user)->push_back(t->id);
      return true;
    };
    r.check(riffle_generate(session, &g, take, &answers[i], nullptr));
  }
  CHECK(answers[0] == answers[1]);
}
