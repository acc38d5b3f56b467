package translate

import (
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
)

// credential is a Secret that a rule names for its callers, and what of it one of them may have. Its name is empty where the
// rule names none, or is not for this caller: at sidecars only rules count in this that say which.
type credential struct {
	name                     string
	certificate, authorities bool
}

func (c outbound) credentialOf(s *snapshot.Snapshot, p *Proxy) credential {
	if c.rule == nil || !s.AnyCredentialed() || p.Type == Sidecar && !c.rule.Selective() {
		return credential{}
	}
	settings := c.rule.Traffic(c.subset, c.port).TLS
	name := settings.GetCredentialName()
	if name == "" || !originates(settings) {
		return credential{}
	}
	v := view{s: s, p: p}
	return credential{name: name, certificate: v.certificate(name) != nil, authorities: v.authorities(name) != nil}
}

// originating is TLS with what the settings name; nil where that cannot be had.
func (c outbound) originating(settings *networking.ClientTLSSettings) *tlsv3.CommonTlsContext {
	common := &tlsv3.CommonTlsContext{TlsParams: tlsWithin(c.mesh.GetTlsDefaults())}
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

// nowhere has nobody to call. A cluster that waits for a certificate would hold up all that comes after it.
func nowhere(c *clusterv3.Cluster) *clusterv3.Cluster {
	return &clusterv3.Cluster{
		Name: c.GetName(), AltStatName: c.GetAltStatName(), ConnectTimeout: c.GetConnectTimeout(), Metadata: c.GetMetadata(),
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
	}
}
