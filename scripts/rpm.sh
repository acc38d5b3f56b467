#!/usr/bin/env bash
# Installs Debian's rpm, unless it is there. A test installs the .rpm package with it and is skipped without it.
set -euo pipefail

command -v rpm >/dev/null && exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
	echo "rpm.sh: the program rpm is missing, so the tests of the .rpm package are skipped: install the package rpm" >&2
	exit 0
fi
echo "rpm.sh: installing rpm" >&2
"$(dirname "$0")/apt.sh" install rpm
