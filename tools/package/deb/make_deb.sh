#!/usr/bin/env bash
# Packs a staged installation as three Debian packages: riffle, libriffle0 and libriffle-dev.
# usage: [CROSS=TRIPLET] make_deb.sh STAGE VERSION SONAME FOLDER     (make deb)
# STAGE is the DESTDIR of a make install with PREFIX=/usr; its files are moved. In this script's
# folder, control has the fields, and changelog the version, which must be that of riffle.h.
# CROSS is the triplet of another CPU architecture that riffle is built for. Its packages are in
# third_party/TRIPLET, with a dpkg database (third_party/cross.sh).
# DEB_COMPRESSION is the compression of the packages: xz (the default), or none, which is faster.
set -eu
usage="usage: make_deb.sh STAGE VERSION SONAME FOLDER"
stage=$(cd "${1:?$usage}" && pwd) version=${2:?$usage} soname=${3:?$usage} folder=${4:?$usage}
here=$(cd "$(dirname "$0")" && pwd)
for tool in dpkg-deb dpkg-shlibdeps dpkg-parsechangelog; do
  command -v $tool >/dev/null || { echo "make deb needs $tool (Debian: apt-get install dpkg-dev)" >&2; exit 1; }
done
library=libriffle${soname##*.}
changes=$(dpkg-parsechangelog -l "$here/changelog" -S Version)
if [ "$changes" != "$version" ]; then
  echo "tools/package/deb/changelog: found version $changes, expected $version as in src/riffle.h: add an entry" >&2
  exit 1
fi
grep -qx "Package: $library" "$here/control" || {
  echo "tools/package/deb/control: found no package $library, expected the one of $soname: rename it" >&2
  exit 1
}
date=$(dpkg-parsechangelog -l "$here/changelog" -S Timestamp)
work=$(dirname "$stage")/work
rm -rf "$work" && mkdir -p "$work/debian" "$folder"
architecture=$(dpkg --print-architecture)
strip=strip
system=""
shlibdeps=""
if [ -n "${CROSS:-}" ]; then
  architecture=$(dpkg-architecture -f -t"$CROSS" -qDEB_HOST_ARCH 2>/dev/null) ||
    { echo "make deb: CROSS=$CROSS: expected a GNU triplet that Debian has, such as aarch64-linux-gnu" >&2; exit 1; }
  [ -s "$here/../../../third_party/$CROSS/var/lib/dpkg/status" ] ||
    { echo "make deb: found no third_party/$CROSS/var/lib/dpkg/status, expected dpkg's database there: run CROSS=$CROSS third_party/setup.sh install" >&2; exit 1; }
  strip=$CROSS-strip
  system=$(cd "$here/../../../third_party/$CROSS" && pwd)
  # dpkg-shlibdeps looks libraries up by their whole paths, so the lists of files get whole paths.
  cp -r "$system/var/lib/dpkg" "$work/dpkg"
  sed -i "s|^/|$system/|" "$work"/dpkg/info/*.list
  export DEB_HOST_ARCH=$architecture
  shlibdeps="--admindir=$work/dpkg -S$system"
fi
umask 022

# Files by package. A file that no line names is reported as an error at the end.
move() {
  local package=$1; shift
  local file
  for file in "$@"; do
    [ -e "$stage/$file" ] || [ -L "$stage/$file" ] || { echo "make deb: $file is missing in $stage" >&2; exit 1; }
    mkdir -p "$work/$package/$(dirname "$file")"
    mv "$stage/$file" "$work/$package/$file"
  done
}
cd "$stage"
libdir=$(dirname "$(find usr/lib -name "$soname")")
move $library "$libdir"/libriffle.so.*
# The CUDA toolkit may be in another place on other machines.
sed -i 's| -L/[^ ]*||' "$stage/$libdir/pkgconfig/riffle.pc"
move libriffle-dev "$libdir"/libriffle.so "$libdir"/libriffle.a "$libdir"/pkgconfig "$libdir"/cmake usr/include
move riffle usr/bin usr/share
left=$(find . ! -type d)
[ -z "$left" ] || { echo "make deb: no package has these files:" $left >&2; exit 1; }
cd "$OLDPWD"

$strip "$work/riffle/usr/bin/riffle"
$strip --strip-unneeded "$work/$library/$libdir/libriffle.so.$version"
$strip --strip-debug "$work/libriffle-dev/$libdir/libriffle.a"
gzip -9n "$work"/riffle/usr/share/man/man1/*.1

# Programs of libriffle-dev need this library or a newer one with the same SONAME.
mkdir -p "$work/$library/DEBIAN"
echo "libriffle ${soname##*.} $library (>= $version)" >"$work/$library/DEBIAN/shlibs"
echo "activate-noawait ldconfig" >"$work/$library/DEBIAN/triggers"

maintainer=$(dpkg-parsechangelog -l "$here/changelog" -S Maintainer)
sed -e "s|@MAINTAINER@|$maintainer|; s|@VERSION@|$version|" "$here/control" >"$work/debian/control"
# Prints the Depends field of a binary, from the libraries that it is linked with.
needs_of() {
  (cd "$work" && dpkg-shlibdeps $shlibdeps -O "$1" 2>"$work/shlibdeps.log" || { cat "$work/shlibdeps.log" >&2; exit 1; }) |
    sed -n 's/^shlibs:Depends=//p'
}
# Writes the control file of a binary package, from its stanza in control.
control_of() {
  local package=$1 needs=$2
  echo "Package: $package"
  [ "$package" = riffle ] || echo "Source: riffle"
  echo "Version: $version"
  echo "Architecture: $architecture"
  echo "Maintainer: $maintainer"
  echo "Installed-Size: $(du -sk --exclude=DEBIAN "$work/$package" | cut -f1)"
  echo "Priority: optional"
  awk -v RS= -v package="$package" '$0 ~ "^Package: " package "\n"' "$work/debian/control" |
    sed -e '/^Package:/d; /^Architecture:/d' -e "s|@SHLIBS@|$needs|"
}
for package in riffle $library libriffle-dev; do
  root=$work/$package
  doc=$root/usr/share/doc/$package
  mkdir -p "$doc" "$root/DEBIAN"
  install -m 644 "$here/copyright" "$doc/copyright"
  gzip -9nc "$here/changelog" >"$doc/changelog.gz"
  needs=""
  case $package in
    riffle) needs=$(needs_of riffle/usr/bin/riffle) ;;
    "$library") needs=$(needs_of "$library/$libdir/libriffle.so.$version") ;;
  esac
  # Code from the headers of these packages is compiled in.
  for part in nlohmann-json3-dev libxxhash-dev libcli11-dev; do
    [ $part != libcli11-dev ] || [ $package = riffle ] || continue
    install -D -m 644 "$system"/usr/share/doc/$part/copyright "$doc/licences/$part"
  done
  control_of $package "$needs" >"$root/DEBIAN/control"
  (cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum >DEBIAN/md5sums)
  # The same files give the same package on every day.
  find "$root" -exec touch -h -d "@$date" {} +
  SOURCE_DATE_EPOCH=$date dpkg-deb --root-owner-group -Z"${DEB_COMPRESSION:-xz}" -z1 --build "$root" "$folder/${package}_${version}_$architecture.deb"
done
