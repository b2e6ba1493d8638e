#!/usr/bin/env bash
# Puts files where they belong, or removes them. Each FILE is MODE:SOURCE:DESTINATION, or
# link:TARGET:DESTINATION; DESTDIR goes before DESTINATION.
# usage: install.sh install|uninstall DESTDIR FILE...     (make install, make uninstall)
set -eu
usage="usage: install.sh install|uninstall DESTDIR FILE..."
action=${1:?$usage} destdir=${2?$usage}
shift 2
folders=""
for file in "$@"; do
  IFS=: read -r mode from to rest <<<"$file"
  if [ -z "${to:-}" ] || [ -n "$rest" ]; then
    echo "install.sh: '$file': expected MODE:SOURCE:DESTINATION; paths must not hold a colon" >&2
    exit 2
  fi
  case $action:$mode in
    install:link) mkdir -p "$(dirname "$destdir$to")"; ln -sfn "$from" "$destdir$to" ;;
    install:*) install -D -m "$mode" "$from" "$destdir$to" ;;
    uninstall:*) rm -f "$destdir$to" ;;
    *) echo "install.sh: '$action': expected install or uninstall" >&2; exit 2 ;;
  esac
  # Folders that only riffle uses, to be removed with their last file.
  case $to in
    */riffle/*) folders="$folders ${to%/*}" ;;
  esac
done
if [ "$action" = install ]; then
  echo "installed $# files under ${destdir:-/}"
else
  for folder in $(printf '%s\n' $folders | sort -u); do
    while case $folder in */riffle | */riffle/*) true ;; *) false ;; esac; do
      [ ! -d "$destdir$folder" ] || rmdir "$destdir$folder" 2>/dev/null || break
      folder=${folder%/*}
    done
  done
fi
