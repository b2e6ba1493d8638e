#!/usr/bin/env bash
# Runs every test. usage: tests/run.sh BUILD_DIR   (make test)
# The last line is "N passed, N failed", with ", N skipped" if something was; the exit code is 0 if nothing failed.
set -u
build=$(cd "${1:?usage: tests/run.sh BUILD_DIR}" && pwd) || exit 2
cd "$(dirname "$0")/.." || exit 2
export RIFFLE_MODEL="${RIFFLE_MODEL:-$PWD/models/riffle-27m-32k/riffle-27m-32k-q8_0.gguf}"
export RIFFLE_BIN="$build/riffle" RIFFLE_HISTORY=""
passed=0 failed=0 skipped=0
log=$(mktemp) || exit 2
trap 'rm -f "$log"' EXIT

# Programs that print "ok NAME", "not ok NAME: why" or "skip NAME: why", one line a check.
lines() {
  local name=$1 seconds=$2; shift 2
  echo "== $name"
  timeout -k 10 "$seconds" "$@" >"$log" 2>&1
  local code=$? ok bad skip
  grep -v '^ok ' "$log"
  ok=$(grep -c '^ok ' "$log"); bad=$(grep -c '^not ok ' "$log"); skip=$(grep -c '^skip ' "$log")
  # A program that crashed, hung or checked nothing has failed, whatever it printed before.
  if [ $code -ne 0 ] && [ "$bad" -eq 0 ]; then echo "not ok $name: exit code $code"; bad=1; fi
  if [ $code -eq 0 ] && [ $((ok + bad + skip)) -eq 0 ]; then echo "not ok $name: no checks"; bad=1; fi
  echo "   $ok ok, $bad not ok, $skip skipped"
  passed=$((passed + ok)) failed=$((failed + bad)) skipped=$((skipped + skip))
}

# Catch's binary: counted in test cases. A case that skips says WARN("SKIPPED: ...").
catch() {
  echo "== riffle_tests $*"
  timeout -k 10 "${RIFFLE_TEST_SECONDS:-1800}" "$build/riffle_tests" "$@" >"$log" 2>&1
  local code=$? ok bad skip summary
  cat "$log"
  summary=$(grep -E '^(test cases:|All tests passed)' "$log" | tail -n 1)
  ok=$(sed -nE 's/.*in ([0-9]+) test cases?\).*/\1/p; s/^test cases:.*[^0-9]([0-9]+) passed.*/\1/p' <<<"$summary")
  bad=$(sed -nE 's/^test cases:.*[^0-9]([0-9]+) failed.*/\1/p' <<<"$summary")
  skip=$(grep -c 'SKIPPED:' "$log")
  ok=${ok:-0} bad=${bad:-0}
  if [ "$code" -ne 0 ] && [ "$bad" -eq 0 ]; then echo "not ok riffle_tests: exit code $code"; bad=1; fi
  if [ "$code" -eq 0 ] && [ "$ok" -eq 0 ]; then echo "not ok riffle_tests: no test cases"; bad=1; fi
  [ "$skip" -le "$ok" ] || skip=$ok
  passed=$((passed + ok - skip)) failed=$((failed + bad)) skipped=$((skipped + skip))
}

# The shipped model as Hugging Face folders, whole and in shards, for riffle_tests.
hf_folders() {
  local python folders=""
  for python in python3 /usr/bin/python3; do
    "$python" -c 'import numpy' 2>/dev/null || continue
    for shards in 1 3; do
      "$python" tools/fixtures/gguf_to_hf.py "$RIFFLE_MODEL" "$build/hf_f32_$shards" --dtype f32 --shards $shards \
        --tokenizer models/riffle-27m-32k/tokenizer.model >/dev/null || { echo "not ok gguf_to_hf.py"; failed=$((failed + 1)); return; }
      folders="$folders:$build/hf_f32_$shards"
    done
    break
  done
  export RIFFLE_TEST_HF=${folders#:}
}

hf_folders
catch
# A case that breaks the GPU for its process; a build without the CUDA toolkit has none.
"$build/riffle_tests" --list-test-names-only "[lost]" 2>/dev/null | grep -q lost && catch "[lost]"
lines capi_example 300 "$build/capi_example" "$RIFFLE_MODEL"
for script in tests/cli/*.py; do
  [ "$script" = tests/cli/harness.py ] || lines "$script" 1200 python3 -B "$script" "$RIFFLE_BIN"
done

summary="$passed passed, $failed failed"
[ $skipped -eq 0 ] || summary="$summary, $skipped skipped"
echo "$summary"
[ $failed -eq 0 ]
