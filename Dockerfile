# Builds the sidecar image: the agent on the upstream distroless Envoy image, as the pod's user 1337. With --target cni, builds
# the image of the CNI plugin's node agent.
#
#   docker build -t pilotfish/proxy .
#   docker build -t pilotfish/cni --target cni .
#   docker build -t pilotfish/proxy --build-arg ENVOY_IMAGE=envoyproxy/envoy:distroless-v1.40.0@sha256:... .
#
# If ENVOY_IMAGE contains another version of Envoy, also set ENVOY_VERSION.
#
# The default of ENVOY_IMAGE has no digest; docs/container.md explains how to pin it. Programs belong to root, so that the
# pod's user cannot replace them.

ARG ENVOY_IMAGE=envoyproxy/envoy:distroless-v1.40.0

FROM golang:1.26.8@sha256:0f063af2d465d8dcae54cce04278ada488b96f77b42449c8d071e47d016cc65a AS build
ARG VERSION=0.1.0-dev
ARG COMMIT=unknown
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=0 go build -trimpath -buildvcs=false -tags grpcnotrace \
      -ldflags "-s -w -X github.com/pilotfish-mesh/pilotfish/version.Version=${VERSION} -X github.com/pilotfish-mesh/pilotfish/version.Commit=${COMMIT}" \
      -o /out/ ./cmd/pilotfish-agent ./cmd/pilotfish-iptables ./cmd/pilotfish-cni ./cmd/pilotfish-cni-install ./cmd/pilotfish-cni-tombstone
RUN mkdir /empty
# With the version, the agent writes the bootstrap for exactly this Envoy. It warns if ENVOY_IMAGE contains another one.
ARG ENVOY_VERSION=1.40.0
RUN echo "${ENVOY_VERSION}" >/out/envoy.version

# The node agent runs as root, because it changes the node's files and the pods' namespaces. It copies the plugin to the node.
FROM scratch AS cni
COPY --from=build --chown=0:0 --chmod=0755 /out/pilotfish-cni /out/pilotfish-cni-tombstone /opt/cni/bin/
COPY --from=build --chown=0:0 --chmod=0755 /out/pilotfish-cni-install /usr/local/bin/pilotfish-cni-install
# Istio's chart starts the node agent by this name.
COPY --from=build --chown=0:0 --chmod=0755 /out/pilotfish-cni-install /usr/local/bin/install-cni
ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
ENTRYPOINT ["/usr/local/bin/pilotfish-cni-install"]

FROM ${ENVOY_IMAGE}
# The folders that the agent writes to, relative to its working directory. Their parents come first: COPY creates missing
# parents for the user of the copy.
COPY --from=build --chown=0:0 --chmod=0755 /empty/ /etc/istio/
COPY --from=build --chown=0:0 --chmod=0755 /empty/ /var/lib/istio/
COPY --from=build --chown=0:0 --chmod=0755 /empty/ /var/run/secrets/
COPY --from=build --chown=1337:1337 --chmod=0755 /empty/ /etc/istio/proxy/
COPY --from=build --chown=1337:1337 --chmod=0755 /empty/ /etc/istio/config/
COPY --from=build --chown=1337:1337 --chmod=0755 /empty/ /var/lib/istio/data/
COPY --from=build --chown=1337:1337 --chmod=0755 /empty/ /var/run/secrets/workload-spiffe-uds/
COPY --from=build --chown=0:0 --chmod=0755 /out/pilotfish-agent /usr/local/bin/pilotfish-agent
# `pilotfish-agent iptables` executes this program, which starts faster.
COPY --from=build --chown=0:0 --chmod=0755 /out/pilotfish-iptables /usr/local/bin/pilotfish-iptables
COPY --from=build --chown=0:0 --chmod=0755 /out/envoy.version /usr/local/bin/envoy.version
# Injection templates of Istio start the agent by this name.
COPY --from=build --chown=0:0 --chmod=0755 /out/pilotfish-agent /usr/local/bin/pilot-agent
# The agent finds /usr/local/bin/envoy here. ENVOY_PATH would override the binaryPath of a ProxyConfig.
ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
WORKDIR /
USER 1337:1337
ENTRYPOINT ["/usr/local/bin/pilotfish-agent"]
