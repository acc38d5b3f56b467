package translate

import (
	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// proxyConfigName is what the one resource is called; Istio's control plane gives it no name.
const proxyConfigName = "mesh"

// ProxyConfig is what the mesh has to say to all agents: the roots that its members trust.
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

// proxyConfigKey is all that it depends on.
type proxyConfigKey struct{ mesh *meshconfig.MeshConfig }
