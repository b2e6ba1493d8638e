// A prompt that a device reads into a sequence. It takes all its memory when it is created and
// gives it back when it ends. Steps may run between its operations.
#pragma once
#include <cstdint>

#include "backend/attention_source.h"
#include "kv/kv_store.h"
#include "select/selector.h"
#include "util/buffer.h"
#include "util/error.h"

namespace riffle {

struct PromptRequest {
  SequenceKv* sequence = nullptr;  // with room for n_total tokens (KvStore::reserve)
  int64_t n = 0;                   // tokens that go through the model; 0: none, only KV is made
  int64_t n_total = 0;             // tokens of the sequence once the prompt is read
  int64_t chunk = 0;               // the most rows of one operation
  // Layers after Config::last_keeper compute all rows. Else they compute the rows whose output is
  // wanted, which are in the last chunk.
  bool all_rows = false;
};

// Numbers of key tiles, summed over layers, heads and the query tiles that chose. seen: key tiles
// that the query tile could read; read: key tiles that it read.
struct TileCounts {
  uint64_t seen = 0, read = 0;
};

// Attention of rows of the current layer.
struct PromptAttention {
  const float* q = nullptr;  // [n][ldq], heads of head_dim; after Device::rope, not scaled
  int64_t n = 0, ldq = 0;
  int64_t pos0 = 0;  // first query's position; the layer holds the keys of all positions < pos0 + n
  int64_t window = 0;  // tokens that a query sees, its own included; 0: all
  // If > 0, each query tile (kQueryTile) inside [whole_begin, whole_end) reads the key tiles that
  // AttentionKernels::choose_tiles chooses with this share. Other queries read all keys.
  float share = 0;
  int64_t whole_begin = 0, whole_end = 0;
  bool last = false;     // these are the last rows of the prompt in this layer
  float* out = nullptr;  // [n][ldo]
  int64_t ldo = 0;
  // If Prompt::expands_latents. raw: the queries before k_b, not rotated,
  // [n][n_heads][LatentConfig::query_dim]; they may lie in `out`. values: the result after v_b,
  // [n][n_heads][LatentConfig::value_dim]; it may take the place of q. `out` is overwritten, too.
  const float* raw = nullptr;
  float* values = nullptr;
  // For sequences with unrotated keys: q is before RoPE as well. All n queries attend to one list,
  // which a joint selector chooses (null: all keys), at positions in that list.
  const Selector* selector = nullptr;
  int64_t query_position = 0;  // position of the first query when the selector chooses
};

class Prompt {
 public:
  virtual ~Prompt() = default;
  // Throws if the steps after this prompt could not run with this selector. The engine calls it
  // before it reads the prompt and again before each chunk of a layer, since pinning host memory
  // may fail later.
  virtual void check(const Selector& selector) { (void)selector; }
  // Returns memory for activations of the prompt. Requires: the caller releases it before the
  // prompt ends.
  virtual Buffer allocate(size_t bytes) = 0;
  // Returns rows [first, first + n) of the prompt's residual stream, each of dim values; n is at
  // most chunk. Operations may change them until the next call. fresh: the rows have no contents
  // yet. next: the first row of the next call, or -1 if unknown.
  virtual float* rows(int64_t first, int64_t n, bool fresh, int64_t next) = 0;

  // Begins a layer: fills in layer_ (LayerKv). After: layer() holds the KV of the sequence's tokens
  // before the prompt. For a layer that attends to an earlier layer, layer() also holds the
  // prompt's own tokens that its window reaches.
  virtual void begin_layer(int layer) = 0;
  const LayerKv& layer() const { return layer_; }  // the current one
  // Writes k and v [n][n_kv_heads*head_dim] of positions pos0.. to the layer. k is before RoPE and
  // may be overwritten: it is rotated by LayerConfig::rope and, if held keys are transformed
  // (BlockLayout::transforms_keys), transformed, less the layer's key centre
  // (Device::set_key_centres). None of this is done if the sequence's keys are
  // unrotated; with Config::rope_interleaved only their pairs are put in order.
  virtual void append(float* k, const float* v, int64_t n, int64_t pos0) = 0;
  // Says whether attention of n rows with latents (Config::latent) computes each head's own keys
  // and values, and so needs PromptAttention::raw and values.
  virtual bool expands_latents(int64_t n) const {
    (void)n;
    return false;
  }
  virtual void attend(const PromptAttention& args) = 0;
  // A layer that keeps a recurrent state has this in place of append and attend, for the n tokens
  // from pos0 on, in the order of their tokens: in [n][recurrent_in], out [n][recurrent_out]. When
  // the prompt is committed, the states of SequenceKv::next_states are written. `in` may be
  // overwritten.
  virtual void recur(float* in, int64_t n, int64_t pos0, float* out) {
    (void)in, (void)n, (void)pos0, (void)out;
    fail(RIFFLE_UNSUPPORTED, "this device has no kernels for layers with a recurrent state");
  }
  // Fills in the layer's keys and values of n positions from pos0 on. Steps then follow
  // StepRequest::attention.
  virtual void fill_from(const AttentionSource& source, int64_t pos0, int64_t n) = 0;
  // Finishes the layer: builds its digests, moves it to the place where steps find it, and drops
  // the device's copy. Requires: the layer holds the keys and values of all n_total tokens.
  virtual void finish_layer() = 0;
  // The counts of this prompt. On a GPU they are complete once the last layer is finished.
  virtual TileCounts tiles() const { return {}; }
  // Bytes that the device holds now for layers of the prompt.
  virtual uint64_t held() const { return 0; }
  // Ends the prompt. Requires: all layers are finished. After: the sequence holds n_total tokens,
  // with these marks.
  virtual void commit(const Marks& marks) = 0;

 protected:
  LayerKv layer_;
};

}  // namespace riffle
