#!/usr/bin/env bash
# Builds the files of a release from programs that are already built: archives, packages, images, SBOM and checksums.
#
#   scripts/release.sh BUILD VERSION TARGET     for example: scripts/release.sh bin 0.1.0 dist
#
# BUILD has a directory with programs per architecture (amd64, arm64). TARGET should be empty: SHA256SUMS lists all its files.
# All files contain the time of the last commit (or SOURCE_DATE_EPOCH), so that the same sources yield the same bytes.
set -euo pipefail
export LC_ALL=C

[ $# = 3 ] || { echo "usage: scripts/release.sh BUILD VERSION TARGET" >&2; exit 2; }
root=$(cd "$(dirname "$0")/.." && pwd)
build=$(cd "$1" && pwd) version=$2
mkdir -p "$3"
target=$(cd "$3" && pwd)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$root" log -1 --format=%ct 2>/dev/null || echo 0)}
export SOURCE_DATE_EPOCH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

for arch in amd64 arm64; do
	[ -d "$build/$arch" ] || continue
	"$root/scripts/packages.sh" "$build/$arch" "$arch" "$version" "$target"
	name=pilotfish-$version-linux-$arch
	mkdir "$work/$name"
	for program in pilotfish pilotfish-{agent,iptables,cni,cni-install,cni-tombstone}; do
		cp "$build/$arch/$program" "$work/$name"
	done
	cp -r "$root"/{LICENSE,README.md,CHANGELOG.md,docs} "$work/$name"
	tar --create --directory "$work" --sort=name --format=ustar --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner \
		--mode=u=rwX,go=rX "$name" | gzip -n >"$target/$name.tar.gz"
done
"$root/scripts/images.sh" "$build" "$version" "$target" --sbom "$target/pilotfish-$version.spdx.json"
rm -f "$target/SHA256SUMS"
(cd "$target" && sha256sum -- *) >"$work/SHA256SUMS"
mv "$work/SHA256SUMS" "$target"
