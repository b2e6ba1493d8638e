#!/usr/bin/env bash
# Checks that no tracked file is empty, and the format of every tracked C++ and CUDA file (make fmt
# mends it). Versions of clang-format differ in details: the format is that of version 14, Debian
# 12's. With any other version the check is skipped.
set -u
cd "$(dirname "$0")/.." || exit 2
# Empty files are left behind by renames and merges. py.typed is empty by PEP 561.
empty=$(git ls-files -s | grep " $(git hash-object -t blob /dev/null) " | cut -f 2 | grep -v '/py\.typed$')
if [ -n "$empty" ]; then
  sed 's/.*/&: the file is empty: remove it (git rm)/' <<<"$empty" >&2
  exit 1
fi
version=14
for clang_format in clang-format-$version clang-format; do
  if "$clang_format" --version 2>/dev/null | grep -q "version $version\."; then
    git ls-files -z '*.cpp' '*.h' '*.c' '*.cu' '*.cuh' | xargs -0 "$clang_format" --dry-run -Werror
    exit $?
  fi
done
echo "SKIPPED: the format is not checked, since clang-format $version is missing (Debian 12: apt-get install clang-format)"
