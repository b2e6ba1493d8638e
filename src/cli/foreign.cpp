#include "cli/foreign.h"

#include <utility>

namespace riffle::cli {

namespace {

std::vector<ForeignFlag> same_flags() {
  return {
      {{"--n-predict", "--predict", "--num-predict", "--max-new-tokens"}, "--max-tokens", nullptr},
      {{"--ctx-size", "--num-ctx"}, "--ctx", nullptr},
      {{"--temperature"}, "--temp", nullptr},
      {{"--repetition-penalty"}, "--repeat-penalty", nullptr},
      {{"--num-thread"}, "--threads", nullptr},
      {{"-sys", "--system-prompt"}, "--system", nullptr},
      {{"--grammar-file"}, "--grammar", nullptr},
      {{"-j", "-jf", "--json-schema-file"}, "--json-schema", nullptr},
      {{"-np"}, "--max-seqs", "riffle batch --max-seqs N answers several prompts at once"},
      {{"-no-cnv", "--no-conversation"},
       "--raw",
       "riffle run --raw continues a prompt as plain text"},
  };
}

std::vector<ForeignFlag> model_flags() {
  return {
      {{"-hf", "-hfr", "--hf-repo", "-hff", "--hf-file", "-hft", "--hf-token", "-mu", "--model-url",
        "-dr", "--docker-repo"},
       nullptr,
       "riffle downloads nothing: -m PATH takes a .gguf file or a Hugging Face folder"},
      {{"--lora", "--lora-scaled", "--lora-base", "--control-vector", "--control-vector-scaled"},
       nullptr,
       "riffle has no adapters: merge the adapter into the model, then give it with -m PATH"},
      {{"-mm", "--mmproj", "--mmproj-url", "--no-mmproj", "--image", "--audio"},
       nullptr,
       "riffle runs only the text part of a model: leave the flag out"},
      {{"--override-kv", "--check-tensors"},
       nullptr,
       "riffle takes a model's file as it is and checks it at each load: leave the flag out"},
      {{"--rope-scaling", "--rope-scale", "--rope-freq-base", "--rope-freq-scale",
        "--yarn-orig-ctx", "--yarn-ext-factor", "--yarn-attn-factor", "--yarn-beta-slow",
        "--yarn-beta-fast"},
       nullptr,
       "the model's file sets its RoPE: leave the flag out"},
  };
}

std::vector<ForeignFlag> device_flags() {
  return {
      {{"-ngl", "--n-gpu-layers", "--gpu-layers", "--num-gpu"},
       nullptr,
       "riffle runs all layers on one device: --device cuda or --device cpu; --gpu-mem SIZE limits "
       "the GPU memory, and KV beyond it stays in host memory"},
      {{"-sm", "--split-mode", "-ts", "--tensor-split", "-mg", "--main-gpu", "-dev",
        "--list-devices", "--rpc"},
       nullptr,
       "riffle uses one GPU: CUDA_VISIBLE_DEVICES=N chooses it, --device cuda requires it"},
      {{"-cmoe", "--cpu-moe", "-ncmoe", "--n-cpu-moe", "-ot", "--override-tensor"},
       nullptr,
       "--cpu-experts N leaves the experts of N layers to the CPU in decode; without it riffle "
       "does so where the GPU is too small"},
      {{"-fa", "--flash-attn"}, nullptr, "riffle's attention needs no switch: leave the flag out"},
      {{"-ctk", "--cache-type-k", "-ctv", "--cache-type-v"},
       nullptr,
       "--kv f16, q8 or f32 sets the type of keys and values"},
      {{"-nkvo", "--no-kv-offload"},
       nullptr,
       "riffle keeps all KV in host memory; --gpu-mem SIZE limits the part of it that a GPU holds"},
      {{"-b", "--batch-size", "-ub", "--ubatch-size", "--num-batch"},
       nullptr,
       "--prefill-chunk N sets the tokens of one chunk of prefill"},
      {{"-tb", "--threads-batch"}, nullptr, "--threads N is for prefill and decode"},
      {{"-C", "--cpu-mask", "-Cr", "--cpu-range", "--cpu-strict", "--numa", "--prio", "--poll"},
       nullptr,
       "taskset or numactl chooses the CPUs; --threads N sets their number"},
      {{"--mlock", "--no-mmap", "--mmap"}, nullptr, "riffle maps the weights: leave the flag out"},
      {{"--no-warmup", "-nr", "--no-repack", "-dt", "--defrag-thold", "--swa-full", "--no-perf"},
       nullptr,
       "riffle has no such setting: leave the flag out"},
      {{"--keep", "--context-shift", "--no-context-shift"},
       nullptr,
       "riffle does not shift the context: an answer ends when the context is full; -c N sets its "
       "length"},
      {{"-gan", "--grp-attn-n", "-gaw", "--grp-attn-w"},
       nullptr,
       "for texts beyond the trained length use --selector tokenselect --positions list"},
      {{"-md", "--model-draft", "--draft-max", "--draft-n", "--draft-min", "--spec-type", "-lcs",
        "--lookup-cache-static", "-lcd", "--lookup-cache-dynamic"},
       nullptr,
       "--lookup N computes up to N tokens ahead, which it copies from the prompt and the answer; "
       "--draft mtp those that the model's own MTP layer guesses; riffle has no draft models and "
       "no "
       "lookup files"},
  };
}

std::vector<ForeignFlag> sampling_flags() {
  return {
      {{"--mirostat", "--mirostat-lr", "--mirostat-ent", "--typical", "--typical-p", "--top-nsigma",
        "--top-n-sigma", "--dynatemp-range", "--dynatemp-exp", "--tfs", "--penalize-nl"},
       nullptr,
       "riffle's sampler has --temp, --top-k, --top-p, --min-p, --xtc-probability, "
       "--dry-multiplier, --repeat-penalty, --frequency-penalty and --presence-penalty"},
      {{"--samplers", "--sampling-seq", "--sampler-seq"},
       nullptr,
       "riffle applies its filters in llama.cpp's order; --top-k 0, --top-p 1 and --min-p 0 switch "
       "one off"},
      {{"--logprobs", "--top-logprobs", "--n-probs"},
       nullptr,
       "riffle batch gives log probabilities: \"logprobs\" in the body of a line"},
      {{"-r", "--reverse-prompt"}, nullptr, "--stop TEXT ends an answer before TEXT"},
  };
}

std::vector<ForeignFlag> prompt_flags() {
  return {
      {{"-i", "-if", "-cnv", "--interactive", "--interactive-first", "--conversation"},
       nullptr,
       "riffle chat is a conversation, riffle run answers one prompt: leave the flag out"},
      {{"-st", "--single-turn"},
       nullptr,
       "riffle run answers one prompt and ends: leave the flag out"},
      {{"-sysf", "--system-prompt-file"}, nullptr, "--system \"$(cat FILE)\" takes a file's text"},
      {{"-bf", "--binary-file"}, nullptr, "-f FILE reads the prompt from a file"},
      {{"-e", "--escape"},
       nullptr,
       "riffle takes a text as it is: $'...\\n...' of bash makes a line break, or -f FILE"},
      {{"--no-escape"}, nullptr, "riffle takes a text as it is: leave the flag out"},
      {{"--in-prefix", "--in-suffix", "--in-prefix-bos", "--spm-infill"},
       nullptr,
       "the chat template adds prefix and suffix; riffle run --raw takes a prompt to which you "
       "added "
       "your own"},
      {{"--jinja"}, nullptr, "riffle evaluates the model's own template: leave the flag out"},
      {{"--no-jinja", "--chat-template-file"},
       nullptr,
       "riffle evaluates the model's own template; --chat-template NAME uses one that riffle has"},
      {{"--reasoning-format"},
       nullptr,
       "riffle keeps reasoning out of the answer: leave the flag out; --json has it as "
       "reasoning_content"},
      {{"--reasoning-budget", "-rea", "--reasoning"},
       nullptr,
       "--think and --no-think switch reasoning"},
      {{"--reasoning-effort", "--effort"},
       nullptr,
       "--think=low, --think=medium and --think=high set how long a model reasons, where its "
       "chat template asks for reasoning_effort"},
      {{"--hidethinking"}, nullptr, "-q hides reasoning, --no-think switches it off"},
      {{"--prompt-cache", "--prompt-cache-all", "--prompt-cache-ro", "--cache-prompt",
        "--cache-reuse", "--slot-save-path"},
       nullptr,
       "riffle read -o FILE keeps a document for riffle run --session FILE; riffle chat --session "
       "FILE keeps a chat; riffle batch has --prefix-cache DIR"},
      {{"-mli", "--multiline-input"},
       nullptr,
       "a message of several lines begins and ends with \"\"\": leave the flag out"},
  };
}

std::vector<ForeignFlag> output_flags() {
  return {
      {{"-co", "--color", "--colors", "--log-colors"},
       nullptr,
       "riffle uses colours only on terminals, unless NO_COLOR is set: leave the flag out"},
      {{"--no-display-prompt", "--display-prompt", "--simple-io", "-sp", "-ptc",
        "--print-token-count", "--nowordwrap"},
       nullptr,
       "riffle prints only the answer, unchanged: leave the flag out"},
      {{"-v", "-lv", "--verbose", "--log-verbose", "--verbosity", "--log-verbosity",
        "--verbose-prompt", "--log-file", "--log-disable", "--log-enable", "--log-prefix",
        "--log-timestamps"},
       nullptr,
       "riffle has no log: statistics are on stderr unless -q is given, and riffle info shows a "
       "model"},
      {{"-V"}, nullptr, "riffle --version prints the version"},
      {{"--format"},
       nullptr,
       "--json prints one JSON object; --json-schema FILE constrains the answer"},
  };
}

constexpr const char* kServer =
    "riffle-serve of the Python package is the server: riffle-serve -m PATH; riffle batch answers "
    "the lines of a JSONL file";

std::vector<ForeignFlag> server_flags() {
  return {
      {{"--host",          "--port",      "--api-key",    "--api-key-file", "-a",
        "--alias",         "--embedding", "--embeddings", "--reranking",    "-cb",
        "--cont-batching", "-nocb",       "--metrics",    "--props",        "-to",
        "--timeout",       "--path",      "--webui",      "--no-webui",     "--keepalive",
        "--insecure"},
       nullptr,
       kServer},
  };
}

}  // namespace

const std::vector<ForeignFlag>& foreign_flags() {
  static const std::vector<ForeignFlag> all = [] {
    std::vector<ForeignFlag> flags;
    for (const auto part : {same_flags, model_flags, device_flags, sampling_flags, prompt_flags,
                            output_flags, server_flags})
      for (ForeignFlag& flag : part()) flags.push_back(std::move(flag));
    return flags;
  }();
  return all;
}

const std::vector<ForeignCommand>& foreign_commands() {
  static const std::vector<ForeignCommand> all = {
      {{"list", "ls"}, "riffle keeps no list of models: riffle info -m PATH shows one"},
      {{"show"}, "riffle info -m PATH shows a model"},
      {{"pull", "push", "create", "cp", "rm"},
       "riffle downloads and manages no models: -m PATH takes a .gguf file or a Hugging Face "
       "folder"},
      {{"serve", "server", "start"}, kServer},
      {{"ps", "stop"},
       "riffle leaves nothing running: each command loads its model, answers and ends"},
      {{"generate", "complete", "completion"}, "riffle run -p TEXT answers one prompt"},
      {{"convert"}, "riffle quantize -m PATH -o FILE.gguf writes a GGUF file"},
      {{"version"}, "riffle --version prints it"},
  };
  return all;
}

}  // namespace riffle::cli
