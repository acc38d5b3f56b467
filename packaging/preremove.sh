#!/bin/sh
# Stops the services before a removal. $1 is "remove" (deb) or 0 (rpm) then; an upgrade leaves them running.
set -e

case "$1" in
remove | 0) ;;
*) exit 0 ;;
esac
if [ -d /run/systemd/system ]; then
	systemctl disable --now pilotfish-redirect.service pilotfish-agent.service || true
elif command -v systemctl >/dev/null; then
	systemctl disable pilotfish-redirect.service pilotfish-agent.service || true
fi
