package registry

import (
	"net/netip"
	"slices"
	"strings"
)

const defaultDomain = "cluster.local"

// Options are what the registry needs to know of the mesh.
type Options struct {
	// Domain is the suffix of Kubernetes Services' names; "cluster.local" when empty.
	Domain string
	// MeshTrustDomain is the trust domain of the mesh's identities; "cluster.local" when empty.
	MeshTrustDomain string
	// Virtual, when valid, is a network of IPv4 out of which services without an address get one, as Istio does for
	// ServiceEntries.
	Virtual netip.Prefix
}

func (o Options) withDefaults() Options {
	if o.Domain == "" {
		o.Domain = defaultDomain
	}
	if o.MeshTrustDomain == "" {
		o.MeshTrustDomain = defaultDomain
	}
	return o
}

// ServiceHostname is the full name of a Kubernetes Service.
func (o Options) ServiceHostname(name, namespace string) string {
	return name + "." + namespace + ".svc." + o.withDefaults().Domain
}

// ResolveHostname gives the full name of a host as a document of the namespace writes it, by Istio's rule: a bare name
// is a Service of the same namespace; names with a dot, addresses and "*" stay as they are.
func (o Options) ResolveHostname(name, namespace string) string {
	name = strings.TrimSuffix(name, ".")
	if name == "" || name == "*" || strings.Contains(name, ".") || isAddress(name) {
		return name
	}
	return o.ServiceHostname(name, namespace)
}

func isAddress(name string) bool {
	_, err := netip.ParseAddr(name)
	return err == nil
}

// Identity is the SPIFFE ID that the endpoint's workload has; empty when it has no service account.
func (o Options) Identity(e Endpoint) string {
	if e.ServiceAccount == "" {
		return ""
	}
	return "spiffe://" + o.withDefaults().MeshTrustDomain + "/ns/" + e.Namespace + "/sa/" + e.ServiceAccount
}

// ResolveHostname gives the full name of a host as a document of the namespace writes it. Beyond Options.ResolveHostname
// it knows the services there are: reviews.default and reviews.default.svc are found too, and a bare name that is a
// ServiceEntry's host and no Service. The name of an alias stays its own: rules for it are not rules for the service.
func (r *Registry) ResolveHostname(name, namespace string) string {
	full := r.opts.ResolveHostname(name, namespace)
	if r.byHost[full] != nil || r.targets[full] != "" {
		return full
	}
	name = strings.TrimSuffix(name, ".")
	if r.byHost[name] != nil {
		return name
	}
	if alias, ok := r.aliases[name]; ok {
		return alias
	}
	return full
}

// Namesake says whether another service goes by a name that a service of the present or the past goes by, if only by its
// short one in some namespace: which of the two a document means depends on which there are.
func (r *Registry) Namesake(service *Service) bool {
	names := append([]string{service.Hostname, service.Name}, service.Aliases...)
	// A ServiceEntry may have the full name of a Service, by which documents mean it with the short ones too.
	if name, ok := strings.CutSuffix(service.Hostname, ".svc."+r.opts.withDefaults().Domain); ok {
		short, _, _ := strings.Cut(name, ".")
		names = append(names, short, name, name+".svc")
	}
	for _, name := range names {
		for _, other := range r.byHost[name] {
			if other.Hostname != service.Hostname || standsIn(other, service) {
				return true
			}
		}
		if full, ok := r.aliases[name]; ok && full != service.Hostname {
			return true
		}
	}
	if slices.ContainsFunc(service.AliasServices, r.Namesake) {
		return true
	}
	// A ServiceEntry's host without a dot is what a Service of that name is called in its own namespace.
	return !strings.Contains(service.Hostname, ".")
}

// standsIn says whether a ServiceEntry has the full name of a Service: rules that mean the Service by one of its other names are
// rules of that full name while it is there, and of nothing when it is not.
func standsIn(entry, service *Service) bool { return service.Kubernetes && !entry.Kubernetes }
