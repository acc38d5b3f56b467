#!/usr/bin/env bash
# Downloads Debian's containerd, runc and reference CNI plugins into the cache, unless they are there. Tests start real pod
# sandboxes with them and are skipped without them. The script installs no package and starts no service.
#
#   scripts/containerd.sh
#
# The cache is $XDG_CACHE_HOME/pilotfish/containerd, by default ~/.cache/pilotfish/containerd
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
target=${XDG_CACHE_HOME:-$HOME/.cache}/pilotfish/containerd
[ ! -e "$target/complete" ] || exit 0
if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
	echo "containerd.sh: apt-get or dpkg-deb is missing, so tests with pod sandboxes are skipped: put containerd, runc and CNI plugins into $target" >&2
	exit 0
fi
echo "containerd.sh: fetching containerd, runc and containernetworking-plugins into $target" >&2
mkdir -p "$target"
work=$(mktemp -d "$target/.fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT
(cd "$work" && "$here/apt.sh" download containerd runc containernetworking-plugins)
mkdir "$work/bin"
for deb in "$work"/*.deb; do
	dpkg-deb --extract "$deb" "$work/root"
done
mv "$work"/root/usr/bin/containerd* "$work"/root/usr/bin/ctr "$work"/root/usr/sbin/runc "$work"/root/usr/lib/cni/* "$work/bin"
rm -rf "$target/bin"
mv "$work/bin" "$target/bin"
touch "$target/complete"
