package snapshot

import "github.com/pilotfish-mesh/pilotfish/controlplane/registry"

// RefuseDefault returns the reason why a proxy does not connect to the defaultEndpoint of a document, or the zero value
// if it does. Documents of the proxy's own namespace and of the mesh's root namespace may name ports of applications on
// the proxy's loopback addresses.
func (s *Snapshot) RefuseDefault(endpoint, documentNamespace, proxyNamespace string) registry.Refusal {
	switch {
	case endpoint == "":
		return registry.Refusal{}
	case s.MayNameLocal(documentNamespace, proxyNamespace):
		return s.Registry.Options().RefuseOwn(endpoint)
	}
	return s.Registry.Options().RefuseForeign(endpoint)
}

// MayNameLocal reports whether a document may name files and loopback ports on the proxy's machine. Only documents in
// the proxy's own namespace and in the mesh's root namespace may.
func (s *Snapshot) MayNameLocal(documentNamespace, proxyNamespace string) bool {
	return documentNamespace == proxyNamespace || documentNamespace == s.Mesh.GetRootNamespace()
}
