#!/usr/bin/env bash
# Builds sentencepiece and mimalloc, which Debian ships only as shared objects, as static archives
# in third_party/static (ignored by git); with CROSS=TRIPLET in third_party/static-TRIPLET, by the
# cross compiler. The sources are the distribution's own: apt-get source, with lists and a cache of
# this script's own, so the system's configuration is not touched and root is not needed.
# usage: [CROSS=TRIPLET] static.sh     (make dist)
set -eu
cd "$(dirname "$0")"
tools=${CROSS:+$CROSS-}
static=$PWD/static${CROSS:+-$CROSS}
archives="$static/libsentencepiece.a $static/mimalloc.o"
complete() { for a in $archives; do [ -s "$a" ] || return 1; done; }
complete && exit 0
for tool in apt-get dpkg-source; do
  command -v $tool >/dev/null || { echo "make dist needs $tool (Debian: apt-get install dpkg-dev)" >&2; exit 1; }
done
export CXX="${CXX:-${tools}g++}" CC="${CC:-${tools}gcc}" AR="${AR:-${tools}ar}"
apt=$static/apt
mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$static/src"

# The system's own mirrors, for sources.
own="-o Dir::State::Lists=$apt/lists -o Dir::Cache=$apt/cache -o APT::Sandbox::User=root"
mirrors() { apt-get $1 indextargets --format 'deb-src $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Identifier: Packages' | sort -u; }
mirrors "" >"$apt/sources.list"
if [ ! -s "$apt/sources.list" ]; then  # the system's lists are empty
  apt-get $own update -qq
  mirrors "$own" >"$apt/sources.list"
fi
own="$own -o Dir::Etc::SourceList=$apt/sources.list -o Dir::Etc::SourceParts=/dev/null"
apt-get $own update -qq
(cd "$static/src" && rm -rf sentencepiece-*/ mimalloc-*/ && apt-get $own source -qq sentencepiece mimalloc >/dev/null)

flags="-O2 -DNDEBUG -fPIC -fvisibility=hidden -w"
cd "$static"/src/sentencepiece-*/
sed "s/@PROJECT_VERSION@/$(cat VERSION.txt)/; s/@PROJECT_NAME@/sentencepiece/" config.h.in >config.h
rm -rf objects && mkdir objects
# Sources that read and apply a model; training is left out.
for f in third_party/absl/flags/flag.cc third_party/protobuf-lite/*.cc src/builtin_pb/*.cc \
  src/{bpe_model,char_model,error,filesystem,model_factory,model_interface,normalizer}.cc \
  src/{sentencepiece_processor,unigram_model,util,word_model}.cc; do
  echo "$f"
done | xargs -P "$(nproc)" -I{} sh -c "\$CXX -std=c++17 $flags -pthread -DHAVE_PTHREAD=1 \
  -I. -Isrc -Isrc/builtin_pb -Ithird_party -Ithird_party/protobuf-lite \
  -c {} -o objects/\$(echo {} | tr / _).o"
rm -f "$static/libsentencepiece.a"
$AR rcs "$static/libsentencepiece.a" objects/*.o
# malloc is replaced for the whole executable, as by the shared object.
cd "$static"/src/mimalloc-*/
$CC -std=gnu11 $flags -DMI_MALLOC_OVERRIDE=1 -ftls-model=initial-exec -Iinclude -c src/static.c -o mimalloc.o
# src/cli/allocation.cpp has the operators new and delete.
${tools}objcopy --wildcard --weaken-symbol='_Zn*' --weaken-symbol='_Zd*' mimalloc.o "$static/mimalloc.o"
rm -rf "$apt"
