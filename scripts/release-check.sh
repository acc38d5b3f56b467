#!/usr/bin/env bash
# Builds a release again from a copy of the sources in another directory, with an empty build cache, and compares it with the
# existing files. It needs several minutes.
#
#   scripts/release-check.sh VERSION COMMIT TARGET
set -euo pipefail

[ $# = 3 ] || { echo "usage: scripts/release-check.sh VERSION COMMIT TARGET" >&2; exit 2; }
root=$(cd "$(dirname "$0")/.." && pwd)
target=$(cd "$3" && pwd)
work=$(mktemp -d)
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$root" log -1 --format=%ct)}
export SOURCE_DATE_EPOCH GOCACHE=$work/cache
git -C "$root" ls-files -z --cached --others --exclude-standard | (cd "$root" && tar --create --null --files-from=-) | (mkdir "$work/sources" && tar --extract --directory "$work/sources")
make -C "$work/sources" release VERSION="$1" COMMIT="$2"
diff "$target/SHA256SUMS" "$work/sources/dist/SHA256SUMS" && (cd "$work/sources/dist" && sha256sum --check --quiet SHA256SUMS)
echo "release-check.sh: both builds have the same bytes"
