package translate

import (
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
)

// credential is a Secret that a rule specifies for its callers, and the parts that one caller may use. The name is
// empty if the rule has no Secret or does not apply to this caller. At sidecars only rules with a workloadSelector are
// considered.
type credential struct {
	name                     string
	certificate, authorities bool
}

func (c serviceCluster) resolveCredential(s *snapshot.Snapshot, p *Proxy) credential {
	if c.rule == nil || !s.HasCredentials() || p.Type == Sidecar && !c.rule.IsSelective() {
		return credential{}
	}
	settings := c.rule.Traffic(c.subset, c.port).TLS
	name := settings.GetCredentialName()
	if name == "" || !isTLSOrigination(settings) {
		return credential{}
	}
	v := proxyView{s: s, p: p}
	return credential{name: name, certificate: v.certificateSecret(name) != nil, authorities: v.caSecret(name) != nil}
}

// originationContext returns the TLS context that the settings specify, or nil if its certificates are not available.
func (c serviceCluster) originationContext(settings *networking.ClientTLSSettings) *tlsv3.CommonTlsContext {
	common := &tlsv3.CommonTlsContext{TlsParams: tlsParameters(c.mesh.GetTlsDefaults())}
	mutual, verified := settings.GetMode() == networking.ClientTLSSettings_MUTUAL, !settings.GetInsecureSkipVerify().GetValue()
	names := exactNames(settings.GetSubjectAltNames())
	if name := c.credential.name; name != "" {
		if mutual && !c.credential.certificate || verified && !c.credential.authorities {
			return nil
		}
		if mutual {
			common.TlsCertificateSdsSecretConfigs = []*tlsv3.SdsSecretConfig{kubernetesSecret(name)}
		}
		if verified {
			trusted := validateWith("", names)
			trusted.CombinedValidationContext.ValidationContextSdsSecretConfig = kubernetesSecret(name + authoritySuffix)
			common.ValidationContextType = trusted
		}
		return common
	}
	if mutual && settings.GetCredentialName() != "" {
		return nil
	}
	if mutual {
		common.TlsCertificateSdsSecretConfigs = []*tlsv3.SdsSecretConfig{
			sdsSecret(fileCertificate(settings.GetClientCertificate(), settings.GetPrivateKey())),
		}
	}
	if verified {
		common.ValidationContextType = validateWith(fileRoot(settings.GetCaCertificates(), settings.GetCaCrl()), names)
	}
	return common
}

// stripCluster returns a cluster without endpoints. A cluster that waits for a certificate would block all later
// resources.
func stripCluster(c *clusterv3.Cluster) *clusterv3.Cluster {
	return &clusterv3.Cluster{
		Name: c.GetName(), AltStatName: c.GetAltStatName(), ConnectTimeout: c.GetConnectTimeout(), Metadata: c.GetMetadata(),
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
	}
}
