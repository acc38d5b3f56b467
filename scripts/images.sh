#!/usr/bin/env bash
# Builds the container images as OCI archives, without a container engine, from programs that are already built.
#
#   scripts/images.sh BUILD VERSION TARGET [FLAG...]     for example: scripts/images.sh bin 0.1.0 dist --push registry.example/pilotfish
#
# BUILD has a directory with programs per architecture (amd64, arm64). The script adds Envoy (ENVOY_VERSION) and its C library
# to them. FLAGs are those of packaging/images. The images contain the time of the last commit (or SOURCE_DATE_EPOCH), so that
# the same sources yield the same bytes.
set -euo pipefail

[ $# -ge 3 ] || { echo "usage: scripts/images.sh BUILD VERSION TARGET [FLAG...]" >&2; exit 2; }
root=$(cd "$(dirname "$0")/.." && pwd)
build=$(cd "$1" && pwd) version=$2
mkdir -p "$3"
target=$(cd "$3" && pwd)
shift 3
cache=${XDG_CACHE_HOME:-$HOME/.cache}/pilotfish
envoy=${ENVOY_VERSION:-1.40.0}
time=${SOURCE_DATE_EPOCH:-$(git -C "$root" log -1 --format=%ct 2>/dev/null || echo 0)}
commit=${COMMIT:-$(git -C "$root" rev-parse --short=12 HEAD 2>/dev/null || echo unknown)}
for arch in amd64 arm64; do
	[ -d "$build/$arch" ] || continue
	"$root/scripts/libc.sh" "$arch"
	ln -sfn "$("$root/scripts/libc.sh" --print "$arch")" "$build/$arch/libc"
	"$root/scripts/envoy.sh" --arch "$arch" "$envoy"
	program=$cache/envoy-$arch/$envoy/envoy
	[ -e "$program" ] || program=$cache/envoy/$envoy/envoy # of this machine's architecture
	ln -sfn "$program" "$build/$arch/envoy"
done
cd "$root"
go run ./packaging/images --input "$build" --version "$version" --commit "$commit" --time "$time" --output "$target" "$@"
