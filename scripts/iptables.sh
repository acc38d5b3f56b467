#!/usr/bin/env bash
# Installs the Debian packages that the tests of redirection use, unless they are there:
#
#   iptables   both back ends and both families, compared with redirection by nftables
#   nftables   nft, which prints the rules in the kernel
#   iproute2   ip, which creates network and mount namespaces
#   curl       a program whose traffic is redirected
#   uidmap     group IDs of ordinary users in user namespaces
#
# If a package cannot be installed, the tests that need it are skipped. The script creates no rules. The tests create rules
# in their own network namespaces only.
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
	echo "iptables.sh: programs are missing, so some tests of redirection are skipped: install the packages ${missing[*]}" >&2
	exit 0
fi
echo "iptables.sh: installing ${missing[*]}" >&2
"$(dirname "$0")/apt.sh" install "${missing[@]}"
