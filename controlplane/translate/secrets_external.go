package translate

import (
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
)

const (
	// credentialCluster is the cluster of the SDS server on credentialSocket, with Istio's name.
	credentialCluster = "sds-external"
	// credentialSocket is the path, relative to Envoy's directory, of a socket on which an SDS server of the user may
	// listen. If it does, the agent reports this in the metadata field credentialMetadata.
	credentialSocket   = "./var/run/secrets/credential-uds/socket"
	credentialMetadata = "credential"
)

// hasCredentialSocket reports whether an SDS server of the user listens on the proxy's credential socket.
func (p *Proxy) hasCredentialSocket() bool { return p.Metadata[credentialMetadata] == "true" }

// isExternal reports whether an SDS server of the user provides the certificate. The server is on the proxy's
// credential socket, or is an extension provider. Other certificates are in Secrets.
func (v proxyView) isExternal(credentialName string) bool {
	if _, ok := config.ExternalCredential(credentialName); !ok {
		return false
	}
	service, _ := snapshot.SDSService(v.s.Mesh)
	return v.p.hasCredentialSocket() || service != ""
}

// externalSecret returns a reference to a secret at an SDS server of the user: to a certificate, or to CA certificates
// if suffix is authoritySuffix. As in Istio, the server on the credential socket takes precedence over an extension
// provider, and receives the name with its scheme. externalSecret returns nil if the provider's service is not visible
// to the proxy.
func (v proxyView) externalSecret(credentialName, suffix string) *tlsv3.SdsSecretConfig {
	if v.p.hasCredentialSocket() {
		return socketSecret(credentialName + suffix)
	}
	cluster, host, ok := v.providerCluster(snapshot.SDSService(v.s.Mesh))
	if !ok {
		return nil
	}
	name, _ := config.ExternalCredential(credentialName)
	return secretFrom(name+suffix, grpcService(cluster, host))
}

// socketSecret returns a reference to a secret of the SDS server on the credential socket.
func socketSecret(name string) *tlsv3.SdsSecretConfig {
	return secretFrom(name, grpcService(credentialCluster, ""))
}

func secretFrom(name string, server *corev3.GrpcService) *tlsv3.SdsSecretConfig {
	return &tlsv3.SdsSecretConfig{Name: name, SdsConfig: &corev3.ConfigSource{
		ResourceApiVersion: corev3.ApiVersion_V3,
		ConfigSourceSpecifier: &corev3.ConfigSource_ApiConfigSource{ApiConfigSource: &corev3.ApiConfigSource{
			ApiType: corev3.ApiConfigSource_GRPC, TransportApiVersion: corev3.ApiVersion_V3, SetNodeOnFirstMessageOnly: true,
			GrpcServices: []*corev3.GrpcService{server},
		}},
	}}
}

// credentialClusters returns the cluster of the SDS server on the proxy's credential socket, if there is one.
func (v proxyView) credentialClusters() []*clusterv3.Cluster {
	if !v.p.hasCredentialSocket() {
		return nil
	}
	c := &clusterv3.Cluster{
		Name: credentialCluster, AltStatName: statName(credentialCluster), ConnectTimeout: v.s.Mesh.GetConnectTimeout(),
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}, Metadata: clusterNameMetadata(credentialCluster),
		LoadAssignment: &endpointv3.ClusterLoadAssignment{ClusterName: credentialCluster, Endpoints: []*endpointv3.LocalityLbEndpoints{{
			LbEndpoints: []*endpointv3.LbEndpoint{{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{
				Address: &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: credentialSocket}}},
			}}}},
		}}},
	}
	setHTTPOptions(c, plainHTTPOptions(true))
	return []*clusterv3.Cluster{c}
}
