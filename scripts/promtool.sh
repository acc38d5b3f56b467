#!/usr/bin/env bash
# Downloads promtool of Debian's package prometheus into the cache, unless it is there. A test checks the metrics with it and
# is skipped without it. The script installs no package.
#
#   scripts/promtool.sh
#
# The cache is $XDG_CACHE_HOME/pilotfish/promtool, by default ~/.cache/pilotfish/promtool
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
target=${XDG_CACHE_HOME:-$HOME/.cache}/pilotfish/promtool
[ ! -x "$target/promtool" ] || exit 0
if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
	echo "promtool.sh: apt-get or dpkg-deb is missing, so tests with promtool are skipped: put promtool into $target" >&2
	exit 0
fi
echo "promtool.sh: fetching promtool into $target" >&2
mkdir -p "$target"
work=$(mktemp -d "$target/.fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT
(cd "$work" && "$here/apt.sh" download prometheus)
dpkg-deb --fsys-tarfile "$work"/prometheus_*.deb | tar -x -C "$work" ./usr/bin/promtool
mv -f "$work/usr/bin/promtool" "$target/promtool"
