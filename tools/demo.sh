#!/usr/bin/env bash
# Runs the demo of `make demo` once everything is built. EMULATOR is the program, with its options,
# that runs riffle where it is built for another machine.
# usage: [EMULATOR=PROGRAM] demo.sh RIFFLE
set -eu
riffle=${1:-build/riffle}
exec ${EMULATOR:-} "$riffle" demo -m models/riffle-27m-32k/riffle-27m-32k-q8_0.gguf
