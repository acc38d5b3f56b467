#!/usr/bin/env bash
# Builds Consul, a peer in tests, from its Go module into the cache, unless it is there.
#
#   scripts/consul.sh [--print]     --print only prints the path of the program
#
# internal/consultest/server/go.mod pins the version and all dependencies. 1.14 is the last version with an open-source licence
# (MPL 2.0) whose dependencies all have one. The cache is $XDG_CACHE_HOME/pilotfish/consul, by default
# ~/.cache/pilotfish/consul, with a folder per version of that go.mod.
set -euo pipefail

module=$(cd "$(dirname "$0")/../internal/consultest/server" && pwd)
sum=$(cat "$module/go.mod" "$module/go.sum" | sha256sum | cut -c1-16)
target=${XDG_CACHE_HOME:-$HOME/.cache}/pilotfish/consul/$sum/consul

if [ "${1:-}" = --print ]; then
	echo "$target"
	exit
fi
[ ! -x "$target" ] || exit 0
echo "consul.sh: building Consul, once (2 minutes on two processors)" >&2
mkdir -p "$(dirname "$target")"
work=$(mktemp -d "$(dirname "$target")/.build.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$module"
export GOWORK=off CGO_ENABLED=0

# copy_module copies the module with the path $1 into a folder $2 that the build uses instead.
copy_module() {
	go mod download "$1"
	(cd "$(go list -m -f '{{.Dir}}' "$1")" && tar -c --exclude=./ui --exclude=./website --exclude=./test --exclude='*_test.go' .) | tar -x --mode=u+w -C "$(mkdir -p "$work/$2" && echo "$work/$2")"
	go mod edit -replace "$1=$work/$2" "$work/go.mod"
}

# The clients of clouds and of Kubernetes are half of the code, and no test uses them. The copies omit them.
cp go.mod go.sum "$work/"
copy_module github.com/hashicorp/consul consul
copy_module github.com/hashicorp/go-discover discover
sed -i -e '/go-discover\/provider\//d' -e '/\.Provider{},$/d' "$work/discover/discover.go"
cat >"$work/discover/provider/k8s/k8s_discover.go" <<-EOF
	package k8s

	import "log"

	type Provider struct{}

	func (*Provider) Addrs(map[string]string, *log.Logger) ([]string, error) { return nil, nil }
	func (*Provider) Help() string                                           { return "" }
EOF
rm "$work"/consul/agent/consul/authmethod/kubeauth/*.go
echo "package kubeauth" >"$work/consul/agent/consul/authmethod/kubeauth/kubeauth.go"

# Without optimisation, the build takes less time.
go build -modfile "$work/go.mod" -gcflags 'all=-N -l -dwarf=false' -ldflags '-s -w' -o "$work/program" github.com/hashicorp/consul
mv -f "$work/program" "$target"
