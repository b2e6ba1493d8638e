#!/usr/bin/env bash
# Runs every test. usage: tests/run.sh BUILD_DIR [PROGRAM]   (make test; make kernel-test)
# With PROGRAM, the cases of that Catch2 program alone run (riffle_tests, kernel_tests).
# RIFFLE_TEST_JOBS programs run side by side (default: one for two cores; 1 if there is a GPU).
# Without a GPU, most programs run on one CPU each, twice as many side by side: the programs that
# compute little and, with few rounds, riffle_tests too. The output of each program is printed in
# one piece. The last line is "N passed, N failed", with ", N skipped" if something was skipped. The
# exit code is 0 if nothing failed.
# RIFFLE_TEST_ROUNDS: number of rounds and combinations of the slow tests: few (the default), most
# (as CI sets it) or all.
# RIFFLE_TEST_SECONDS: time limit of each run of riffle_tests (1800; all rounds: 7200).
# RIFFLE_TEST_ISA=scalar|avx2|avx512|amx|neon|dotprod|i8mm: runs riffle_tests as on a processor that
# has at most this instruction set.
# RIFFLE_TEST_BOOK=FILE: a text of more than 100,000 bytes, on which the tokenizer is compared with
# sentencepiece.
# CROSS=TRIPLET (make test CROSS=aarch64-linux-gnu): runs PROGRAM (riffle_tests), built for another
# CPU architecture, with the command EMULATOR, once as on each processor in RIFFLE_TEST_CPUS
# (cortex-a72 cortex-a76 neoverse-n1 max). RIFFLE_TEST_CASES picks cases (all but [long]). No other
# program runs.
set -u
rounds=${RIFFLE_TEST_ROUNDS:-few}
case $rounds in
  few|most|all) export RIFFLE_TEST_ROUNDS=$rounds ;;
  *) echo "RIFFLE_TEST_ROUNDS is $rounds, expected few, most or all" >&2; exit 2 ;;
esac
build=$(cd "${1:?usage: tests/run.sh BUILD_DIR [PROGRAM]}" && pwd) || exit 2
program=${2:-riffle_tests}
cd "$(dirname "$0")/.." || exit 2
export RIFFLE_MODEL="${RIFFLE_MODEL:-$PWD/models/riffle-27m-32k/riffle-27m-32k-q8_0.gguf}"
export RIFFLE_BIN="$build/riffle" RIFFLE_HISTORY=""
# Most programs compute with two threads. With fewer cores for each they would wait for each other:
# on two cores, two programs at a time take longer than one after the other. On a GPU they would
# take each other's memory.
slots=$(($(nproc) / 2)); [ "$slots" -ge 1 ] || slots=1
if nvidia-smi -L >/dev/null 2>&1; then slots=1; fi
slots=${RIFFLE_TEST_JOBS:-$slots}
# The CPUs that this shell may use: "0-3,8" is 0 1 2 3 8.
cpus=()
IFS=, read -r -a ranges <<<"$(taskset -cp $$ 2>/dev/null | sed 's/.*: //')"
for range in "${ranges[@]}"; do
  for ((cpu = ${range%-*}; cpu <= ${range#*-}; cpu++)); do cpus+=("$cpu"); done
done
parts=16  # parts of riffle_tests; up to `slots` of them run at a time
work=$(mktemp -d) || exit 2
trap 'trap - TERM; kill -- $(jobs -p) 2>/dev/null; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
catch_seconds=1800
[ $rounds != all ] || catch_seconds=7200
catch_seconds=${RIFFLE_TEST_SECONDS:-$catch_seconds}
emulator=""
n_jobs=0 n_printed=0 passed=0 failed=0 skipped=0

# Runs a program that prints "ok NAME", "not ok NAME: why" or "skip NAME: why", one line a check.
# Prints all lines except the ok ones, and writes "passed failed skipped" to the file.
lines() {
  local counts=$1 name=$2 seconds=$3; shift 3
  local log=$counts.log code ok bad skip
  echo "== $name"
  timeout -k 10 "$seconds" "$@" >"$log" 2>&1
  code=$?
  grep -v '^ok ' "$log"
  ok=$(grep -c '^ok ' "$log"); bad=$(grep -c '^not ok ' "$log"); skip=$(grep -c '^skip ' "$log")
  # A program that crashed, hung or checked nothing has failed, whatever it printed before.
  if [ $code -ne 0 ] && [ "$bad" -eq 0 ]; then echo "not ok $name: exit code $code"; bad=1; fi
  if [ $code -eq 0 ] && [ $((ok + bad + skip)) -eq 0 ]; then echo "not ok $name: no checks"; bad=1; fi
  echo "   $ok ok, $bad not ok, $skip skipped, $SECONDS s"
  echo "$ok $bad $skip" >"$counts"
}

# Runs some cases of Catch's binary, with the instruction sets up to `isa`. A case that skips
# something prints WARN("SKIPPED: ..."). It counts as skipped if it checked nothing else.
catch() {
  local counts=$1 name=$2 isa=$3 cases=$4; shift 4
  local log=$counts.log code ok bad skip summary
  echo "== $name"
  RIFFLE_TEST_ISA=$isa timeout -k 10 "$catch_seconds" $emulator "$build/$program" "$@" >"$log" 2>&1
  code=$?
  cat "$log"
  summary=$(grep -E '^(test cases:|All tests passed)' "$log" | tail -n 1)
  ok=$(sed -nE 's/.*in ([0-9]+) test cases?\).*/\1/p; s/^test cases:.*[^0-9]([0-9]+) passed.*/\1/p' <<<"$summary")
  bad=$(sed -nE 's/^test cases:.*[^0-9]([0-9]+) failed.*/\1/p' <<<"$summary")
  skip=$(sed -n 's/^skipped cases: //p' "$log")
  ok=${ok:-0} bad=${bad:-0} skip=${skip:-0}
  if [ "$code" -ne 0 ] && [ "$bad" -eq 0 ]; then
    echo "not ok $name: exit code $code"; bad=1
  elif [ $((ok + bad)) -ne "$cases" ]; then
    echo "not ok $name: ran $((ok + bad)) of $cases cases"; bad=$((bad + 1))
  fi
  [ "$skip" -le "$ok" ] || skip=$ok
  echo "   $((ok - skip)) cases ok, $bad not ok, $skip skipped, $SECONDS s"
  echo "$((ok - skip)) $bad $skip" >"$counts"
}

# Prints the output of jobs in order, up to the first job that has not ended.
print_done() {
  local counts
  while [ -s "$work/$n_printed" ]; do
    cat "$work/$n_printed.txt"
    read -r -a counts <"$work/$n_printed"
    passed=$((passed + counts[0])) failed=$((failed + counts[1])) skipped=$((skipped + counts[2]))
    n_printed=$((n_printed + 1))
  done
}
# Starts "lines" or "catch" with these arguments as soon as fewer than `slots` of them run.
job() {
  local kind=$1; shift
  while [ "$(jobs -rp | wc -l)" -ge "$slots" ]; do wait -n; print_done; done
  (trap - EXIT; SECONDS=0; "$kind" "$work/$n_jobs" "$@" >"$work/$n_jobs.txt" 2>&1) &
  n_jobs=$((n_jobs + 1))
}
# Runs a command, "lines" or "catch" with its arguments, on a CPU of its own if one is free. The
# programs that it starts then do not wait for programs on other CPUs.
pinned() {
  local cpu
  for cpu in "${cpus[@]}"; do
    mkdir "$work/cpu$cpu" 2>/dev/null || continue
    taskset -cp "$cpu" "$BASHPID" >/dev/null
    "$@"
    rmdir "$work/cpu$cpu"
    return
  done
  "$@"
}
alone() { pinned lines "$@"; }
catch_alone() { pinned catch "$@"; }

# Writes the shipped model as Hugging Face folders, whole and in shards, for riffle_tests.
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

# Lets as many programs as there are CPUs run from now on, or twice RIFFLE_TEST_JOBS.
on_all_cpus() {
  slots=${RIFFLE_TEST_JOBS:+$((2 * RIFFLE_TEST_JOBS))}
  slots=${slots:-${#cpus[@]}}
}
if [ ${#cpus[@]} -le 1 ] || nvidia-smi -L >/dev/null 2>&1; then cpus=(); fi
# Most cases compute with one thread if rounds are few. Otherwise many cases use two or more
# threads.
runner=catch
if [ $rounds = few ] && [ ${#cpus[@]} -gt 1 ]; then
  runner=catch_alone
  on_all_cpus
fi

# Starts jobs that run the program's cases that match PATTERN (without one: all), in parts. LABEL is
# printed after the program's name. Sets `isas` to the instruction sets that the program uses.
# usage: catch_parts LABEL [PATTERN]
catch_parts() {
  local label=$1 list part cases; shift
  list=$(mktemp "$work/casesXXXXXX")
  $emulator "$build/$program" --list-test-names-only "$@" >"$list" 2>"$work/stderr"
  read -r -a isas <<<"$(sed -n 's/^instruction sets: //p' "$work/stderr")"
  if [ ! -s "$list" ] || [ ${#isas[@]} -eq 0 ]; then
    cat "$work/stderr"
    echo "not ok $program$label: no test cases"; failed=$((failed + 1))
    return
  fi
  for ((part = 1; part <= parts; part++)); do
    # Catch takes a comma in a name for the beginning of another name.
    awk -v parts=$parts -v part=$part 'NR % parts == part % parts' "$list" |
      sed 's/[],[\\]/\\&/g' >"$list.$part"
    cases=$(wc -l <"$list.$part")
    [ "$cases" -eq 0 ] || job $runner "$program$label, part $part of $parts, up to ${isas[-1]}" "${isas[-1]}" "$cases" -f "$list.$part"
  done
}

# Starts the jobs of a build for another CPU architecture.
emulated_jobs() {
  local cpu
  for cpu in ${RIFFLE_TEST_CPUS:-cortex-a72 cortex-a76 neoverse-n1 max}; do
    emulator="${EMULATOR:?CROSS=$CROSS needs EMULATOR, as make sets it} -cpu $cpu"
    catch_parts " as on $cpu" "${RIFFLE_TEST_CASES:-~[long]}"
  done
}

# Starts the jobs of a build for this machine.
jobs_here() {
  local isa cases n lost script python pytest=""
  hf_folders
  catch_parts ""
  # Tests of arithmetic run again for each smaller instruction set that the machine has; with all
  # rounds also the long tests of invariance, except for scalar code. With few rounds, cases that run
  # a whole model are left out. Scalar code is some twenty times slower, so for it they are left out
  # with most rounds too.
  for isa in "${isas[@]::${#isas[@]}-1}"; do
    cases="[arithmetic]"
    if [ $rounds = few ] || [ "$isa $rounds" = "scalar most" ]; then
      cases="[arithmetic]~[engine]~[invariance]~[lookup]~[model]"
    elif [ "$isa" != scalar ] && [ $rounds = all ]; then
      cases="[arithmetic],[invariance]~[cuda]"
    fi
    n=$("$build/riffle_tests" --list-test-names-only "$cases" 2>/dev/null | wc -l)
    job $runner "riffle_tests $cases, up to $isa" "$isa" "$n" "$cases"
  done
  # This case breaks the GPU for its process, so it runs alone. Builds without CUDA do not have it.
  lost=$("$build/riffle_tests" --list-test-names-only "[lost]" 2>/dev/null | grep -c lost)
  [ "$lost" -eq 0 ] || job catch "riffle_tests [lost]" "${isas[-1]}" "$lost" "[lost]"
  [ ${#cpus[@]} -eq 0 ] || on_all_cpus
  # The longest programs come first.
  job alone no_memory 1800 "$build/no_memory" "$RIFFLE_MODEL"
  job alone capi_example 300 "$build/capi_example" "$RIFFLE_MODEL"
  job alone capi_locale 300 "$build/capi_locale"
  job alone tools/check_locale.py 60 python3 -B tools/check_locale.py "$build"
  job alone tests/tools/check_includes_test.py 60 python3 -B tests/tools/check_includes_test.py
  job alone tests/tools/check_words_test.py 60 python3 -B tests/tools/check_words_test.py
  if [ $rounds = few ]; then
    job alone "capi_example under valgrind" 10 echo "skip capi_example under valgrind: RIFFLE_TEST_ROUNDS is few"
  elif command -v valgrind >/dev/null; then
    job alone "capi_example under valgrind" 1200 valgrind -q --error-exitcode=9 --leak-check=full \
      --errors-for-leak-kinds=definite "$build/capi_example" "$RIFFLE_MODEL"
  else
    job alone "capi_example under valgrind" 10 echo "skip capi_example under valgrind: valgrind is not installed"
  fi
  job alone tests/measure/commands/eval_test.py 1800 python3 -B tests/measure/commands/eval_test.py "$RIFFLE_BIN"
  for script in tests/cli/*_test.py tests/measure/commands/*_test.py; do
    [ "$script" = tests/measure/commands/eval_test.py ] || job alone "$script" 1200 python3 -B "$script" "$RIFFLE_BIN"
  done
  for script in tests/package/*_test.py; do
    job alone "$script" 600 python3 -B "$script" "$RIFFLE_BIN"
  done
  # Tests of the Python package run with the first Python that has pytest.
  for python in python3 /usr/bin/python3; do
    [ -n "$pytest" ] || ! "$python" -c 'import pytest' 2>/dev/null || pytest=$python
  done
  if [ -n "$pytest" ]; then
    # On all CPUs: it has tests of threads that share a model.
    job lines tests/python 600 "$pytest" -B tests/python/run.py
  else
    job alone tests/python 10 echo "skip tests/python: pytest is not installed (Debian: apt-get install python3-pytest)"
  fi
}

if [ -n "${CROSS:-}" ]; then
  emulated_jobs
elif [ $# -gt 1 ]; then
  catch_parts ""
else
  jobs_here
fi
while [ $n_printed -lt $n_jobs ]; do
  wait -n
  print_done
  if [ $n_printed -lt $n_jobs ] && [ -z "$(jobs -rp)" ] && [ ! -s "$work/$n_printed" ]; then
    echo "0 1 0" >"$work/$n_printed"  # its shell was killed
    echo "not ok: no result" >>"$work/$n_printed.txt"
  fi
done

# Prints the failures again, at the end: often only the end of a log is kept.
if [ $failed -ne 0 ]; then
  echo "== what failed"
  grep -hE -A4 '^not ok |: FAILED:' "$work"/*.txt | tail -n 60
fi

summary="$passed passed, $failed failed"
[ $skipped -eq 0 ] || summary="$summary, $skipped skipped"
echo "$summary"
[ $failed -eq 0 ]
