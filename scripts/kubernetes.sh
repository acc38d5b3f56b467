#!/usr/bin/env bash
# Builds Kubernetes, for the tests of e2e/kubernetes, into the cache, unless it is there: etcd, API server, controllers,
# scheduler, kubelet and kubectl, which are one program of several names.
#
#   scripts/kubernetes.sh [--print]     --print only says which folder they are in
#
# e2e/kubernetes/components/go.mod pins it and all that it is made of. The first time takes minutes; what is built is named
# for that module, and kept in $XDG_CACHE_HOME/pilotfish/kubernetes, by default ~/.cache/pilotfish/kubernetes.
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
