package snapshot

import (
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"
)

// EgressHosts contains the hosts that a Sidecar's egress listeners import. A host is imported if one of the listeners
// imports it.
type EgressHosts struct {
	all       bool
	listeners []listenerHosts
}

// listenerHosts contains the hosts of one egress listener. It imports the hosts that match an item of included and none
// of excluded.
type listenerHosts struct{ included, excluded []egressHost }

type egressHost struct{ namespace, host string }

var allHosts = EgressHosts{all: true}

// NewEgressHosts returns the hosts that the egress listeners of a Sidecar in the namespace import. A Sidecar without
// egress listeners imports all hosts.
func NewEgressHosts(spec *networking.Sidecar, namespace string) EgressHosts {
	if len(spec.GetEgress()) == 0 {
		return allHosts
	}
	var e EgressHosts
	for _, listener := range spec.GetEgress() {
		var hosts listenerHosts
		for _, text := range listener.GetHosts() {
			if h, excluded := parseEgressHost(text, namespace); excluded {
				hosts.excluded = append(hosts.excluded, h)
			} else {
				hosts.included = append(hosts.included, h)
			}
		}
		e.listeners = append(e.listeners, hosts)
	}
	return e
}

// parseEgressHost parses "namespace/host". A leading "~" excludes the host; "~/host" excludes it in all namespaces.
func parseEgressHost(text, ownNamespace string) (h egressHost, excluded bool) {
	namespace, host, ok := strings.Cut(text, "/")
	if !ok {
		namespace, host = "*", text
	}
	namespace, excluded = strings.CutPrefix(namespace, "~")
	switch namespace {
	case "":
		namespace = "*"
	case ".":
		namespace = ownNamespace
	}
	return egressHost{namespace, host}, excluded
}

// Contains reports whether a host is imported. host may be a wildcard. namespace is the namespace of the document that
// defines the host.
func (e EgressHosts) Contains(namespace, host string) bool {
	return e.all || slices.ContainsFunc(e.listeners, func(l listenerHosts) bool { return l.imports(namespace, host) })
}

// imports reports whether the listener imports a host, which may be a wildcard. A wildcard is imported if it overlaps
// an included host, unless one excluded host matches all hosts of the wildcard.
func (l listenerHosts) imports(namespace, host string) bool {
	inNamespace := func(h egressHost) bool { return h.namespace == "*" || h.namespace == namespace }
	return slices.ContainsFunc(l.included, func(h egressHost) bool { return inNamespace(h) && HostsOverlap(h.host, host) }) &&
		!slices.ContainsFunc(l.excluded, func(h egressHost) bool { return inNamespace(h) && MatchHost(h.host, host) })
}
