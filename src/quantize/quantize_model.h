// Converts a whole model's weights: at load, or into a GGUF file.
#pragma once
#include <string>

#include "model/model.h"
#include "quantize/weight_mix.h"

namespace riffle {

class GgufFileWriter;
class ThreadPool;

// Totals of a conversion. Only matrices count.
struct ConversionSums {
  uint64_t n_fallback = 0;
  double error = 0, norm = 0;  // sums of (w' - w)^2 and of w^2
};

// Writes rows [first, first + n) to out[n][cols] as f32, even of a tensor without data.
void rows_of(const Tensor& tensor, int64_t first, int64_t n, float* out);

// Converts the matrices that take more bits a weight than mix gives them, into model.generated. The
// file's pages are dropped once they are read. progress: in bytes of the source. On an error the
// model must not be used.
void quantize_weights(Model& model, const WeightMix& mix, int n_threads,
                      const LoadProgress& progress);

// Writes tensors and their bytes to a file that already has its metadata (general.file_type is
// written here too). Rows of q and k are put in GGUF's order if the model has the other.
ConversionSums write_weights(GgufFileWriter& out, Model& model, const WeightMix& mix, int n_threads,
                             const LoadProgress& progress);

struct QuantizedFile {
  ConversionSums sums;
  uint64_t n_params = 0, weight_bytes_in = 0, weight_bytes_out = 0, file_bytes = 0;
};
// Does the work of riffle_quantize.
QuantizedFile quantize_file(const std::string& in, const std::string& out, const WeightMix& mix,
                            int n_threads, bool overwrite, const LoadProgress& progress);

}  // namespace riffle
