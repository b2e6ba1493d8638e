// The device memory of a prompt, in one place: a list of buffers, which the allocator takes and the
// plan adds up.
#pragma once
#include <cstdint>
#include <vector>

#include "backend/cuda/expert_buffers.h"
#include "backend/cuda/layer_embedding_buffers.h"
#include "backend/device_options.h"
#include "kernels/common/agreed.h"
#include "util/buffer.h"

namespace riffle::cuda {

// Operands and intermediate results of the prompt that is being read. Empty without a prompt.
struct PromptBuffers {
  // 16-bit operands, FFN (without a gate its only product is in `gate`), dequantised weights
  Buffer operand, gate, up, unpacked;
  Buffer products;        // products that wait for their norm
  Buffer expert_staging;  // neighbouring experts from host memory
  Buffer kv_f16;          // a layer's KV, where it is kept in 8 bits
  // Expanded heads of latent attention: keys and values, the matrices, the queries
  Buffer expanded, latent_matrices, latent_queries;
  Buffer means, tiles;  // TileMeans::out; FlashPrefill::tiles
  Buffer tile_counts;   // ChooseTiles::counts
  Buffer recurrent;     // RecurPrompt::scratch
  Buffer kept;          // a layer's states at the checkpoints of a call (RecurKeep)
  ExpertBuffers experts;
  LayerEmbeddingBuffers layer_embedding;
};

// Returns the words of FlashPrefill::tiles that a query tile has in a sequence of n_total tokens.
inline int64_t tile_words(int64_t n_total) { return n_total / (64 * kKeyTile) + 1; }

// Keys and values that prompts compute from latents (expanded heads,
// kernels/cuda/prefill/prefill.h): of `heads` heads at a time, in n_blocks blocks each. heads 0:
// prompts attend to latents.
struct ExpandedShape {
  int heads = 0, head_dim = 0;
  int64_t n_blocks = 0;
  uint64_t bytes = 0;
};
ExpandedShape expanded_shape(const Config& config, int block_size, int64_t n_total);
// Fewer rows attend to latents. The keys and values of a token cost 2 * 512 * (nope_dim +
// value_dim) operations a head, and save some 1,150 for each row: so about 400 rows pay if none of
// the earlier tokens have theirs, and a few if all have.
inline constexpr int64_t kExpandedRows = 256;

struct PromptSizes {
  int64_t n = 0, n_total = 0;     // tokens of the prompt; of the sequence once it is read
  int64_t chunk = 0, scored = 0;  // the most rows of one operation; of logits at once
  bool rows_on_host = false;      // BackendOptions::rows_on_host, for the residual stream
  bool experts_on_host = false;   // some layers' experts are on the host
};

struct PromptBuffer {
  const char* what;
  uint64_t bytes;  // 0: it is not needed
  // The buffer. Null: PromptRows or the engine's activations (Prompt::allocate) take a buffer of
  // this size from the same memory.
  Buffer& (*of)(PromptBuffers&);
};

// Lists the buffers of a prompt, without the KV of layers.
std::vector<PromptBuffer> prompt_buffers(const Model& model, const BackendOptions& options,
                                         const PromptSizes& sizes);

}  // namespace riffle::cuda
