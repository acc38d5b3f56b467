#!/usr/bin/env bash
# Builds Istio's control plane, and its agent beside it, for the tests of e2e/istio into the cache, unless they are there.
#
#   scripts/istiod.sh [--print]     --print only says where the control plane is
#
# e2e/istio/istiod/go.mod pins it and all that it is made of. The first time takes minutes; what is built is named
# for that file, and kept in $XDG_CACHE_HOME/pilotfish/istiod, by default ~/.cache/pilotfish/istiod.
set -euo pipefail

module=$(cd "$(dirname "$0")/../e2e/istio/istiod" && pwd)
sum=$(cat "$module/go.mod" "$module/go.sum" | sha256sum | cut -c1-16)
target=${XDG_CACHE_HOME:-$HOME/.cache}/pilotfish/istiod/$sum/istiod

if [ "${1:-}" = --print ]; then
	echo "$target"
	exit
fi
[ ! -x "$target" ] || exit 0
echo "istiod.sh: building istiod, once (4 minutes on two processors)" >&2
mkdir -p "$(dirname "$target")"
# Not optimised, which takes a quarter less time to build.
work=$(mktemp -d "$(dirname "$target")/.build.XXXXXX")
trap 'rm -rf "$work"' EXIT
(cd "$module" && GOWORK=off CGO_ENABLED=0 go build -tags disable_pgv -gcflags 'all=-N -l -dwarf=false' -ldflags '-s -w' -o "$work/" istio.io/istio/pilot/cmd/pilot-discovery istio.io/istio/pilot/cmd/pilot-agent)
# What its installation puts into the cluster for the injector, and its image beside the agent.
source=$(cd "$module" && go list -m -f '{{.Dir}}' istio.io/istio)
chart=$source/manifests/charts/istio-control/istio-discovery
cp -f "$chart/values.yaml" "$chart/files/"{,gateway-}injection-template.yaml "$source/tools/packaging/common/envoy_bootstrap.json" \
	"$(dirname "$target")"
mv -f "$work/pilot-agent" "$(dirname "$target")"
mv -f "$work/pilot-discovery" "$target"
