#include "engine/host_drafts.h"

#include "engine/plan/draft_plan.h"

namespace riffle {

namespace {

struct HostDraftKv : DraftKv {
  HostDraftKv(KvStore& store, SequenceKv fresh) : store(store), kv(std::move(fresh)) {}
  ~HostDraftKv() override { store.destroy(kv); }
  KvStore& store;
  SequenceKv kv;
};

SequenceKv& kv_of(DraftKv& kv) { return static_cast<HostDraftKv&>(kv).kv; }

class HostDrafts : public DraftStore {
 public:
  HostDrafts(const Model& head, const ResolvedOptions& options, ThreadPool* threads)
      : options_(options),
        shape_(kv_shape(head.config, options)),
        device_(make_cpu_device(head, options, threads)),
        dense_(make_dense()) {}

  Device& device() override { return *device_; }
  int64_t append_rows() const override { return options_.options.prefill_chunk; }
  Phase append_phase(int64_t n) const override {
    return n > kMostGuesses ? Phase::Prefill : Phase::Decode;
  }

  std::unique_ptr<DraftKv> create() override {
    KvStore& kv = device_->kv();
    return std::make_unique<HostDraftKv>(
        kv, kv.create(options_.options.n_ctx, digest_spec(options_.options.selection)));
  }

  void append(DraftKv& of, float* k, const float* v, int64_t n) override {
    SequenceKv& s = kv_of(of);
    const int64_t end = s.n_tokens + n;
    device_->kv().reserve(s, end, s.marks);
    const auto prompt = device_->begin_prompt({&s, n, end, n});
    prompt->begin_layer(0);
    prompt->append(k, v, n, s.n_tokens);
    prompt->finish_layer();
    prompt->commit(s.marks);
    of.n_pairs = s.n_tokens;
  }

  bool cut(DraftKv& of, int64_t n_pairs) override {
    SequenceKv& s = kv_of(of);
    if (device_->kv().host().reach(s, n_pairs) != n_pairs) return false;
    device_->kv().truncate(s, n_pairs);
    of.n_pairs = s.n_tokens;
    return true;
  }

  std::unique_ptr<Step> begin_step(const DraftPass& pass) override {
    sequences_.clear();
    for (int64_t i = 0; i < pass.n; ++i) {
      SequenceKv& s = kv_of(*pass.sequences[i]);
      device_->kv().reserve(s, s.n_tokens + 1, s.marks);
      sequences_.push_back(&s);
    }
    StepRequest step;
    step.sequences = sequences_.data();
    step.tokens = pass.tokens;
    step.n = pass.n;
    step.selector = step.dense = dense_.get();
    step.shape = &shape_;
    step.samples = pass.samples;
    step.report = [](int, const RowReport*) {};
    return device_->begin_step(step);
  }
  void commit(DraftKv& of) override {
    SequenceKv& s = kv_of(of);
    ++s.n_tokens;
    device_->kv().commit(s);
    of.n_pairs = s.n_tokens;
  }
  float* logits_memory(int64_t n) override { return device_->logits_memory(n); }
  const float* logits(int64_t i) override { return device_->logits(i); }

 private:
  const ResolvedOptions options_;
  const KvShape shape_;
  const std::unique_ptr<Device> device_;
  const std::unique_ptr<Selector> dense_;
  std::vector<SequenceKv*> sequences_;  // those of the current pass
};

}  // namespace

std::unique_ptr<DraftStore> make_host_drafts(const Model& head, const ResolvedOptions& options,
                                             ThreadPool* threads) {
  return std::make_unique<HostDrafts>(head, options, threads);
}

}  // namespace riffle
