#!/usr/bin/env bash
# Checks the folder of make dist: both binaries need nothing but glibc, and the executable answers a
# prompt in an empty root that holds glibc, the executable and a model. With CROSS=TRIPLET glibc is
# that of third_party/TRIPLET, and qemu's static emulator, which is copied into the root, runs the
# executable.
# usage: [CROSS=TRIPLET] check_dist.sh DIST_FOLDER
set -euo pipefail
folder=${1:?usage: check_dist.sh DIST_FOLDER}
cross=${CROSS:-}
machine=${cross%%-*}
machine=${machine:-$(uname -m)}
system=""
[ -z "$cross" ] || system=$(cd "$(dirname "$0")/../third_party/$cross" && pwd)
emulator=""
if [ -n "$cross" ]; then
  emulator=$(command -v "qemu-$machine-static") ||
    { echo "check_dist.sh: CROSS=$cross needs qemu-$machine-static (Debian: apt-get install qemu-user-static)" >&2; exit 1; }
fi
field() { LC_ALL=C readelf --wide "$1" "$2" | sed -n "s/$3/\1/p"; }
loader=$(field -l "$folder/riffle" '.*program interpreter: \(.*\)\]')
# Prints the libraries that a binary needs and their paths, as ldd does. In qemu the line of
# linux-vdso has no name, so it is removed.
libraries_of() { ${emulator:+$emulator -L "$system"} "$system$loader" --list "$1" | sed '/^[[:space:]]*(/d'; }
glibc='linux-vdso|libc\.so|libm\.so|libdl\.so|libpthread\.so|librt\.so|ld-linux'
for binary in riffle libriffle.so; do
  found=$(field -h "$folder/$binary" ' *Machine: *\(.*\)')
  case $machine:$found in
    x86_64:*X86-64 | aarch64:AArch64) ;;
    *) echo "not ok $binary: found a binary for $found, expected $machine"; exit 1 ;;
  esac
  libraries=$(libraries_of "$folder/$binary") ||
    { echo "not ok $binary: $loader --list failed, expected a list of its libraries"; exit 1; }
  other=$(grep -Ev "$glibc" <<<"$libraries" || true)
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
libraries_of "$folder/riffle" | grep -o '/[^ ]*' | while read -r library; do
  library=${library#"$system"}
  mkdir -p "$root$(dirname "$library")" && cp -L "$system$library" "$root$library"
done
[ -z "$emulator" ] || cp -L "$emulator" "$root/emulator"
cp "$folder"/models/*/*.gguf "$root/model.gguf"
answer=$(chroot "$root" ${emulator:+/emulator} /riffle run -q --raw -m /model.gguf -p "The old clock in the hall" -n 12 --temp 0 -c 2048) ||
  { echo "not ok the executable in an empty root: exit code $?"; exit 1; }
[ -n "$answer" ] || { echo "not ok the executable in an empty root: no answer"; exit 1; }
echo "ok the executable in an empty root answers: $answer"
