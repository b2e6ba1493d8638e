#!/usr/bin/env bash
# Checks the format of every tracked C++ and CUDA file (make fmt mends it). Versions of clang-format
# differ in details: the one that counts is 14, Debian 12's. Others are skipped.
set -u
cd "$(dirname "$0")/.." || exit 2
version=14
for clang_format in clang-format-$version clang-format; do
  if "$clang_format" --version 2>/dev/null | grep -q "version $version\."; then
    git ls-files -z '*.cpp' '*.h' '*.c' '*.cu' '*.cuh' | xargs -0 "$clang_format" --dry-run -Werror
    exit $?
  fi
done
echo "SKIPPED: the format is not checked, since clang-format $version is missing (Debian 12: apt-get install clang-format)"
