# `make demo` and `make test` install everything that they need. `make help` lists all targets.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VERSION ?= $(shell git describe --tags --match 'v*' 2>/dev/null | sed 's/^v//' | grep . || echo 0.1.0-dev)
COMMIT  ?= $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)$(shell git diff --quiet HEAD 2>/dev/null || echo -dirty)
# Read once, so that all files of a release have the same.
VERSION := $(VERSION)
COMMIT  := $(COMMIT)
PKG     := github.com/pilotfish-mesh/pilotfish
# Builds gRPC without golang.org/x/net/trace, whose templates use 3 MB of memory in each pod.
TAGS    := grpcnotrace
LDFLAGS := -s -w -X $(PKG)/version.Version=$(VERSION) -X $(PKG)/version.Commit=$(COMMIT)
GO_BUILD = CGO_ENABLED=0 go build -trimpath -buildvcs=false -tags '$(TAGS)' -ldflags '$(LDFLAGS)'

# The Envoy version that the project targets, and the older versions that the tests also cover.
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
build: check-tools ## build all binaries into bin/ (static, stripped)
	@mkdir -p bin
	@$(GO_BUILD) -o bin/ $(addprefix ./cmd/,$(BINARIES))

.PHONY: envoy
envoy: ## install the pinned Envoy versions (1.40.0; for tests 1.38.3 and 1.36.4) into the cache
	@scripts/envoy.sh $(ENVOY_VERSION) $(OLD_ENVOY_VERSIONS)

.PHONY: istiod
istiod: ## build istiod, a peer in tests, into the cache (4 minutes the first time)
	@scripts/istiod.sh

.PHONY: apiserver
apiserver: ## build Kubernetes without nodes for tests into the cache (5 minutes the first time)
	@scripts/kubernetes.sh controlplane

.PHONY: consul
consul: ## build Consul, a peer in tests, into the cache (2 minutes the first time)
	@scripts/consul.sh

.PHONY: unbound
unbound: ## install Debian's unbound, a peer in tests, if possible
	@scripts/unbound.sh

.PHONY: iptables
iptables: ## install Debian's iptables, nftables and iproute2 for tests, if possible
	@scripts/iptables.sh

.PHONY: promtool
promtool: ## install Debian's promtool for tests into the cache, if possible
	@scripts/promtool.sh

.PHONY: containerd
containerd: ## install Debian's containerd, runc and CNI plugins for tests into the cache, if possible
	@scripts/containerd.sh

.PHONY: libc
libc: ## fetch Debian's C library for the sidecar image into the cache, if possible
	@scripts/libc.sh "$$(go env GOARCH)" || echo "make libc: without the C library, the images are not tested" >&2

.PHONY: rpm
rpm: ## install Debian's rpm for tests, if possible
	@scripts/rpm.sh

.PHONY: packages
packages: build ## build the .deb and .rpm for virtual machines into dist/
	@scripts/packages.sh bin "$$(go env GOARCH)" '$(VERSION)' dist

# Builds the programs of a release. GOAMD64 and GOARM64 have fixed values, because the environment may set others.
.PHONY: programs
programs: check-tools
	@for arch in amd64 arm64; do mkdir -p bin/$$arch; \
		GOOS=linux GOARCH=$$arch GOAMD64=v1 GOARM64=v8.0 $(GO_BUILD) -o bin/$$arch/ $(addprefix ./cmd/,$(BINARIES)); done

.PHONY: images
images: programs ## build the container images as OCI archives into dist/ (PUSH=REPOSITORY also pushes them)
	@ENVOY_VERSION=$(ENVOY_VERSION) COMMIT=$(COMMIT) scripts/images.sh bin '$(VERSION)' dist $(if $(PUSH),--push '$(PUSH)')

.PHONY: release
release: programs ## build programs, packages, images, SBOM and checksums for amd64 and arm64 into dist/, which it empties first
	@rm -rf dist
	@ENVOY_VERSION=$(ENVOY_VERSION) COMMIT=$(COMMIT) scripts/release.sh bin '$(VERSION)' dist

.PHONY: release-check
release-check: release ## build the release again from a copy of the sources, and compare the bytes
	@scripts/release-check.sh '$(VERSION)' '$(COMMIT)' dist

.PHONY: demo
demo: build ## run the example mesh until Ctrl-C (DEMO_FLAGS adds flags)
	@case '$(DEMO_FLAGS)' in *--envoy-path*) ;; *) [ -n "$${ENVOY_PATH:-}" ] || bin/pilotfish envoy >/dev/null 2>&1 || scripts/envoy.sh $(ENVOY_VERSION);; esac
	@bin/pilotfish demo $(DEMO_FLAGS)

.PHONY: test
test: lint vulncheck build envoy istiod apiserver consul unbound iptables promtool rpm libc containerd ## run lint, the vulnerability check, unit tests and end-to-end tests
	@echo "== tests"
	@PILOTFISH_TEST_BIN=$(CURDIR)/bin go test -timeout 6m ./...
	@scripts/test-module.sh e2e/oauth ./...
	@PILOTFISH_TEST_BIN=$(CURDIR)/bin scripts/test-module.sh e2e/peers ./...
	@PILOTFISH_TEST_BIN=$(CURDIR)/bin scripts/test-module.sh e2e/sandbox ./...

# Packages whose tests are excluded from `make check`, because they take long or start many processes.
SLOW_PACKAGES := agent|bench.*|bootstrap|cmd/pilotfish|cni|cni/install|controlplane|controlplane/translate|controlplane/xds|e2e.*|envoy|internal/testcluster|iptables/nft|iptables/verify|iptables/xtables|mesh|mesh/demo|status|xdsproxy

.PHONY: check
check: lint envoy ## run lint and the quick unit tests (under 3 minutes)
	@echo "== quick tests"
	@go test -short -vet=off -timeout 2m $$(go list ./... | grep -vE '^$(PKG)/($(SLOW_PACKAGES))$$')

.PHONY: kubernetes
kubernetes: build envoy iptables containerd ## test the CNI plugin in a real Kubernetes cluster (10 minutes more the first time)
	@scripts/kubernetes.sh controlplane node
	@PILOTFISH_TEST_BIN=$(CURDIR)/bin scripts/test-module.sh e2e/kubernetes -count=1 -timeout 30m ./...

.PHONY: lint
lint: check-tools ## check the format, run go vet and staticcheck
	@echo "== gofmt"; bad=$$(gofmt -l $$(git ls-files '*.go')); [ -z "$$bad" ] || { echo "not formatted: $$bad; run gofmt -w" >&2; exit 1; }
	@echo "== go vet"; go vet ./...
	@echo "== staticcheck"; $(LINT) ./...

.PHONY: tidy
tidy: check-tools ## update go.mod and go.sum of all modules in this repository
	@for dir in . e2e/oauth e2e/peers e2e/sandbox e2e/kubernetes tools; do echo "== $$dir"; (cd $$dir && go mod tidy); done

.PHONY: vulncheck
vulncheck: check-tools ## check for known vulnerabilities that the code reaches; prints a note if the database is unreachable
	@echo "== govulncheck"; scripts/vulncheck.sh

.PHONY: bench
bench: build envoy ## measure start-up, memory, requests per second and p99
	@go run ./bench -bin bin -envoy-version $(ENVOY_VERSION)

.PHONY: clean
clean: ## remove bin/ and dist/
	@rm -rf bin dist
