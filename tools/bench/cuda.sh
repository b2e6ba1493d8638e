#!/usr/bin/env bash
# Measures the GPU figures of gpu.md in one run of about 7 minutes.
# usage: tools/bench/cuda.sh BUILD_DIR   (after make cuda-bench)
# PART=kernels|decode|prefill|host|shipped|torch runs one part. PART=many (the arrivals of "Many
# sequences") runs only if it is named: it takes another 25 minutes, and 80 GB of host memory.
set -u
build=${1:?usage: tools/bench/cuda.sh BUILD_DIR}
part=${PART:-all}
run() { echo "== $*"; timeout 300 "$@" 2>&1; }
on() { [ "$part" = all ] || [ "$part" = "$1" ]; }
shape="$build/riffle bench --shape llama-3.1-8b --block 32 -q"
short="$shape --selector psa --synthetic-attention -c 131200 --steps 4 --reps 1"
attention="$shape --selector psa --synthetic-attention -c 131200 --steps 24 --reps 3"

if on kernels; then
  run "$build/cuda_linear_bench"
  run "$build/cuda_prefill_bench"
  run "$build/cuda_attention_bench"
fi
if on decode; then
  run $attention --depth 1024,32768,131072 --selectors dense,psa
  run $attention --depth 131072 --selectors psa --microbatch 64
  run $attention --depth 131072 --selectors dense,psa,share
  for budget in 16G 14G 12G; do run $attention --depth 131072 --selectors share --gpu-mem $budget; done
  run $attention --depth 131072 --selectors share --gpu-mem 8G --weights q4_k
  for budget in 24G 16G 12G; do run $attention --depth 131072 --selectors psa --gpu-mem $budget; done
  for microbatch in 16 32 64; do run $attention --depth 131072 --selectors psa --gpu-mem 12G --microbatch $microbatch; done
  run $attention --depth 1024,32768,131072 --selectors dense,psa --weights bf16
fi
if on host; then
  for ahead in 1 0; do run $attention --depth 131072 --selectors psa --gpu-mem 12G --residency host --lookahead $ahead; done
  run $short --depth 131072 --selectors psa --gpu-mem 12G --residency host --no-pin --warmup 1
  run $short --depth 131072 --selectors dense --gpu-mem 12G --warmup 1
fi
if on prefill; then
  run $shape --weights bf16 -c 33000 --prefill 512,8192,32768 --depth 0 --selectors dense --steps 8
  run $shape --weights bf16 -c 131200 --gpu-mem 24G --prefill 131072 --depth 0 --selectors dense --steps 8 --reps 1
fi
if on shipped; then run "$build/riffle" demo --device cuda; fi
if [ "$part" = many ]; then
  many="$shape --arrivals --weights bf16 --device cuda --gpu-mem 24G -c 34816 --requests 16 --synthetic-attention"
  dense="--selector dense --all-resident" psa="--microbatch 4 --working-set-steps 4"
  run $many --lengths 32000:2048 --request-rate 0 $dense
  for flags in "$psa" "--microbatch 4" ""; do run $many --lengths 32000:2048 --request-rate 0 $flags; done
  for rate in 0.125 0.128 0.135; do
    run $many --lengths 32000:1024 --request-rate $rate $dense
    run $many --lengths 32000:1024 --request-rate $rate $psa
  done
  run $many --lengths 32000:1024 --request-rate 0.25 $psa
  run $many --lengths 32000:400 --request-rate 0 $psa
fi
if on torch; then run python3 tools/bench/torch_reference.py; fi
