#!/usr/bin/env bash
# Compares the binary interface of libriffle.so with the recorded one, or records it: functions,
# structs and enums of src/riffle*.h, as libabigail sees them.
# usage: abi.sh check|record LIBRIFFLE.SO     (make abi-check, make abi-baseline)
# check: exit code 0 if nothing changed, 1 if something did, 77 if it cannot be checked here.
# The types come from the debug information of src/api, which is compiled with -g. The -g1 of other
# files records no types. Opaque types and source lines are left out.
set -eu
usage="usage: abi.sh check|record LIBRIFFLE.SO"
action=${1:?$usage} library=$(realpath "${2:?$usage}")
cd "$(dirname "$0")/../.."
# One record serves the CPU architectures that have the same interface, so it names none.
machine=$(LC_ALL=C readelf -h "$library" | sed -n 's/^ *Machine: *//p')
case $machine in
  *X86-64 | AArch64) ;;
  *) echo "abi.sh: $library: found a library for '$machine', expected X86-64 or AArch64" >&2; exit 1 ;;
esac
baseline=tools/package/abi/libriffle.xml
if ! command -v abidw >/dev/null || ! command -v abidiff >/dev/null; then
  echo "abi.sh: abidw or abidiff is missing (Debian: apt-get install abigail-tools)" >&2
  exit 77
fi
new=$(mktemp)
trap 'rm -f "$new"' EXIT
headers=()
for header in src/riffle*.h; do headers+=(--header-file "$header"); done
abidw --exported-interfaces-only "${headers[@]}" \
  --drop-private-types --no-show-locs --no-corpus-path --no-comp-dir-path --no-elf-needed \
  --type-id-style hash "$library" | sed "1s/ architecture='[^']*'//" >"$new"
grep -q "<class-decl name='riffle_token' size" "$new" || {
  echo "abi.sh: $library: found no types, expected debug information of src/api; build it anew" >&2
  exit 1
}
# --harmless: also reports changes that break no binary, such as a new name of a member.
compare() { abidiff --harmless --no-show-locs "$baseline" "$new"; }
code=0
case $action in
  record)
    [ ! -e "$baseline" ] || compare || code=$?
    cp "$new" "$baseline" && chmod 644 "$baseline"
    echo "recorded $baseline" ;;
  check)
    [ -e "$baseline" ] || { echo "abi.sh: no baseline; make abi-baseline" >&2; exit 77; }
    compare || code=$? ;;
  *) echo "abi.sh: '$action': expected check or record" >&2; exit 2 ;;
esac
# abidiff: 4 says changed, 8 (with 4) changed incompatibly; 1 and 2 are errors of abidiff itself.
if [ $((code & 3)) -ne 0 ]; then
  echo "abi.sh: abidiff ended with exit code $code, expected 0, 4 or 12" >&2
  exit 1
fi
if [ $((code & 8)) -ne 0 ]; then
  echo "abi.sh: old programs break: undo the change, or count up SONAME (Makefile) and RIFFLE_0" >&2
elif [ "$code" -ne 0 ]; then
  echo "abi.sh: the interface has changed: if old programs still run, make abi-baseline records it" >&2
fi
[ "$action" = record ] || [ "$code" -eq 0 ]
