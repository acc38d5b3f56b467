package translate

import (
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
)

// credential is a Secret that a DestinationRule specifies for its callers, and the parts of the Secret that one caller
// needs and may use. The name is empty if the rule has no Secret or does not apply to this caller. For sidecars, only
// the Secrets of rules with a workloadSelector are used.
type credential struct {
	name                     string
	certificate, authorities bool
	// external: the SDS server on the proxy's credential socket provides the certificates.
	external bool
}

// reference returns the SDS reference to the certificate if suffix is empty, or to the CA certificates if suffix is
// authoritySuffix.
func (c credential) reference(suffix string) *tlsv3.SdsSecretConfig {
	if c.external {
		return socketSecret(c.name + suffix)
	}
	return kubernetesSecret(c.name + suffix)
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
	if _, external := config.ExternalCredential(name); external && p.hasCredentialSocket() {
		// A gateway does not use its certificates for rules of other namespaces. The author of such a rule could
		// otherwise make the gateway present its certificate to the author's server.
		return credential{name: name, certificate: !c.noFiles, authorities: !c.noFiles, external: true}
	}
	name = config.SecretName(name)
	v := proxyView{s: s, p: p}
	if !v.mayCallWith(name) {
		return credential{name: name}
	}
	mutual := settings.GetMode() == networking.ClientTLSSettings_MUTUAL
	return credential{name: name, certificate: mutual && v.certificateSecret(name) != nil, authorities: v.caSecret(name) != nil}
}

// mayCallWith reports whether the proxy may receive the Secret that is called name and to which a DestinationRule
// refers. Any account of a namespace can connect as a gateway. For a gateway, therefore, a Gateway must select a known
// workload with this account, or the Secret must list the account.
func (v proxyView) mayCallWith(name string) bool {
	return v.p.Type != Router || v.s.IsAnyGatewayAccount(v.p.Namespace, v.p.ServiceAccount) || !v.isUnlisted(name)
}

// originationContext returns the TLS context that the settings specify, or nil if the caller may not use the
// certificates that they require. If noFiles is set, it also returns nil for client certificates in files. These files
// could contain the gateway's own mesh certificate, which rules of other namespaces must not use.
func (c serviceCluster) originationContext(settings *networking.ClientTLSSettings) *tlsv3.CommonTlsContext {
	common := &tlsv3.CommonTlsContext{TlsParams: tlsParameters(c.mesh.GetTlsDefaults())}
	mutual, verified := settings.GetMode() == networking.ClientTLSSettings_MUTUAL, !settings.GetInsecureSkipVerify().GetValue()
	names := exactNames(settings.GetSubjectAltNames())
	if c.credential.name != "" {
		if mutual && !c.credential.certificate || verified && !c.credential.authorities {
			return nil
		}
		if mutual {
			common.TlsCertificateSdsSecretConfigs = []*tlsv3.SdsSecretConfig{c.credential.reference("")}
		}
		if verified {
			trusted := validateWith("", names)
			trusted.CombinedValidationContext.ValidationContextSdsSecretConfig = c.credential.reference(authoritySuffix)
			common.ValidationContextType = trusted
		}
		return common
	}
	if mutual && (settings.GetCredentialName() != "" || c.noFiles) {
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

// stripCluster removes the endpoints of a cluster whose certificate the proxy cannot receive. Otherwise Envoy would
// wait for the certificate, and meanwhile delay all later resources.
func stripCluster(c *clusterv3.Cluster) *clusterv3.Cluster {
	return &clusterv3.Cluster{
		Name: c.GetName(), AltStatName: c.GetAltStatName(), ConnectTimeout: c.GetConnectTimeout(), Metadata: c.GetMetadata(),
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
	}
}
