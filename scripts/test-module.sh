#!/usr/bin/env bash
# Runs the tests of a separate module of this repository.
#
#   scripts/test-module.sh DIRECTORY [FLAG or PACKAGE …]
#
# The go.mod of the module may be older than that of the main module. The go command then updates it, here in a temporary
# copy, so that the test leaves the repository unchanged. `make tidy` updates the files themselves.
set -euo pipefail
cd "$(dirname "$0")/../$1"
shift

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp go.mod go.sum "$work"
go test -mod=mod -modfile="$work/go.mod" "$@"
