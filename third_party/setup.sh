#!/usr/bin/env bash
# Debian and Ubuntu packages that riffle is built with. usage: setup.sh check | install
# install asks once, and uses sudo only when not already root.
set -eu
packages="g++ gcc make pkg-config libsentencepiece-dev libmimalloc-dev catch2 nlohmann-json3-dev libcli11-dev libedit-dev python3"
missing=""
for p in $packages; do
  dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing="$missing $p"
done
[ -n "$missing" ] || { echo "all packages are installed"; exit 0; }
[ "${1:-check}" = install ] || { echo "missing:$missing"; exit 1; }
command -v apt-get >/dev/null || { echo "riffle needs these packages:$missing" >&2; exit 1; }
sudo=""
if [ "$(id -u)" != 0 ]; then
  command -v sudo >/dev/null || { echo "please install as root:$missing" >&2; exit 1; }
  sudo=sudo
fi
echo "riffle needs these packages:$missing" >&2
if [ -t 0 ]; then
  read -r -p "install them now${sudo:+ with sudo}? [Y/n] " answer
  case "$answer" in [nN]*) exit 1 ;; esac
fi
$sudo env DEBIAN_FRONTEND=noninteractive apt-get update -qq >/dev/null
$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
