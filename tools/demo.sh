#!/usr/bin/env bash
# Runs the demo of `make demo` once everything is built. usage: demo.sh RIFFLE
set -eu
riffle=${1:-build/riffle}
exec "$riffle" demo -m models/riffle-27m-32k/riffle-27m-32k-q8_0.gguf
