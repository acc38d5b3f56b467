#!/bin/sh
# Creates the user of the agent and its directories. It starts no service: the agent needs Envoy and its settings first.
set -e

if command -v systemd-sysusers >/dev/null; then
	systemd-sysusers /usr/lib/sysusers.d/pilotfish.conf
elif ! getent passwd pilotfish >/dev/null; then
	useradd --system --user-group --home-dir /var/lib/pilotfish --shell /usr/sbin/nologin pilotfish
fi
for dir in . etc etc/istio etc/istio/config etc/istio/proxy var var/run var/run/secrets var/run/secrets/istio var/run/secrets/tokens; do
	install -d -m 0700 -o pilotfish -g pilotfish "/var/lib/pilotfish/$dir"
done
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
	# After an upgrade, running services use the new programs.
	systemctl try-restart pilotfish-agent.service || true
fi
