#!/usr/bin/env bash
# Checks the folder of make dist: both binaries need nothing but glibc, and the executable answers a
# prompt in an empty root that holds glibc, the executable and a model.
# usage: check_dist.sh DIST_FOLDER
set -eu
folder=${1:?usage: check_dist.sh DIST_FOLDER}
glibc='linux-vdso|libc\.so|libm\.so|libdl\.so|libpthread\.so|librt\.so|ld-linux'
for binary in riffle libriffle.so; do
  other=$(ldd "$folder/$binary" | grep -Ev "$glibc" || true)
  [ -z "$other" ] || { echo "not ok $binary needs more than glibc:" $other; exit 1; }
  echo "ok $binary needs only glibc"
done
if ! chroot / true 2>/dev/null; then
  echo "skip the executable in an empty root: chroot is not allowed here"
  exit 0
fi
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
cp "$folder/riffle" "$root/riffle"
ldd "$folder/riffle" | grep -o '/[^ ]*' | while read -r library; do
  mkdir -p "$root$(dirname "$library")" && cp -L "$library" "$root$library"
done
cp "$folder"/models/*/*.gguf "$root/model.gguf"
answer=$(chroot "$root" /riffle run -q --raw -m /model.gguf -p "The old clock in the hall" -n 12 --temp 0 -c 2048) ||
  { echo "not ok the executable in an empty root: exit code $?"; exit 1; }
[ -n "$answer" ] || { echo "not ok the executable in an empty root: no answer"; exit 1; }
echo "ok the executable in an empty root answers: $answer"
