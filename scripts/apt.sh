#!/usr/bin/env bash
# apt-get for the other scripts: with fresh package lists only where the ones at hand do not do, and with patience where
# another package manager is at work, as on a machine that has just been started.
#
#   scripts/apt.sh install PACKAGE...     as root
#   scripts/apt.sh download PACKAGE...    the .deb files into the current directory
set -euo pipefail

# apt_get runs apt-get again for as long as another holds one of its locks, but for 5 minutes at most. It shows what
# apt-get said of anything else. DPkg::Lock::Timeout would wait for one of the locks only, not for that of the lists.
apt_get() {
	local said tries
	for ((tries = 0; ; tries++)); do
		said=$(LC_ALL=C DEBIAN_FRONTEND=noninteractive apt-get -qq -o APT::Sandbox::User=root "$@" 2>&1) && return
		if [[ $said != *"Could not get lock"* ]] || ((tries == 100)); then
			printf '%s\n' "$said" >&2
			return 1
		fi
		((tries > 0)) || echo "apt.sh: another package manager is at work, waiting for it, for 5 minutes at most" >&2
		sleep 3
	done
}

case "${1-}" in
install) todo=(install -y --no-install-recommends "${@:2}") ;;
download) todo=(download "${@:2}") ;;
*)
	echo "apt.sh: install or download, and the packages" >&2
	exit 2
	;;
esac
apt_get "${todo[@]}" || { apt_get update && apt_get "${todo[@]}"; }
