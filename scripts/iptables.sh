#!/usr/bin/env bash
# Installs Debian's iptables (both back ends, both families), with which tests compare redirection by nftables, unless it is
# there already. Without it they are skipped. No rule is made here, nor anywhere but in the tests' own network namespaces.
set -euo pipefail

command -v iptables-restore >/dev/null && exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
	echo "iptables.sh: iptables is not here, so redirection by it is not tested: install the package iptables" >&2
	exit 0
fi
echo "iptables.sh: installing iptables" >&2
install() { DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends iptables; }
{ install || { apt-get update -qq && install; }; } >&2
