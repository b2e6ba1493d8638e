// riffle quantize: a model's weights in another type, as a GGUF file.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/common.h"
#include "cli/help.h"

namespace riffle::cli {
namespace {

struct QuantizeOptions {
  std::string in, out, type = "q4_k_m";
  int threads = 0;
  bool force = false, quiet = false, json = false;
  bool allow_requantize = false;
};

// Two roundings add up, so weights that are quantised already are refused unless the user allows
// it.
void require_unquantised(const std::string& path) {
  riffle_model* opened = nullptr;
  char err[1024] = "";
  if (riffle_model_load(path.c_str(), nullptr, &opened, err, sizeof err) != RIFFLE_OK)
    return;  // riffle_quantize reports the error
  const Model model(opened);
  const Facts info = model_info(opened);
  for (int64_t i = 0; i < info.count("n_weight_types"); ++i) {
    const std::string type = info.text("weight_type_" + std::to_string(i));
    if (type == "F32" || type == "F16" || type == "BF16") continue;
    throw Exit(
        EXIT_USAGE,
        text_of("%s: %s weights are %s, which is quantised, expected F32, F16 or BF16; convert "
                "the model it was made from, or give --allow-requantize",
                path.c_str(), i == 0 ? "its" : "some of its", type.c_str()));
  }
}

int quantize_main(const QuantizeOptions& o) {
  const auto start = std::chrono::steady_clock::now();
  const std::string in = resolve_model_path(o.in);
  if (!o.allow_requantize) require_unquantised(in);
  Facts result;
  char err[1024] = "";
  riffle_status status;
  {
    InterruptGuard guard(nullptr);
    const int32_t threads = usable_threads(o.threads, o.quiet);
    Progress progress("converting weights", o.quiet);
    Options options;
    options.set("weights", o.type);
    if (threads != 0) options.set("threads", std::min<int64_t>(threads, 1024));
    options.set("overwrite", o.force);
    options.set_progress(Progress::callback, &progress);
    riffle_info* made = nullptr;
    status = riffle_quantize(in.c_str(), o.out.c_str(), options.get(), &made, err, sizeof err);
    const OwnedInfo owned(made);
    if (made) result = Facts(made);
    progress.finish();
    if (status == RIFFLE_ABORTED && interrupted()) {
      notice(o.quiet, "[stopped; nothing was written]");
      return EXIT_INTERRUPTED;
    }
  }
  if (status == RIFFLE_BAD_ARGUMENT) {
    const std::string text(err);
    throw Exit(EXIT_USAGE,
               text.ends_with("the file exists") ? text + " (--force replaces it)" : text);
  }
  // A full disk and a model that cannot be read are both RIFFLE_IO: the text names the file.
  if (status == RIFFLE_IO)
    throw Exit(std::string(err).starts_with(o.out) ? EXIT_RUN : EXIT_BAD_MODEL, err);
  if (status == RIFFLE_UNSUPPORTED) throw Exit(EXIT_BAD_MODEL, err);
  if (status != RIFFLE_OK) throw Exit(exit_code_of(status), err);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const double bits = 8 * result.number("weight_bytes_out") / result.number("n_params");
  if (result.number("weight_bytes_out") > result.number("weight_bytes_in"))
    notice(
        o.quiet,
        "warning: %s is larger than its source: %s takes more bits than the source's weights and "
        "is no more exact",
        o.out.c_str(), o.type.c_str());
  if (o.json) {
    print_json({{"model", in},
                {"out", o.out},
                {"type", o.type},
                {"n_params", result.count("n_params")},
                {"weight_bytes_in", result.count("weight_bytes_in")},
                {"weight_bytes_out", result.count("weight_bytes_out")},
                {"file_bytes", result.count("file_bytes")},
                {"bits_per_weight", number(bits)},
                {"fallback_matrices", result.count("n_fallback")},
                {"relative_error", number(result.number("relative_error"))},
                {"seconds", number(seconds)},
                {"version", riffle_version()}});
    return EXIT_OK;
  }
  std::string line = text_of("%s: %s -> %s of weights, %.2f bits each, error %.3f%%, %.1f s",
                             o.out.c_str(), human_bytes(result.number("weight_bytes_in")).c_str(),
                             human_bytes(result.number("weight_bytes_out")).c_str(), bits,
                             100 * result.number("relative_error"), seconds);
  notice(o.quiet, "%s", line.c_str());
  if (result.count("n_fallback") > 0) {
    notice(o.quiet, "%llu matrices got a type of shorter blocks, because their rows do not fit %s",
           static_cast<unsigned long long>(result.count("n_fallback")), o.type.c_str());
  }
  return EXIT_OK;
}

}  // namespace

void add_quantize(CLI::App& app, Command& chosen) {
  auto o = std::make_shared<QuantizeOptions>();
  CLI::App& command =
      add_command(app, "quantize", "Convert a model's weights and write it as a GGUF file");
  set_notes(
      command,
      R"(All matrices get the type; norms and biases are F32. A type with _m is a mix: these matrices get
Q6_K: the output matrix (the embedding, if it is the output too), and attention's v and the
feed-forward's down matrix in layers 0, 2, 4, ... and the last.
Rows that are not a multiple of 256 values get Q5_0 in place of Q4_K, Q5_1 in place of Q5_K, and
Q8_0 in place of Q6_K. Rows that are not a multiple of 32 get F16.
Matrices that have their type already are copied. Weights of 16 or 32 bits (bf16, f16, f32) are
converted without --allow-requantize. Converting quantised weights adds to their error and needs it.
The error in the summary is the root of the squared differences over that of the squared weights.)",
      "");
  add_text(command, "-m,--model", o->in,
           ".gguf file (of a split one: any part) or Hugging Face folder; default: "
           "$RIFFLE_MODEL, else the shipped model")
      .value("PATH")
      .check(not_empty);
  add_text(command, "-o,--output", o->out, "the file to write; it appears when it is complete")
      .value("FILE")
      .required();
  add_text(command, "--type", o->type,
           "type of the weights: " + joined(split(weight_type_words(), '|')))
      .value("TYPE")
      .check(weight_type_error)
      .shows_default();
  add_number(command, "-t,--threads", o->threads,
             "number of CPU threads; 0: one for each fast core that riffle may use")
      .value("N")
      .range(0, 100000)
      .shows_default();
  add_switch(command, "--force", o->force, "replace the file if it exists");
  add_switch(
      command, "--allow-requantize", o->allow_requantize,
      "also convert quantised weights (not needed for bf16, f16, f32); the errors of both types "
      "add up");
  add_switch(command, "-q,--quiet", o->quiet, "print no progress and no summary on stderr");
  add_switch(command, "--json", o->json, "print the summary as one JSON object on stdout");
  when_parsed(command, [o, &chosen] { chosen = [o] { return quantize_main(*o); }; });
}

}  // namespace riffle::cli
