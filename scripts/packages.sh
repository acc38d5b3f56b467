#!/usr/bin/env bash
# Builds the .deb and the .rpm for virtual machines from programs that are already built.
#
#   scripts/packages.sh BIN ARCH VERSION TARGET     for example: scripts/packages.sh bin amd64 0.1.0 dist
#
# The packages contain the time of the last commit (or SOURCE_DATE_EPOCH), so that the same sources yield the same bytes.
set -euo pipefail

[ $# = 4 ] || { echo "usage: scripts/packages.sh BIN ARCH VERSION TARGET" >&2; exit 2; }
root=$(cd "$(dirname "$0")/.." && pwd)
BIN=$(cd "$1" && pwd) ARCH=$2 VERSION=$3
mkdir -p "$4"
target=$(cd "$4" && pwd)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$root" log -1 --format=%ct 2>/dev/null || echo 0)}
export BIN ARCH VERSION SOURCE_DATE_EPOCH
cd "$root"
for format in deb rpm; do
	go tool -modfile=tools/go.mod nfpm package --config packaging/nfpm.yaml --packager "$format" --target "$target"
done
