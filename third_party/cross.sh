#!/usr/bin/env bash
# Fetches the libraries of another CPU architecture, with which make CROSS=TRIPLET builds. Unpacks
# them in third_party/TRIPLET (ignored by git). They are the distribution's own packages and those
# that they depend on, glibc among them, so programs run in that folder too (qemu's option -L). The
# lists and the cache are this script's own. So root is not needed, and the system's configuration
# and its list of architectures do not change. A dpkg database in the folder (var/lib/dpkg) says
# which package each library is from; make deb reads it.
# usage: cross.sh TRIPLET PACKAGE...     (third_party/setup.sh)
set -eu
usage="usage: cross.sh TRIPLET PACKAGE..."
triplet=${1:?$usage}; shift
case $triplet in
  aarch64-linux-gnu) architecture=arm64 ;;
  *) echo "CROSS=$triplet: expected aarch64-linux-gnu" >&2; exit 1 ;;
esac
cd "$(dirname "$0")"
[ ! -s "$triplet/var/lib/dpkg/status" ] || [ "$(cat "$triplet/packages" 2>/dev/null)" != "$*" ] || exit 0
root=$PWD/$triplet.part  # it takes the place of the old folder when it is complete
database=$root/var/lib/dpkg
# Adds a package to the database: its fields, its files, and the versions of its libraries.
record() {
  local name control=$root/apt/control
  rm -rf "$control" && dpkg-deb --control "$1" "$control"
  name=$(dpkg-deb --field "$1" Package)
  { echo "Status: install ok installed"; cat "$control/control"; echo; } >>"$database/status.part"
  # If a package can be installed for several architectures, dpkg's file names have one.
  if grep -qx 'Multi-Arch: same' "$control/control"; then name=$name:$architecture; fi
  dpkg-deb --fsys-tarfile "$1" | tar -t | sed 's|^\./|/|; s|/$||; s|^$|/.|' >"$database/info/$name.list"
  for file in symbols shlibs; do
    [ ! -e "$control/$file" ] || cp "$control/$file" "$database/info/$name.$file"
  done
}
for tool in apt-get dpkg-deb; do
  command -v $tool >/dev/null || { echo "CROSS=$triplet needs $tool, as on Debian" >&2; exit 1; }
done
echo "fetching libraries for $architecture, to third_party/$triplet" >&2
rm -rf "$root" && mkdir -p "$root/usr/lib" "$root/usr/bin" "$root/usr/sbin"
# Debian's packages have files in /lib and in /usr/lib; on a system these are one folder.
for folder in lib bin sbin; do ln -s usr/$folder "$root/$folder"; done
apt=$root/apt
mkdir -p "$apt/state/lists/partial" "$apt/cache/archives/partial"
# dpkg's list of installed packages is empty here, so apt-get fetches all dependencies.
: >"$apt/status"
own="-o APT::Architecture=$architecture -o APT::Architectures=$architecture -o APT::Sandbox::User=root"
own="$own -o Dir::State=$apt/state -o Dir::State::status=$apt/status -o Dir::Cache=$apt/cache"
failed="apt-get could not fetch packages for $architecture; expected package sources that have"
failed="$failed $architecture (Ubuntu keeps them elsewhere than those of amd64), and a network"
apt-get $own update -qq || { echo "CROSS=$triplet: $failed" >&2; exit 1; }
apt-get $own install -qq -y --download-only --no-install-recommends "$@" >/dev/null ||
  { echo "CROSS=$triplet: $failed" >&2; exit 1; }
mkdir -p "$database/info"
echo 1 >"$database/info/format"
printf '%s\n' "$(dpkg --print-architecture)" "$architecture" >"$database/arch"
for package in "$apt"/cache/archives/*.deb; do
  # The cross compiler's packages have the headers of glibc and of Linux.
  case ${package##*/} in libc6-dev_*|linux-libc-dev_*|libcrypt-dev_*) continue ;; esac
  dpkg-deb --fsys-tarfile "$package" | tar -x -C "$root" --keep-directory-symlink
  record "$package"
done
rm -rf "$apt"
mv "$database/status.part" "$database/status"
echo "$*" >"$root/packages"
rm -rf "$triplet"
mv "$root" "$triplet"
