#!/usr/bin/env bash
# Installs Debian's unbound, unless it is there. Tests compare DNS answers with its answers and are skipped without it.
set -euo pipefail

command -v unbound >/dev/null && exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
	echo "unbound.sh: the program unbound is missing, so the tests that compare DNS answers with unbound are skipped: install the package unbound" >&2
	exit 0
fi
echo "unbound.sh: installing unbound" >&2
# With RUNLEVEL=1, the installation starts no service.
RUNLEVEL=1 "$(dirname "$0")/apt.sh" install unbound
