package analysis

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"slices"
	"strings"
	"time"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/internal/phrase"
)

// checkCertificates reports certificates that have expired or are not valid yet. Its findings contain no content of
// Secrets except these times.
func (c *snapshotCheck) checkCertificates(now time.Time) {
	for _, r := range c.s.Resources(config.Secret) {
		block, _ := pem.Decode(r.Spec.(*config.SecretSpec).Certificate)
		if block == nil {
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			continue
		}
		message := ""
		switch {
		case now.After(cert.NotAfter):
			message = "the certificate expired at " + cert.NotAfter.UTC().Format(time.RFC3339)
		case now.Before(cert.NotBefore):
			message = "the certificate is not valid before " + cert.NotBefore.UTC().Format(time.RFC3339)
		default:
			continue
		}
		c.reportWarning(config.CertificateNotValid, r, config.CertificateField(r), "", message, "replace it by a certificate that is valid now")
	}
}

// checkGateways reports problems of Gateways: their Secrets, the accounts that may use the Secrets, their endpoints and
// their workloads.
func (c *snapshotCheck) checkGateways() {
	for _, g := range c.s.AllGateways() {
		c.selectedNamespaces = c.workloadNamespaces(g.Spec.GetSelector())
		for i, server := range g.Spec.GetServers() {
			field := fmt.Sprintf("spec.servers[%d].tls", i)
			c.checkServerCredentials(g.Resource, field, server.GetTls())
			c.checkGatewayAccounts(g, field, server.GetTls())
		}
		c.checkGatewayEndpoints(g)
		c.checkGatewayWorkloads(g)
	}
}

func (c *snapshotCheck) checkServerCredentials(r *config.Resource, field string, settings *networking.ServerTLSSettings) {
	if name := settings.GetCredentialName(); name != "" {
		c.checkServerCredential(r, field+".credentialName", name, "certificate and key")
	}
	for i, name := range settings.GetCredentialNames() {
		c.checkServerCredential(r, fmt.Sprintf("%s.credentialNames[%d]", field, i), name, "certificate and key")
	}
	if name := settings.GetCaCertCredentialName(); name != "" {
		c.checkServerCredential(r, field+".caCertCredentialName", name, "authorities")
		return
	}
	mutual := settings.GetMode() == networking.ServerTLSSettings_MUTUAL || settings.GetMode() == networking.ServerTLSSettings_OPTIONAL_MUTUAL
	if name := settings.GetCredentialName(); mutual && name != "" && settings.GetCaCertificates() == "" {
		c.checkServerCredential(r, field+".credentialName", name, "authorities")
	}
}

// workloadNamespaces returns the namespaces that contain known workloads with the labels. It returns nil if there are
// none.
func (c *snapshotCheck) workloadNamespaces(labels map[string]string) []string {
	var found []string
	for _, namespace := range c.namespacesOf("", true) {
		if some, _ := c.s.Registry.Workloads(namespace, labels); len(some) > 0 {
			found = append(found, namespace)
		}
	}
	return found
}

// checkClientCredentials reports missing Secrets of a DestinationRule, and files that the rule must not name.
func (c *snapshotCheck) checkClientCredentials(r *config.Resource, field string, policy *networking.TrafficPolicy) {
	c.checkClientCredential(r, field+".tls", policy.GetTls())
	for i, ps := range policy.GetPortLevelSettings() {
		c.checkClientCredential(r, fmt.Sprintf("%s.portLevelSettings[%d].tls", field, i), ps.GetTls())
	}
}

// checkClientFiles reports a DestinationRule with client certificates in files, if a gateway in another namespace calls
// its host: the gateway does not use these files.
func (c *snapshotCheck) checkClientFiles(r *config.Resource, field string, settings *networking.ClientTLSSettings) {
	if settings.GetMode() != networking.ClientTLSSettings_MUTUAL || settings.GetClientCertificate() == "" {
		return
	}
	host := c.s.Registry.ResolveHostname(r.Spec.(*networking.DestinationRule).GetHost(), r.Namespace)
	for _, g := range c.s.AllGateways() {
		if !c.s.MayNameLocal(r.Namespace, g.Namespace) && c.s.RuleVisibleTo(r, g.Namespace) && c.gatewayCalls(g, host) {
			c.reportWarning(config.UnknownCredential, r, field+".clientCertificate", settings.GetClientCertificate(),
				"gateways of another namespace do not use certificates from their files for this rule, so requests through "+g.FullName()+" fail with status 503",
				"move the rule to the namespace of the gateway's workload, or use credentialName")
			return
		}
	}
}

// checkSidecarCredential reports a Secret that sidecars cannot use. If a gateway calls the host, the severity is only
// info, because the Secret may be meant for the gateway.
func (c *snapshotCheck) checkSidecarCredential(r *config.Resource, field string, settings *networking.ClientTLSSettings) {
	spec, mode := r.Spec.(*networking.DestinationRule), settings.GetMode()
	if settings.GetCredentialName() == "" || len(spec.GetWorkloadSelector().GetMatchLabels()) > 0 ||
		mode != networking.ClientTLSSettings_SIMPLE && mode != networking.ClientTLSSettings_MUTUAL {
		return
	}
	host, severity := c.s.Registry.ResolveHostname(spec.GetHost(), r.Namespace), config.Warning
	if slices.ContainsFunc(c.s.AllGateways(), func(g snapshot.Gateway) bool { return c.gatewayCalls(g, host) }) {
		severity = config.Info
	}
	c.report(config.CredentialForSidecar, severity, r, field+".credentialName", settings.GetCredentialName(),
		"without a workloadSelector, only gateways use the Secret: requests from sidecars fail with status 503",
		"select the calling workloads with spec.workloadSelector")
}

// gatewayCalls reports whether a VirtualService of the Gateway has a destination that matches host. host may be a
// wildcard.
func (c *snapshotCheck) gatewayCalls(g snapshot.Gateway, host string) bool {
	for _, v := range c.s.VirtualServicesForGateway(g.FullName(), g.Namespace) {
		for d := range snapshot.Destinations(v.Spec) {
			if snapshot.MatchHost(host, c.s.Registry.ResolveHostname(d.Destination.GetHost(), v.Namespace)) {
				return true
			}
		}
	}
	return false
}

func (c *snapshotCheck) checkClientCredential(r *config.Resource, field string, settings *networking.ClientTLSSettings) {
	c.checkClientFiles(r, field, settings)
	c.checkSidecarCredential(r, field, settings)
	name, message := settings.GetCredentialName(), ""
	_, external := config.ExternalCredential(name)
	name = config.SecretName(name)
	switch {
	case external: // the SDS server may listen on a socket of the proxy
		return
	case name == "":
		return
	case settings.GetMode() == networking.ClientTLSSettings_MUTUAL && !c.anySecret(name, false):
		message = "no Secret with this name has a certificate and key"
	case !settings.GetInsecureSkipVerify().GetValue() && !c.anySecret(name, true):
		message = "no Secret with this name has the CA certificates for the server's certificate"
	default:
		c.checkCallerAccount(r, field+".credentialName", name)
		return
	}
	c.reportMissing(config.UnknownCredential, r, field+".credentialName", name, message, config.MissingObject{Kind: config.Secret, Name: name, Effect: "requests fail with status 503"},
		"add a Secret to the clients' namespace, with the fields that the TLS mode requires: tls.crt and tls.key, ca.crt, or all three")
}

// anySecret reports whether any namespace has a Secret called name with a certificate. If authorities is set, it
// reports whether any namespace has CA certificates for this name.
func (c *snapshotCheck) anySecret(name string, authorities bool) bool {
	candidates := c.secretsNamed(name)
	if authorities {
		candidates = slices.Concat(candidates, c.secretsNamed(strings.TrimSuffix(name, snapshot.CASuffix)), c.secretsNamed(name+snapshot.CASuffix))
	}
	return slices.ContainsFunc(candidates, func(s *config.SecretSpec) bool {
		return authorities && len(s.Authorities) > 0 || !authorities && len(s.Certificate) > 0
	})
}

// secretsNamed returns the Secrets of all namespaces that are called name.
func (c *snapshotCheck) secretsNamed(name string) []*config.SecretSpec {
	if c.secrets == nil {
		c.secrets = map[string][]*config.SecretSpec{}
		for _, r := range c.s.Resources(config.Secret) {
			c.secrets[r.Name] = append(c.secrets[r.Name], r.Spec.(*config.SecretSpec))
		}
	}
	return c.secrets[name]
}

func (c *snapshotCheck) checkServerCredential(r *config.Resource, field, name, part string) {
	authorities := part == "authorities"
	if _, external := config.ExternalCredential(name); external {
		c.checkExternalCredential(r, field, name, authorities)
		return
	}
	name = config.SecretName(name)
	if c.anySecret(name, authorities) {
		c.checkCredentialNamespace(r, field, name, authorities)
		return
	}
	message, remedy := "no Secret with this name has a certificate", "add a Secret with tls.crt and tls.key to the namespace of the proxy's workload"
	if authorities {
		message, remedy = "no Secret has the CA certificates for client certificates", "add ca.crt to the Secret, or a Secret "+name+snapshot.CASuffix
	}
	missing := config.MissingObject{Kind: config.Secret, Name: name, Effect: "the proxy refuses connections to this server"}
	c.reportMissing(config.UnknownCredential, r, field, name, message, missing, remedy)
}

// checkExternalCredential reports a certificate that an SDS server should provide, if that server may be missing. The
// server may listen on a socket of the proxy. The control plane knows of such a server only when the proxy connects.
func (c *snapshotCheck) checkExternalCredential(r *config.Resource, field, name string, authorities bool) {
	service, port := snapshot.SDSService(c.s.Mesh)
	switch {
	case service != "":
		if !c.hasCollector(service, port, r.Namespace) {
			c.reportWarning(config.UnknownProvider, r, field, name, fmt.Sprintf("the service %s of the SDS provider, port %d, is not visible in namespace %s: the proxy refuses connections to this server", service, port, r.Namespace),
				"add a Service or ServiceEntry for the SDS provider, with the provider's port")
		}
	case !c.anySecret(config.SecretName(name), authorities):
		c.report(config.UnknownCredential, config.Info, r, field, name, "the proxy serves this certificate only if an SDS server listens on its socket credential-uds/socket: the mesh configuration has no SDS provider, and no Secret has this name",
			"add an extension provider of type sds, or the Secret "+config.SecretName(name))
	}
}

// checkCredentialNamespace reports a Secret of a server if no namespace with known workloads of the Gateway contains
// the Secret.
func (c *snapshotCheck) checkCredentialNamespace(r *config.Resource, field, name string, authorities bool) {
	has := func(namespace string) bool {
		if authorities {
			return c.s.CACertificates(namespace, strings.TrimSuffix(name, snapshot.CASuffix)) != nil || c.s.CACertificates(namespace, name) != nil
		}
		return c.s.Certificate(namespace, name) != nil
	}
	if len(c.selectedNamespaces) == 0 || slices.ContainsFunc(c.selectedNamespaces, has) {
		return
	}
	where := phrase.List(c.selectedNamespaces)
	c.reportWarning(config.UnknownCredential, r, field, name, "the Secret is not in the namespace of the proxy's workload, which is "+where+", so the proxy refuses connections to this server",
		"add the Secret to the namespace "+where)
}
