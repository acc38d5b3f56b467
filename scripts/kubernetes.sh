#!/usr/bin/env bash
# Builds Kubernetes for tests into the cache, unless it is there. A program contains several components; the name of the
# link that starts it selects the component.
#
#   scripts/kubernetes.sh [--print] [controlplane | node]...
#
#   controlplane   etcd, kube-apiserver, kube-controller-manager: what `make test` needs (default)
#   node           kube-scheduler, kubelet, kube-proxy, kubectl: what `make kubernetes` needs as well
#   --print        only prints the folder of the components
#
# e2e/kubernetes/components/go.mod pins the version and all dependencies. The first build takes minutes. The cache is
# $XDG_CACHE_HOME/pilotfish/kubernetes, by default ~/.cache/pilotfish/kubernetes, with a folder per version of that module.
set -euo pipefail

module=$(cd "$(dirname "$0")/../e2e/kubernetes/components" && pwd)
sum=$(cat "$module"/{go.mod,go.sum,controlplane/main.go,node/main.go} | sha256sum | cut -c1-16)
target=${XDG_CACHE_HOME:-$HOME/.cache}/pilotfish/kubernetes/$sum
declare -A components=(
	[controlplane]='etcd kube-apiserver kube-controller-manager'
	[node]='kube-scheduler kubelet kube-proxy kubectl'
)

if [ "${1:-}" = --print ]; then
	echo "$target"
	exit
fi
[ $# -gt 0 ] || set -- controlplane
for program in "$@"; do
	[ -n "${components[$program]:-}" ] || { echo "kubernetes.sh: $program is not one of: ${!components[*]}" >&2; exit 2; }
	[ ! -x "$target/$program" ] || continue
	echo "kubernetes.sh: building $program of Kubernetes, once (5 minutes on two processors)" >&2
	mkdir -p "$target"
	work=$(mktemp -d "$target/.build.XXXXXX")
	trap 'rm -rf "$work"' EXIT
	# Without optimisation, the build takes a quarter less time. With the same flags as in istiod.sh, it reuses packages.
	version=$(cd "$module" && GOWORK=off go list -m -f '{{.Version}}' k8s.io/kubernetes)
	(cd "$module" && GOWORK=off CGO_ENABLED=0 go build -gcflags 'all=-N -l -dwarf=false' -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$version" -o "$work/" "./$program")
	for name in ${components[$program]}; do
		ln -sf "$program" "$target/$name"
	done
	mv -f "$work/$program" "$target/$program"
	rm -rf "$work"
done
