#!/usr/bin/env bash
# Fetches the libraries of another architecture, with which make CROSS=TRIPLET builds, and unpacks
# them in third_party/TRIPLET (ignored by git). They are the distribution's own packages and those
# that they depend on, glibc among them, so programs run in that folder too (qemu's option -L). The
# lists and the cache are this script's own, so root is not needed and the system's configuration,
# its architectures among it, is not touched. The folder's own database of dpkg (var/lib/dpkg) says
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
root=$PWD/$triplet
database=$root/var/lib/dpkg
[ ! -s "$database/status" ] || [ "$(cat "$root/packages" 2>/dev/null)" != "$*" ] || exit 0
# Enters an unpacked package in the database: its fields, its files, and the versions of its libraries.
record() {
  local name control=$root/apt/control
  rm -rf "$control" && dpkg-deb --control "$1" "$control"
  name=$(dpkg-deb --field "$1" Package)
  { echo "Status: install ok installed"; cat "$control/control"; echo; } >>"$database/status.part"
  # dpkg's names of the files of packages that can be installed for several architectures.
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
# No package counts as installed, so all that these packages need is fetched.
: >"$apt/status"
own="-o APT::Architecture=$architecture -o APT::Architectures=$architecture -o APT::Sandbox::User=root"
own="$own -o Dir::State=$apt/state -o Dir::State::status=$apt/status -o Dir::Cache=$apt/cache"
failed="found no packages for $architecture: are the system's package sources for another one alone?"
apt-get $own update -qq || { echo "CROSS=$triplet: $failed" >&2; exit 1; }
apt-get $own install -qq -y --download-only --no-install-recommends "$@" >/dev/null ||
  { echo "CROSS=$triplet: $failed" >&2; exit 1; }
mkdir -p "$database/info"
echo 1 >"$database/info/format"
printf '%s\n' "$(dpkg --print-architecture)" "$architecture" >"$database/arch"
for package in "$apt"/cache/archives/*.deb; do
  # The headers of glibc and of Linux are those of the cross compiler's own packages.
  case ${package##*/} in libc6-dev_*|linux-libc-dev_*|libcrypt-dev_*) continue ;; esac
  dpkg-deb --fsys-tarfile "$package" | tar -x -C "$root" --keep-directory-symlink
  record "$package"
done
rm -rf "$apt"
mv "$database/status.part" "$database/status"
echo "$*" >"$root/packages"
