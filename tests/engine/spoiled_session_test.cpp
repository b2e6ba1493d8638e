// Sessions whose keys, values or logits are not numbers, in files whose checksums fit: loading
// takes them, and an answer that they spoil is an error that names the file.
#include "tests/engine/spoiled_session.h"

#include <cmath>
#include <random>

#include "tests/engine/session_files.h"

using namespace riffle;
using namespace riffle::test;

TEST_CASE("an answer that saved keys or values spoil is an error that names them",
          "[session_file][model]") {
  const TempDir temp;
  const std::string path = temp / "a.kv", bad = temp / "bad.kv";
  const auto prompt = some_tokens(200, 1), more = some_tokens(5, 2);
  for (const KvKind type : {KvKind::F16, KvKind::F32, KvKind::Q8})
    for (const DeviceKind device : {DeviceKind::CPU, DeviceKind::EMU})
      for (const bool value : {false, true}) {
        INFO("KV " << type << ", device " << device << ", value " << value);
        ContextOptions o = small(SelectorKind::DENSE, device);
        o.kv_type = type;
        o.block_size = 32;
        Runtime a(o);
        riffle_session* s = a.session(prompt);
        save(a, s, path);
        SpoilSession change;
        change.block = [&](std::byte* block, const riffle::BlockLayout& layout, int64_t layer,
                           int head, int64_t number) {
          if (layer == 1 && head == 0 && number == 3)
            spoil_row(block, layout, 101, value, type == KvKind::F32);
        };
        write_file(bad, spoiled(read_file(path), change));
        const std::string where =
            bad + ": layer 1, KV head 0, token 101: found a key or value that is not a finite";
        riffle_session* t = load(a, bad);
        CHECK(a.logits(t) == a.logits(s));
        riffle_session* without = fork_at(a, t, 100);
        riffle_session* with = fork_at(a, t, 150);
        check_named(a, t, where);
        for (riffle_session* u : {with, without})
          a.check(riffle_prefill(u, more.data(), more.size(), nullptr, nullptr));
        check_named(a, with, where);
        a.check(answer(without));
        a.check(riffle_session_truncate(t, 101));
        a.check(riffle_prefill(t, more.data(), more.size(), nullptr, nullptr));
        a.check(answer(t));
      }
}

TEST_CASE("saved logits that are not numbers are an error that names the file",
          "[session_file][model]") {
  const TempDir temp;
  const std::string path = temp / "a.kv", bad = temp / "bad.kv";
  const auto prompt = some_tokens(50, 1);
  Runtime a(small(SelectorKind::SHARE));
  riffle_session* s = a.session(prompt);
  save(a, s, path);
  SpoilSession change;
  change.logits = [](float* logits, int64_t) { logits[300] = NAN; };
  write_file(bad, spoiled(read_file(path), change));
  riffle_session* t = load(a, bad);
  check_named(a, t, bad + ": logits: found some that are not finite");
  a.check(riffle_prefill(t, prompt.data(), 3, nullptr, nullptr));
  a.check(answer(t));
}

TEST_CASE("keys and values that are not numbers end no program, whatever selects",
          "[session_file][model]") {
  const TempDir temp;
  const std::string path = temp / "a.kv", bad = temp / "bad.kv";
  const auto prompt = some_tokens(300, 1);
  for (const SelectorKind selector : kSelectors)
    for (const DeviceKind device : {DeviceKind::CPU, DeviceKind::EMU}) {
      Runtime a(small(selector, device));
      riffle_session* s = a.session(prompt);
      save(a, s, path);
      for (const uint32_t one_of : {1, 3, 40}) {  // tokens
        INFO("selector " << selector << ", device " << device << ", one token of " << one_of);
        std::mt19937 random(one_of);
        SpoilSession change;
        change.block = [&](std::byte* block, const riffle::BlockLayout& layout, int64_t, int,
                           int64_t) {
          for (int64_t t = 0; t < layout.block_size; ++t)
            if (random() % one_of == 0)
              spoil_row(block, layout, t, random() % 2 == 0, random() % 2 == 0);
        };
        write_file(bad, spoiled(read_file(path), change));
        riffle_session* t = load(a, bad);
        const riffle_status status = answer(t);
        CHECK((status == RIFFLE_OK || status == RIFFLE_BAD_SESSION));
        for (const int32_t token : {301, 302}) a.check(riffle_step(a.context, &t, &token, 1));
      }
    }
}
