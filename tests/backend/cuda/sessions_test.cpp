// Several sessions, contexts and selections on one GPU, and what happens where memory, the system
// or another context says no.
#include <chrono>
#include <thread>

#include "backend/cuda/pinned_slabs.h"
#include "tests/backend/cuda/gpu_sessions.h"
#include "tests/kernels/cuda/device.h"

using namespace riffle;
using namespace riffle::test;

TEST_CASE("cuda: the planned memory is enough for all that the plan is for", "[cuda][memory]") {
  if (skip()) return;
  for (ResidencyKind residency : residencies_here({ResidencyKind::AUTO, ResidencyKind::HOST}))
    for (KvKind kv : {KvKind::F16, KvKind::F32}) {
      INFO("residency " << residency << " kv " << kv);
      ContextOptions o = gpu_options();
      o.n_ctx = 6000;
      o.n_sessions = 4;
      o.kv_type = kv;
      o.residency = residency;
      o.selection.gqa = HeadRule::UNION;
      o.gpu_mem = least_memory(o);
      Runtime r(o);
      const auto prompt = some_tokens(o.n_ctx - 60, 3);
      std::vector<TokenScore> scores(prompt.size());
      riffle_session* s[4];
      for (int i = 0; i < 4; ++i) {
        s[i] = r.session();
        if (i % 2) prefill(r, s[i], prompt);
        else r.context->engine->prefill(*s[i]->sequence, prompt, scores.data(), {});
      }
      GenerateOptions g[4];
      for (auto& one : g) {
        one.max_tokens = 20;
        one.ignore_eos = true;
      }
      r.check(generate_many(r.context, s, g, 4, nullptr, nullptr, nullptr));
      int seen = 0;
      const auto count = [&](const riffle_session*, const Sequence&, int, int, const RowReport&) {
        ++seen;
      };
      r.context->engine->set_row_report(count, true);
      const int32_t tokens[4] = {400, 500, 600, 700};
      for (int i = 0; i < 3; ++i) r.check(riffle_step(r.context, s, tokens, 4));
      CHECK(seen > 0);
      r.context->engine->set_row_report({}, false);
      // Full contexts that begin again.
      for (riffle_session* one : s) {
        r.check(riffle_session_truncate(one, 100));
        prefill(r, one, some_tokens(o.n_ctx - 100, 4));
      }
      const Stats stats = r.stats();
      WARN("budget " << o.gpu_mem << ", most in use " << stats.peak_device_bytes);
      CHECK(stats.peak_device_bytes <= o.gpu_mem);
    }
}

TEST_CASE("cuda: plans that no machine can hold are refused with what would do", "[cuda][memory]") {
  if (skip()) return;
  riffle_model* model = nullptr;
  REQUIRE(riffle_model_load(shipped_model(), nullptr, &model, nullptr, 0) == RIFFLE_OK);
  MemoryPlan plan{};
  char err[1024] = "";
  const auto refused = [&](const ContextOptions& o) {
    CHECK(plan_memory(model, &o, &plan, err, sizeof err) == RIFFLE_OUT_OF_MEMORY);
    return std::string(err);
  };
  ContextOptions o = gpu_options();
  size_t free = 0, total = 0;
  check_cuda(cudaMemGetInfo(&free, &total));
  o.gpu_mem = 4 * total;
  o.slots = static_cast<int64_t>(2 * total / 8192);
  CHECK(refused(o).find("the GPU has only") != std::string::npos);
  o = gpu_options();
  o.n_ctx = 1 << 20;
  o.n_sessions = 30;
  o.gpu_mem = total - total / 20;
  ContextOptions one = o;
  one.n_sessions = 1;
  REQUIRE(plan_memory(model, &one, &plan, err, sizeof err) == RIFFLE_OK);
  // More sessions than the host can hold; the GPU may refuse them first.
  while (o.n_sessions < 1024 && plan.host_kv * o.n_sessions < uint64_t(4) << 40) ++o.n_sessions;
  const std::string text = refused(o);
  INFO(text);
  CHECK((text.find("host memory") != std::string::npos ||
         text.find("need at least") != std::string::npos));
  riffle_model_free(model);
}

TEST_CASE("cuda: two contexts step in two threads", "[cuda][threads]") {
  if (skip()) return;
  constexpr int kSteps = 1000;
  const auto tokens = some_tokens(kSteps, 11);
  const auto work = [&](int i, bool together, StepLogits& out, int& retried) {
    // No assertions here: Catch is not for several threads.
    ContextOptions o = gpu_options();
    o.n_ctx = 4096;
    o.n_threads = 2;
    if (i == 1) o.slots = 400;
    riffle_model* model = nullptr;
    riffle_context* context = nullptr;
    riffle_session* s[8] = {};
    bool fine = riffle_model_load(shipped_model(), nullptr, &model, nullptr, 0) == RIFFLE_OK &&
                context_create(model, &o, &context, nullptr, 0) == RIFFLE_OK;
    const int n = 8;  // rows enough to fill the GPU
    for (int j = 0; fine && j < n; ++j) {
      const auto prompt = some_tokens(1200 + 100 * j, 20 + i);
      fine = riffle_session_create(context, &s[j]) == RIFFLE_OK &&
             riffle_prefill(s[j], prompt.data(), prompt.size(), nullptr, nullptr) == RIFFLE_OK;
    }
    for (int t = 0; fine && t < kSteps; ++t) {
      const std::vector<int32_t> next(n, tokens[t]);
      riffle_status status = riffle_step(context, s, next.data(), n);
      // A step that the other context made impossible fails with an error that says so, and
      // succeeds when tried again.
      for (int again = 0; together && status == RIFFLE_INTERNAL && again < 3; ++again, ++retried) {
        fine = std::string(riffle_context_error(context)).find("kernels of another") !=
               std::string::npos;
        if (!fine) break;
        status = riffle_step(context, s, next.data(), n);
      }
      fine = fine && status == RIFFLE_OK;
      if (fine && t % 50 == 0)
        out.emplace_back(riffle_logits(s[t / 50 % n]),
                         riffle_logits(s[t / 50 % n]) + model_number(model, "vocab_size"));
    }
    for (riffle_session* one : s) riffle_session_free(one);
    riffle_context_free(context);
    riffle_model_free(model);
    return fine;
  };
  StepLogits alone[2], both[2];
  int retried[2] = {};
  for (int i : {0, 1}) CHECK(work(i, false, alone[i], retried[i]));
  bool fine[2] = {};
  std::thread other([&] { fine[1] = work(1, true, both[1], retried[1]); });
  fine[0] = work(0, true, both[0], retried[0]);
  other.join();
  WARN("steps tried again: " << retried[0] << " and " << retried[1]);
  for (int i : {0, 1}) {
    INFO("context " << i);
    CHECK(fine[i]);
    CHECK(alone[i].size() == kSteps / 50);
    CHECK(same_bits(alone[i], both[i]));
  }
}

TEST_CASE("cuda: the caller's own GPU stays the caller's", "[cuda][threads]") {
  if (skip()) return;
  int count = 0;
  check_cuda(cudaGetDeviceCount(&count));
  if (count < 2) {
    WARN("SKIPPED: one GPU only");
    return;
  }
  const auto prompt = some_tokens(700, 7), tokens = some_tokens(40, 8);
  StepLogits want;
  {
    Runtime r(gpu_options());
    want = run(r, r.session(), prompt, tokens);
  }
  check_cuda(cudaSetDevice(1));
  const auto current = [] {
    int device = -1;
    check_cuda(cudaGetDevice(&device));
    return device;
  };
  {
    Runtime r(gpu_options());
    CHECK(current() == 1);
    riffle_session *s = r.session(), *other = r.session();
    CHECK(same_bits(run(r, s, prompt, tokens), want));
    CHECK(same_bits(run(r, other, prompt, tokens), want));
    Selection quest = gpu_options().selection;
    quest.digest = BlockDigest::QUEST;
    select(r, quest);
    r.check(riffle_session_truncate(s, 333));
    StepLogits more;
    step(r, s, 400, more);
    StepTiming timing;
    const int32_t token = 500;
    Sequence* const sequence = s->sequence.get();
    r.context->engine->profile_step({&sequence, 1}, {&token, 1}, timing);
    CHECK(current() == 1);
  }
  CHECK(current() == 1);
  check_cuda(cudaSetDevice(0));
}

TEST_CASE("cuda: slabs are locked ahead and are no neighbours", "[cuda]") {
  if (skip()) return;
  riffle::cuda::PinnedSlabs slabs(0);
  const size_t bytes = slabs.slab_bytes();
  std::vector<std::byte*> taken;
  for (int i = 0; i < 6; ++i) taken.push_back(slabs.take(bytes));
  std::vector<std::byte*> some;  // bytes of the fifth slab, and twice of the second
  const std::byte* const blocks[] = {taken[4] + bytes - 1, taken[1], taken[1] + bytes / 2};
  slabs.add_unlocked(blocks, 3, some);
  for (std::byte* slab : some) CHECK((slab == taken[4] || slab == taken[1]));
  CHECK(some.size() <= 2);  // none that are locked by now
  REQUIRE(slabs.wait(some));
  CHECK(some.empty());
  CHECK(slabs.pinned_bytes() >= 2 * bytes);
  slabs.add_unlocked(blocks, 3, some);
  CHECK(some.empty());
  slabs.wait_all();
  for (std::byte* a : taken)
    for (std::byte* b : taken) {
      REQUIRE(a != nullptr);
      CHECK(a + bytes != b);
    }
  CHECK(slabs.taken_bytes() == 6 * bytes);
  CHECK(slabs.pinned_bytes() == 6 * bytes);
  for (const auto& [asked, there] : {std::pair<size_t, size_t>{1, 1}, {1, 1}, {3, 3}, {2, 3}}) {
    slabs.lock_ahead(bytes, asked);  // those that are there count
    slabs.wait_all();
    CHECK(slabs.taken_bytes() == 6 * bytes);
    CHECK(slabs.pinned_bytes() == (6 + there) * bytes);
  }
  for (size_t i = 1; i <= 3; ++i) {
    taken.push_back(slabs.take(bytes));
    CHECK(slabs.pinned_bytes() == 9 * bytes);  // it is one that was ready
    CHECK(slabs.taken_bytes() == (6 + i) * bytes);
  }
  for (std::byte* a : taken) CHECK(a[bytes - 1] == std::byte{0});
  for (std::byte* a : taken) slabs.give_back(a, bytes);
  CHECK(slabs.pinned_bytes() == 0);
}

TEST_CASE("cuda: the RoPE table grows and a step does not notice", "[cuda][invariance]") {
  if (skip()) return;
  const auto prompt = some_tokens(4090, 4), tokens = some_tokens(20, 5),
             longer = some_tokens(7000, 6);
  ContextOptions o = gpu_options(), big = o;
  o.n_ctx = big.n_ctx = 8192;
  Runtime grows(o), whole(big);
  riffle_session *a = grows.session(), *b = whole.session();
  prefill(whole, b, longer);  // the table for all of it, at once
  whole.check(riffle_session_truncate(b, 0));
  CHECK(same_bits(run(grows, a, prompt, tokens), run(whole, b, prompt, tokens)));
}

TEST_CASE("cuda: steps after a truncation to a block's end have the bits of those before",
          "[cuda][invariance]") {
  if (skip()) return;
  const auto prompt = some_tokens(1600, 4), tokens = some_tokens(50, 5);
  for (StopRule stop : {StopRule::PAPER, StopRule::VETO}) {
    ContextOptions o = gpu_options();
    o.selection.stop = stop;
    Runtime r(o);
    riffle_session* s = r.session();
    prefill(r, s, prompt);
    StepLogits first, second;
    for (int32_t t : tokens) step(r, s, t, first);
    r.check(riffle_session_truncate(s, prompt.size()));
    for (int32_t t : tokens) step(r, s, t, second);
    CHECK(same_bits(first, second));
  }
}

TEST_CASE("cuda: a prompt that was stopped leaves the session as it was", "[cuda]") {
  if (skip()) return;
  const auto prompt = some_tokens(1000, 4), more = some_tokens(2000, 9),
             tokens = some_tokens(30, 5);
  Runtime r(gpu_options());
  riffle_session *plain = r.session(), *stopped = r.session();
  const StepLogits want = run(r, plain, prompt, tokens);
  prefill(r, stopped, prompt);
  const auto halfway = [](void*, const riffle_progress* p) { return p->done < p->total / 2; };
  CHECK(riffle_prefill(stopped, more.data(), more.size(), halfway, nullptr) == RIFFLE_ABORTED);
  CHECK(riffle_session_length(stopped) == prompt.size());
  StepLogits got{r.logits(stopped)};
  for (int32_t t : tokens) step(r, stopped, t, got);
  CHECK(same_bits(got, want));
}
