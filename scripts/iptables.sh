#!/usr/bin/env bash
# Installs Debian's packages that tests of redirection look at the kernel with, unless they are there already: iptables (both
# back ends, both families), with which redirection by nftables is compared, nftables (nft), iproute2 (ip, also for mount and
# network namespaces of tests), curl, the unmodified program, and uidmap, by which ordinary users have groups in user
# namespaces. Where they cannot be installed, what needs them is skipped. No rule is made here, nor anywhere but in the tests'
# own network namespaces.
set -euo pipefail

missing=()
need() { # a program, and the package that has it
	command -v "$1" >/dev/null || PATH=$PATH:/usr/sbin:/sbin command -v "$1" >/dev/null || missing+=("$2")
}
need iptables-restore iptables
need nft nftables
need ip iproute2
need unshare util-linux
need curl curl
need newgidmap uidmap
[ "${#missing[@]}" -gt 0 ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
	echo "iptables.sh: not here, so that redirection is not tested, or not wholly: install the packages ${missing[*]}" >&2
	exit 0
fi
echo "iptables.sh: installing ${missing[*]}" >&2
"$(dirname "$0")/apt.sh" install "${missing[@]}"
