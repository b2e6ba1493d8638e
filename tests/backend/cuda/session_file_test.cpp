// Sessions on disk and a GPU: what is loaded goes on with the bits of the session, whichever device
// wrote the file; of another device's file, as the CPU does within its tolerance.
#include <filesystem>

#include "tests/engine/session_files.h"
#include "tests/engine/spoiled_session.h"
#include "tests/engine/tiny_checkpoint.h"
#include "tests/engine/window_histories.h"
#include "tests/engine/window_model.h"
#include "tests/kernels/cuda/device.h"
#include "tests/select/selectors_here.h"

using namespace riffle;
using namespace riffle::test;

namespace {

ContextOptions on_gpu(SelectorKind selector, KvKind type) {
  ContextOptions o = sparse(selector);
  o.device = DeviceKind::CUDA;
  o.kv_type = type;
  o.block_size = 32;
  o.selection.select_tokens = 60;
  o.selection.epsilon = 0.8f;
  return o;
}

void check_alike(Runtime& a, riffle_session* s, Runtime& b, riffle_session* t,
                 const std::vector<int32_t>& tokens) {
  CHECK(a.logits(s) == b.logits(t));
  for (const int32_t token : tokens) {
    a.check(riffle_step(a.context, &s, &token, 1));
    b.check(riffle_step(b.context, &t, &token, 1));
    REQUIRE(a.logits(s) == b.logits(t));
  }
}

// A step on two devices. A CPU rounds most activations to 8 bits, unless KV is f32.
void check_close(Runtime& a, riffle_session* s, Runtime& b, riffle_session* t, int32_t token,
                 KvKind kv) {
  a.check(riffle_step(a.context, &s, &token, 1));
  b.check(riffle_step(b.context, &t, &token, 1));
  const auto x = a.logits(s), y = b.logits(t);
  double most = 0;
  for (size_t i = 0; i < x.size(); ++i) most = std::max(most, std::fabs(double(x[i]) - y[i]));
  CHECK(most < (kv == KvKind::F32 ? 0.05 : 0.5));
}

}  // namespace

TEST_CASE("cuda: saved sessions go on with the same bits", "[cuda][session_file]") {
  if (skip()) return;
  const TempDir temp;
  const std::string path = temp / "a.kv";
  const auto prompt = some_tokens(400, 1), more = some_tokens(40, 2);
  for (const SelectorKind selector :
       here({SelectorKind::DENSE, SelectorKind::TOPK, SelectorKind::PSA, SelectorKind::TWILIGHT,
             SelectorKind::TOKENSELECT, SelectorKind::SHARE}))
    for (const KvKind type : {KvKind::F16, KvKind::Q8}) {
      INFO("selector " << selector << ", KV " << type);
      std::filesystem::remove(path);
      Runtime a(on_gpu(selector, type)), b(on_gpu(selector, type));
      riffle_session* s = a.session(prompt);
      for (int turn = 0; turn < 3; ++turn) {
        for (int i = 0; i < 11; ++i) a.check(riffle_step(a.context, &s, &more[i], 1));
        if (turn == 1) {
          a.check(riffle_session_truncate(s, riffle_session_length(s) - 5));
          a.check(riffle_prefill(s, more.data(), 20, nullptr, nullptr));
        }
        save(a, s, path);
        check_alike(a, s, b, load(b, path), more);
        a.check(riffle_session_truncate(s, riffle_session_length(s) - more.size()));
      }
    }
}

// These models have shared KV and per-layer embeddings, heads of 512, latent attention, query heads
// by layer, or sinks.
TEST_CASE("cuda: sessions of Gemma 4, GLM, DeepSeek, Laguna and Granite go on with the same bits",
          "[cuda][session_file][fork][families]") {
  if (skip()) return;
  const TempDir temp;
  uint32_t seed = 0;
  for (const char* name : {"gemma4_e4b", "gemma4_512", "glm4_lite_wide", "deepseek3_full",
                           "laguna_wide", "granite_swa_wide"}) {
    const std::string folder = tiny_folder(tiny_checkpoint(name), temp);
    for (const SelectorKind selector : {SelectorKind::DENSE, SelectorKind::SHARE}) {
      INFO(name << ", selector " << selector);
      check_saved_turns(folder, selector, DeviceKind::CUDA, temp / "a.kv");
      ContextOptions o = small(selector, DeviceKind::CUDA);
      const ContextOptions alone = o;
      o.n_sessions = 5;
      o.slots = 300;
      WindowHistories(o, alone, folder, true, ++seed).play(40);
    }
  }
}

TEST_CASE("cuda: files of one device go on on another", "[cuda][session_file]") {
  if (skip()) return;
  const TempDir temp;
  const std::string path = temp / "a.kv", again = temp / "b.kv";
  const auto prompt = some_tokens(400, 1);
  ContextOptions cpu = on_gpu(SelectorKind::SHARE, KvKind::F16);
  cpu.device = DeviceKind::CPU;
  Runtime a(cpu), b(on_gpu(SelectorKind::SHARE, KvKind::F16)), c(cpu);
  riffle_session* s = a.session(prompt);
  save(a, s, path);
  riffle_session* t = load(b, path);
  CHECK(a.logits(s) == b.logits(t));
  // Nothing is lost on the way there and back.
  save(b, t, again);
  check_alike(a, s, c, load(c, again), {301, 302, 303});
  check_close(a, load(a, path), b, t, 301, KvKind::F16);
}

TEST_CASE("cuda: files of emu go on on a GPU, and the reverse", "[cuda][session_file]") {
  if (skip()) return;
  const TempDir temp;
  const std::string path = temp / "a.kv", again = temp / "b.kv";
  const auto prompt = some_tokens(400, 1), more = some_tokens(6, 2);
  for (const SelectorKind selector :
       here({SelectorKind::DENSE, SelectorKind::SHARE, SelectorKind::PSA}))
    for (const KvKind type : {KvKind::F16, KvKind::Q8, KvKind::F32})
      for (const bool from_emu : {true, false}) {
        INFO("selector " << selector << ", KV " << type << ", from emu: " << from_emu);
        ContextOptions gpu = on_gpu(selector, type), emu = gpu;
        emu.device = DeviceKind::EMU;
        emu.slots = 400;
        Runtime a(from_emu ? emu : gpu), b(from_emu ? gpu : emu);
        riffle_session* s = a.session(prompt);
        // A cut and a fork, too.
        a.check(riffle_session_truncate(s, 390));
        for (const size_t n : {390, 250}) {
          for (const std::string& file : {path, again}) std::filesystem::remove(file);
          riffle_session* one = n == 390 ? s : fork_at(a, s, n);
          a.check(riffle_prefill(one, more.data(), 3, nullptr, nullptr));
          save(a, one, path);
          riffle_session* other = load(b, path);
          CHECK(a.logits(one) == b.logits(other));
          // The keys and values of the file are the same on the way back, bit for bit.
          save(b, other, again);
          check_alike(a, one, a, load(a, again), more);
          check_close(a, load(a, path), b, other, more[0], type);
        }
      }
}

TEST_CASE("cuda: blocks of other sizes are saved, go on on a CPU, and come back",
          "[cuda][session_file]") {
  if (skip()) return;
  const TempDir temp;
  const std::string path = temp / "a.kv", again = temp / "b.kv";
  const auto prompt = some_tokens(300, 1), more = some_tokens(6, 2);
  for (const SelectorKind selector : here({SelectorKind::SHARE, SelectorKind::PSA}))
    for (const KvKind type : {KvKind::F16, KvKind::F32, KvKind::Q8})
      for (const int block_size : {16, 64}) {
        INFO("selector " << selector << ", KV " << type << ", blocks of " << block_size);
        for (const std::string& file : {path, again}) std::filesystem::remove(file);
        ContextOptions gpu = on_gpu(selector, type);
        gpu.block_size = block_size;
        ContextOptions cpu = gpu;
        cpu.device = DeviceKind::CPU;
        Runtime a(gpu), b(cpu);
        riffle_session* s = a.session(prompt);
        save(a, s, path);
        riffle_session* other = load(b, path);
        CHECK(a.logits(s) == b.logits(other));
        save(b, other, again);
        riffle_session* same = load(a, path);
        riffle_session* back = load(a, again);
        check_close(a, same, b, other, more[0], type);
        check_alike(a, s, a, back, more);
      }
}

TEST_CASE("cuda: keys and values of a file that are not numbers end no program",
          "[cuda][session_file]") {
  if (skip()) return;
  const TempDir temp;
  const std::string path = temp / "a.kv", bad = temp / "bad.kv";
  const auto prompt = some_tokens(200, 1);
  for (const SelectorKind selector :
       here({SelectorKind::DENSE, SelectorKind::TOPK, SelectorKind::PSA, SelectorKind::TWILIGHT,
             SelectorKind::TOKENSELECT, SelectorKind::SHARE}))
    for (const KvKind type : {KvKind::F16, KvKind::F32, KvKind::Q8}) {
      Runtime a(on_gpu(selector, type));
      riffle_session* s = a.session(prompt);
      std::filesystem::remove(path);
      save(a, s, path);
      for (const bool all : {false, true}) {
        INFO("selector " << selector << ", KV " << type << ", all blocks: " << all);
        SpoilSession change;
        change.block = [&](std::byte* block, const riffle::BlockLayout& layout, int64_t layer,
                           int head, int64_t number) {
          if (all || (layer == 1 && head == 0 && number == 3))
            spoil_row(block, layout, 5, !all || number % 2 == 0, all && number % 3 == 0);
        };
        write_file(bad, spoiled(read_file(path), change));
        riffle_session* t = load(a, bad);
        // Dense attention meets the one number that is none, in layer 1.
        if (selector == SelectorKind::DENSE && !all)
          check_named(a, t, bad + ": layer 1, KV head 0, token 101: found a key or value");
        const riffle_status status = answer(t);
        CHECK((status == RIFFLE_OK || status == RIFFLE_BAD_SESSION));
        a.check(riffle_step(a.context, &s, &prompt[1], 1));  // the context works on
      }
    }
}
