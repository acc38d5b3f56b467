#!/usr/bin/env bash
# Builds Istio's control plane and its agent for the tests of e2e/istio into the cache, unless they are there.
#
#   scripts/istiod.sh [--print]     --print only prints the path of the control plane
#
# e2e/istio/istiod/go.mod pins the version and all dependencies. The first build takes minutes. The cache is
# $XDG_CACHE_HOME/pilotfish/istiod, by default ~/.cache/pilotfish/istiod, with a folder per version of that go.mod.
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
# Without optimisation, the build takes a quarter less time.
work=$(mktemp -d "$(dirname "$target")/.build.XXXXXX")
trap 'rm -rf "$work"' EXIT
(cd "$module" && GOWORK=off CGO_ENABLED=0 go build -tags disable_pgv -gcflags 'all=-N -l -dwarf=false' -ldflags '-s -w' -o "$work/" istio.io/istio/pilot/cmd/pilot-discovery istio.io/istio/pilot/cmd/pilot-agent)
# The injector's templates, which the installation puts into the cluster, and the files of the agent's image.
source=$(cd "$module" && go list -m -f '{{.Dir}}' istio.io/istio)
chart=$source/manifests/charts/istio-control/istio-discovery
cp -f "$chart/values.yaml" "$chart/files/"{,gateway-}injection-template.yaml "$source/tools/packaging/common/envoy_bootstrap.json" \
	"$(dirname "$target")"
mv -f "$work/pilot-agent" "$(dirname "$target")"
mv -f "$work/pilot-discovery" "$target"
