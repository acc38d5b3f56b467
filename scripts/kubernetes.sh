#!/usr/bin/env bash
# Builds Kubernetes for the tests of e2e/kubernetes into the cache, unless it is there. One program contains etcd, the API
# server, controllers, scheduler, kubelet and kubectl; its name selects the component.
#
#   scripts/kubernetes.sh [--print]     --print only prints the folder of the components
#
# e2e/kubernetes/components/go.mod pins the version and all dependencies. The first build takes minutes. The cache is
# $XDG_CACHE_HOME/pilotfish/kubernetes, by default ~/.cache/pilotfish/kubernetes, with a folder per version of that module.
set -euo pipefail

module=$(cd "$(dirname "$0")/../e2e/kubernetes/components" && pwd)
sum=$(cat "$module"/{go.mod,go.sum,main.go} | sha256sum | cut -c1-16)
target=${XDG_CACHE_HOME:-$HOME/.cache}/pilotfish/kubernetes/$sum

if [ "${1:-}" = --print ]; then
	echo "$target"
	exit
fi
[ ! -e "$target/complete" ] || exit 0
echo "kubernetes.sh: building Kubernetes, once (6 minutes on two processors)" >&2
mkdir -p "$target"
(cd "$module" && GOWORK=off go build -ldflags '-s -w' -o "$target/components" .)
for name in etcd kube-apiserver kube-controller-manager kube-scheduler kubelet kubectl; do
	ln -sf components "$target/$name"
done
touch "$target/complete"
