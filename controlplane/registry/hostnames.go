package registry

import (
	"net/netip"
	"slices"
	"strings"
)

const defaultDomain = "cluster.local"

// Options are the settings of the mesh that the registry uses.
type Options struct {
	// Domain is the suffix of Kubernetes Services' names; "cluster.local" if empty.
	Domain string
	// MeshTrustDomain is the trust domain of the mesh's identities; "cluster.local" if empty.
	MeshTrustDomain string
	// Virtual, if valid, is the IPv4 network of virtual addresses for services without an address, as in Istio for
	// ServiceEntries.
	Virtual netip.Prefix
	// Endpoints restricts the endpoints in documents. To change the policy, set a different pointer: Build compares
	// pointers.
	Endpoints *EndpointPolicy
	// AdminPort and StatusPort are the ports of Envoy's admin interface and of agents; 0 for the default ones.
	AdminPort, StatusPort uint32
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

// ServiceHostname returns the fully qualified name of a Kubernetes Service.
func (o Options) ServiceHostname(name, namespace string) string {
	return name + "." + namespace + ".svc." + o.withDefaults().Domain
}

// ResolveHostname returns the full name of a host. name is its name as written in a document of namespace. As in Istio,
// a name without a dot is a Service of the same namespace. Other names, addresses and "*" are returned unchanged.
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

// Identity returns the SPIFFE ID of the endpoint's workload, or "" if it has no service account.
func (o Options) Identity(e Endpoint) string {
	if e.ServiceAccount == "" {
		return ""
	}
	return "spiffe://" + o.withDefaults().MeshTrustDomain + "/ns/" + e.Namespace + "/sa/" + e.ServiceAccount
}

// ResolveHostname returns the full name of a host. name is its name as written in a document of namespace. Unlike
// Options.ResolveHostname it uses the existing services: it resolves reviews.default, reviews.default.svc, and a bare
// name that is not a Service but a ServiceEntry's host. It does not resolve aliases, because rules for an alias do not
// apply to its service.
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

// HasNamesake reports whether another service has one of the names of service. In this case, the meaning of the name
// depends on which services exist. service may have been removed. Short names are compared across all namespaces.
func (r *Registry) HasNamesake(service *Service) bool {
	names := append([]string{service.Hostname, service.Name}, service.Aliases...)
	// A ServiceEntry may have the fully qualified name of a Service. Short names in documents then refer to the
	// ServiceEntry.
	if name, ok := strings.CutSuffix(service.Hostname, ".svc."+r.opts.withDefaults().Domain); ok {
		short, _, _ := strings.Cut(name, ".")
		names = append(names, short, name, name+".svc")
	}
	for _, name := range names {
		for _, other := range r.byHost[name] {
			if other.Hostname != service.Hostname || overridesService(other, service) {
				return true
			}
		}
		if full, ok := r.aliases[name]; ok && full != service.Hostname {
			return true
		}
	}
	if slices.ContainsFunc(service.AliasServices, r.HasNamesake) {
		return true
	}
	// A ServiceEntry's host without a dot may equal the short name of a Service in the same namespace.
	return !strings.Contains(service.Hostname, ".")
}

// overridesService reports whether entry is a ServiceEntry's service and service a Kubernetes Service with the same
// fully qualified name. While the ServiceEntry exists, rules for other names of the Service apply to the ServiceEntry's
// host.
func overridesService(entry, service *Service) bool { return service.Kubernetes && !entry.Kubernetes }
