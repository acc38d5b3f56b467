# Two commands do everything: `make demo` and `make test`. `make help` lists the rest.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VERSION ?= $(shell git describe --tags --match 'v*' 2>/dev/null | sed 's/^v//' | grep . || echo 0.1.0-dev)
COMMIT  ?= $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)$(shell git diff --quiet HEAD 2>/dev/null || echo -dirty)
PKG     := github.com/pilotfish-mesh/pilotfish
# gRPC without golang.org/x/net/trace, which keeps 3 MB of templates resident in every pod.
TAGS    := grpcnotrace
LDFLAGS := -s -w -X $(PKG)/version.Version=$(VERSION) -X $(PKG)/version.Commit=$(COMMIT)

# The Envoy that the project is built for, and the older ones that go through the same tests.
ENVOY_VERSION      := 1.40.0
OLD_ENVOY_VERSIONS := 1.38.3 1.36.4

BINARIES := pilotfish pilotfish-agent pilotfish-iptables pilotfish-cni pilotfish-cni-install pilotfish-cni-tombstone
LINT     := go tool -modfile=tools/go.mod staticcheck

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

.PHONY: check-tools
check-tools:
	@command -v go >/dev/null || { echo "Go is missing: install Go 1.26 or newer" >&2; exit 1; }

.PHONY: build
build: check-tools ## put all binaries into bin/ (static, stripped)
	@mkdir -p bin
	@CGO_ENABLED=0 go build -trimpath -buildvcs=false -tags '$(TAGS)' -ldflags '$(LDFLAGS)' -o bin/ $(addprefix ./cmd/,$(BINARIES))

.PHONY: envoy
envoy: ## install the pinned Envoys (1.40.0 and, for tests, 1.38.3 and 1.36.4) into the cache
	@scripts/envoy.sh $(ENVOY_VERSION) $(OLD_ENVOY_VERSIONS)

.PHONY: istiod
istiod: ## build Istio's control plane, a peer for tests, into the cache (4 minutes the first time)
	@scripts/istiod.sh

.PHONY: unbound
unbound: ## install Debian's unbound, a peer for tests, where that is possible
	@scripts/unbound.sh

.PHONY: iptables
iptables: ## install Debian's iptables, nftables and iproute2, which tests of redirection use, where that is possible
	@scripts/iptables.sh

.PHONY: promtool
promtool: ## put Debian's promtool, a peer for tests, into the cache, where that is possible
	@scripts/promtool.sh

.PHONY: containerd
containerd: ## put Debian's containerd, runc and CNI plugins, with which tests start pods, into the cache, where that is possible
	@scripts/containerd.sh

.PHONY: demo
demo: build ## bring up the book shop: a whole mesh on this machine; Ctrl-C ends it (DEMO_FLAGS are passed on)
	@case '$(DEMO_FLAGS)' in *--envoy-path*) ;; *) [ -n "$${ENVOY_PATH:-}" ] || bin/pilotfish envoy >/dev/null 2>&1 || scripts/envoy.sh $(ENVOY_VERSION);; esac
	@bin/pilotfish demo $(DEMO_FLAGS)

.PHONY: test
test: lint build envoy istiod unbound iptables promtool containerd ## everything that has to hold: format, vet, lint, unit and end-to-end tests
	@echo "== tests"
	@PILOTFISH_TEST_BIN=$(CURDIR)/bin go test -timeout 6m ./...
	@cd e2e/oauth && go test -mod=mod ./... # a module of its own, whose go.mod may lag behind this one's
	@cd e2e/peers && PILOTFISH_TEST_BIN=$(CURDIR)/bin go test -mod=mod ./...
	@cd e2e/sandbox && PILOTFISH_TEST_BIN=$(CURDIR)/bin go test -mod=mod ./...

.PHONY: kubernetes
kubernetes: build envoy containerd ## the CNI plugin in a real Kubernetes cluster, which is built first (6 minutes the first time)
	@scripts/kubernetes.sh
	@cd e2e/kubernetes && PILOTFISH_TEST_BIN=$(CURDIR)/bin go test -mod=mod -count=1 -timeout 30m ./...

.PHONY: lint
lint: check-tools ## format, vet and static analysis
	@echo "== gofmt"; bad=$$(gofmt -l $$(git ls-files '*.go')); [ -z "$$bad" ] || { echo "not formatted: $$bad; run gofmt -w" >&2; exit 1; }
	@echo "== go vet"; go vet ./...
	@echo "== staticcheck"; $(LINT) ./...

.PHONY: bench
bench: build envoy ## measure: start-up, memory, requests a second and p99, as ratios
	@go run ./bench -bin bin -envoy-version $(ENVOY_VERSION)

.PHONY: clean
clean: ## remove what was built
	@rm -rf bin
