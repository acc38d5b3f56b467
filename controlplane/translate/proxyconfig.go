package translate

import (
	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// proxyConfigName is the name of the only resource of its type. In Istio the name is empty.
const proxyConfigName = "mesh"

// ProxyConfig returns the configuration for all agents: the mesh's trusted roots.
func ProxyConfig(s *snapshot.Snapshot) (*xds.Resource, error) {
	return s.Cache.Get(proxyConfigKey{s.Mesh}, func() (*xds.Resource, error) {
		own := &meshconfig.ProxyConfig{}
		for _, root := range s.Mesh.GetCaCertificates() {
			if pem := root.GetPem(); pem != "" {
				own.CaCertificatesPem = append(own.CaCertificatesPem, pem)
			}
		}
		return xds.NewResource(proxyConfigName, own)
	})
}

// proxyConfigKey contains all values on which the proxy configuration depends.
type proxyConfigKey struct{ mesh *meshconfig.MeshConfig }
