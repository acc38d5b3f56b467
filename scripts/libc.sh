#!/usr/bin/env bash
# Fetches the C library that Envoy uses, from Debian's package libc6, into the cache, unless it is there. The sidecar image
# contains it. The script installs no package, and does not change the machine's package lists.
#
#   scripts/libc.sh [--print] ARCH...     amd64, arm64; --print only prints the directories
#
# The cache is $XDG_CACHE_HOME/pilotfish/libc/VERSION-ARCH, by default in ~/.cache. On a machine without Debian's packages,
# put the package as libc6.deb into that directory first.
set -euo pipefail

version=2.36-9+deb12u14
declare -A hashes=(
	[amd64]=ba4f88f73dbc3ae9055f3c20f4523bfdbaf1ad13ff95e258924f77d20b4fbedf
	[arm64]=01f4330719fd4f65580e16ea5a0527f372fca750e8f588d26deaf09f2d3b1cf4
)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/pilotfish/libc

fail() {
	echo "libc.sh: $*" >&2
	exit 1
}

# download fetches the package for an architecture into a directory. It uses the machine's package sources, with lists of
# its own. apt verifies the signatures.
download() {
	local arch=$1 dir=$2 options
	command -v apt-get >/dev/null || fail "apt-get is missing: put Debian's package libc6 $version for $arch into $cache/$version-$arch/libc6.deb"
	mkdir -p "$dir/lists/partial" "$dir/cache/archives/partial"
	: >"$dir/status"
	options=(-qq -o APT::Sandbox::User=root -o APT::Architecture="$arch" -o APT::Architectures::="$arch" -o Dir::State="$dir"
		-o Dir::State::lists="$dir/lists" -o Dir::State::status="$dir/status" -o Dir::Cache="$dir/cache")
	apt-get "${options[@]}" update >&2 || true # another source of this machine may be unreachable
	if ! (cd "$dir" && apt-get "${options[@]}" download "libc6=$version" 2>/dev/null); then
		(cd "$dir" && apt-get "${options[@]}" download libc6) || fail "Debian's package libc6 could not be fetched: check the network connection and the package sources of apt-get"
	fi
	mv "$dir"/libc6_*.deb "$dir/libc6.deb"
}

# unpack copies from the package what an image needs.
unpack() {
	local deb=$1 root=$2
	mkdir -p "$root/var/lib/dpkg/status.d" "$root/etc" "$root/files"
	dpkg-deb --extract "$deb" "$root/files"
	# Scanners for vulnerabilities read these two files.
	dpkg-deb --field "$deb" >"$root/var/lib/dpkg/status.d/libc6"
	printf '%s\n' 'PRETTY_NAME="pilotfish"' 'NAME="Debian GNU/Linux"' ID=debian 'VERSION_ID="12"' >"$root/etc/os-release"
	(
		cd "$root/files"
		cp -a --parents usr/share/doc/libc6/copyright lib/*/ld-linux-* lib/*/lib{c,m}.so.6 lib/*/lib{dl,nss_dns,nss_files,resolv}.so.2 \
			lib/*/librt.so.1 lib/*/libpthread.so.0 "$root"
		# The loader has another place on each processor.
		for loader in lib64/ld-linux-* lib/ld-linux-*; do
			[ ! -e "$loader" ] && [ ! -L "$loader" ] || cp -a --parents "$loader" "$root"
		done
	)
	rm -rf "$root/files"
}

install_one() {
	local arch=$1 target=$cache/$version-$1 work deb found
	if [ ! -e "$target/root" ]; then
		command -v dpkg-deb >/dev/null || fail "dpkg-deb is missing, which unpacks the C library: install the package dpkg"
		mkdir -p "$target"
		work=$(mktemp -d "$target/.fetch.XXXXXX")
		trap 'rm -rf "$work"' EXIT
		deb=$target/libc6.deb
		if [ ! -e "$deb" ]; then
			echo "libc.sh: fetching libc6 for $arch" >&2
			download "$arch" "$work"
			deb=$work/libc6.deb
		fi
		found=$(dpkg-deb --field "$deb" Version)
		[[ $found == *+deb12u* && $(dpkg-deb --field "$deb" Architecture) == "$arch" ]] || fail "the fetched package is not libc6 of Debian 12 for $arch: its version is $found"
		if [ "$found" = "$version" ]; then
			echo "${hashes[$arch]}  $deb" | sha256sum --check --quiet || fail "libc6 $version for $arch does not have the expected hash"
		fi
		mkdir "$work/root"
		unpack "$deb" "$work/root"
		mv "$work/root" "$target/root"
		rm -rf "$work"
		trap - EXIT
	fi
	found=$(sed -n 's/^Version: //p' "$target/root/var/lib/dpkg/status.d/libc6")
	[ "$found" = "$version" ] || echo "libc.sh: using libc6 $found, because Debian no longer has $version: image digests differ from those of the release" >&2
}

print=
[ "${1-}" != --print ] || { print=yes; shift; }
[ $# -gt 0 ] || fail "usage: scripts/libc.sh [--print] ARCH..."
for arch in "$@"; do
	[ -n "${hashes[$arch]-}" ] || fail "the architecture $arch is not supported: use one of ${!hashes[*]}"
	if [ -n "$print" ]; then echo "$cache/$version-$arch/root"; else install_one "$arch"; fi
done
