#!/bin/sh
# Deletes the keys, tokens and stored configuration when the package is purged (deb). The user remains, because files may
# belong to it.
set -e

if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
fi
if [ "$1" = purge ]; then
	rm -rf /var/lib/pilotfish /etc/pilotfish
fi
