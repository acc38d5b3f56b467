#!/usr/bin/env bash
# Runs apt-get for the other scripts. It updates the package lists only if the present ones do not suffice, and waits while
# another package manager holds the locks, as on a machine that has just booted.
#
#   scripts/apt.sh install PACKAGE...     as root
#   scripts/apt.sh download PACKAGE...    the .deb files into the current directory
set -euo pipefail

# apt_get repeats apt-get for up to 5 minutes while another process holds one of its locks, and prints all other errors.
# DPkg::Lock::Timeout does not suffice: it does not wait for the lock of the package lists.
apt_get() {
	local said tries
	for ((tries = 0; ; tries++)); do
		said=$(LC_ALL=C DEBIAN_FRONTEND=noninteractive apt-get -qq -o APT::Sandbox::User=root "$@" 2>&1) && return
		if [[ $said != *"Could not get lock"* ]] || ((tries == 100)); then
			printf '%s\n' "$said" >&2
			return 1
		fi
		((tries > 0)) || echo "apt.sh: another package manager is running; waiting up to 5 minutes until it ends" >&2
		sleep 3
	done
}

case "${1-}" in
install) todo=(install -y --no-install-recommends "${@:2}") ;;
download) todo=(download "${@:2}") ;;
*)
	echo "usage: scripts/apt.sh install|download PACKAGE..." >&2
	exit 2
	;;
esac
apt_get "${todo[@]}" || { apt_get update && apt_get "${todo[@]}"; }
