#!/usr/bin/env bash
# Checks or installs the Debian and Ubuntu packages that riffle is built with.
# usage: [CROSS=TRIPLET] setup.sh check | install | install-test | install-fuzz
# install-test adds pytest, for make test. install-fuzz adds the programs that make fuzz and CI use:
# clang with libFuzzer, clang-format, mandoc, abidiff, valgrind, and those with which tests/package
# tries the packages (CMake, pkg-config, zsh, fish). With CROSS=aarch64-linux-gnu the packages are
# the cross compiler and an emulator, and every command, check included, also fetches the libraries
# if they are missing (cross.sh).
# On a terminal it asks once before installing. It uses sudo only if it does not run as root.
set -eu
tools="g++ gcc make"
libraries="libsentencepiece-dev libpcre2-dev libutf8proc-dev libmimalloc-dev catch2 nlohmann-json3-dev libcli11-dev libedit-dev libxxhash-dev"
packages="$tools $libraries python3 python3-numpy"
if [ -n "${CROSS:-}" ]; then packages="g++-$CROSS gcc-$CROSS make qemu-user-static python3 python3-numpy"; fi
command=${1:-check}

missing_of() {
  local installed
  installed=$(dpkg-query -W -f='${Status} ${Package}\n' "$@" 2>/dev/null | sed -n 's/^install ok installed //p')
  for p in "$@"; do
    grep -qxF "$p" <<<"$installed" || printf ' %s' "$p"
  done
}

install_packages() {
  command -v apt-get >/dev/null || { echo "riffle needs these packages: $*" >&2; exit 1; }
  sudo=""
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || { echo "please install as root: $*" >&2; exit 1; }
    sudo=sudo
  fi
  echo "riffle needs these packages: $*" >&2
  if [ -t 0 ]; then
    read -r -p "install them now${sudo:+ with sudo}? [Y/n] " answer
    case "$answer" in [nN]*) exit 1 ;; esac
  fi
  $sudo env DEBIAN_FRONTEND=noninteractive apt-get update -qq >/dev/null
  $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

missing=$(missing_of $packages)
if [ -n "$missing" ]; then
  if [ "$command" = check ]; then
    echo "riffle needs these packages:$missing" >&2
    echo "install them with: ${CROSS:+CROSS=$CROSS }third_party/setup.sh install   (make demo and make test do so)" >&2
    exit 1
  fi
  install_packages $missing
fi
[ -z "${CROSS:-}" ] || "$(dirname "$0")/cross.sh" "$CROSS" $libraries
if [ "$command" = install-test ]; then
  [ -z "$(missing_of python3-pytest)" ] || python3 -c 'import pytest' 2>/dev/null || install_packages python3-pytest
fi
if [ "$command" = install-fuzz ]; then
  command -v clang++ >/dev/null || install_packages clang
  command -v clang-format >/dev/null || install_packages clang-format
  command -v mandoc >/dev/null || install_packages mandoc
  missing=$(missing_of abigail-tools valgrind cmake pkgconf zsh fish)
  [ -z "$missing" ] || install_packages $missing
  # The package of libFuzzer carries clang's version in its name.
  runtime=libclang-rt-$(clang++ -dumpversion | cut -d. -f1)-dev
  missing=$(missing_of "$runtime")
  [ -z "$missing" ] || install_packages $missing
fi
