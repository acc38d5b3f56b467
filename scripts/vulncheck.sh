#!/usr/bin/env bash
# Prints the known vulnerabilities that the code can reach in its dependencies and in Go's standard library.
#
#   scripts/vulncheck.sh [PACKAGE …]     by default ./...
#
# If Go's vulnerability database cannot be reached, the script prints a note and succeeds. VULNCHECK_TIMEOUT limits the check
# (default 10m). VULNCHECK_DB sets another database, such as file:///directory with entries in the OSV format.
set -euo pipefail
cd "$(dirname "$0")/.."

[ $# -gt 0 ] || set -- ./...
limit=${VULNCHECK_TIMEOUT:-10m}
# `go tool` replaces the tool's exit code by 1, so the tool is executed directly.
tool=$(go tool -modfile=tools/go.mod -n govulncheck)

check() {
	timeout -k 10s "$1" "$tool" ${VULNCHECK_DB:+-db "$VULNCHECK_DB"} -tags grpcnotrace "${@:2}"
}

# Checks one small package first, to learn within a second whether the database answers.
code=0
errors=$(check 2m ./version 2>&1 >/dev/null) || code=$?
case $code:$errors in
0:* | 3:*) ;;
*"fetching vulnerabilities"*)
	echo "vulncheck.sh: not checked: the vulnerability database cannot be reached (${errors##*: })" >&2
	exit 0
	;;
124:* | 137:*)
	echo "vulncheck.sh: not checked: the vulnerability database did not answer within 2 minutes" >&2
	exit 0
	;;
*)
	echo "vulncheck.sh: $errors" >&2
	exit 1
	;;
esac

code=0
check "$limit" "$@" || code=$?
case $code in
0) ;;
3) echo "vulncheck.sh: the code reaches known vulnerabilities: update the modules or the Go release that are named above" >&2 ;;
124 | 137) echo "vulncheck.sh: the check did not end within $limit: set VULNCHECK_TIMEOUT" >&2 ;;
*) echo "vulncheck.sh: the check failed" >&2 ;;
esac
exit "$code"
