package config

import (
	"slices"
	"strings"
)

// Code identifies a kind of finding. The meaning of a code never changes, because pipelines and annotations refer to
// it. Codes of removed findings are not reused.
type Code string

// Problems of a single document.
const (
	Unreadable          Code = "PF0001"
	NoSuchKind          Code = "PF0002"
	NoSuchField         Code = "PF0003"
	InvalidValue        Code = "PF0004"
	DuplicateName       Code = "PF0005"
	NoEffect            Code = "PF0006"
	KindNoEffect        Code = "PF0007"
	Questionable        Code = "PF0008"
	UnsafeToIgnore      Code = "PF0009"
	MeshConfigRefused   Code = "PF0010"
	CertificateNotValid Code = "PF0011"
	AmbiguousWord       Code = "PF0012"
	SourceUnavailable   Code = "PF0013"
)

// References to objects that do not exist.
const (
	UnknownHost            Code = "PF0101"
	UnknownPort            Code = "PF0102"
	UnknownSubset          Code = "PF0103"
	UnknownGateway         Code = "PF0104"
	HiddenHost             Code = "PF0105"
	SubsetWithoutEndpoints Code = "PF0106"
	UnknownDelegate        Code = "PF0107"
	UnknownCredential      Code = "PF0108"
	UnknownIdentity        Code = "PF0109"
	KeysNotFetched         Code = "PF0110"
	UnknownProvider        Code = "PF0111"
	EndpointRefused        Code = "PF0112"
	PortRequired           Code = "PF0113"
)

// Conflicts between documents.
const (
	HostConflict        Code = "PF0201"
	UnreachableRoute    Code = "PF0202"
	RuleShadowed        Code = "PF0203"
	GatewayOverlap      Code = "PF0204"
	GatewayPortMixed    Code = "PF0205"
	ServiceHostConflict Code = "PF0206"
	SharedAddress       Code = "PF0207"
	MultipleForWorkload Code = "PF0208"
	DuplicateSubset     Code = "PF0209"
	WeightsNot100       Code = "PF0210"
	GatewayHostMissing  Code = "PF0211"
	PortProtocols       Code = "PF0212"
	// PolicyNeverAccepted reports a refused policy of which no version was ever accepted.
	PolicyNeverAccepted Code = "PF0213"
	// GatewayAccountUnknown reports a Gateway's Secret that no proxy receives.
	GatewayAccountUnknown Code = "PF0214"
	CertificateShared     Code = "PF0215"
)

// Selectors that match nothing.
const (
	SelectsNothing Code = "PF0301"
	PortNotServed  Code = "PF0302"
	PortNotExposed Code = "PF0303"
)

// Conflicts of mutual TLS and policies.
const (
	PlaintextToStrict    Code = "PF0401"
	StrictWithoutSidecar Code = "PF0402"
	MutualToPlaintext    Code = "PF0403"
	PrincipalsUnprovable Code = "PF0404"
	RequestUnverified    Code = "PF0405"
	HTTPRuleOnTCP        Code = "PF0406"
	CredentialForSidecar Code = "PF0407"
)

// Findings that depend on Envoy's response.
const (
	RejectedByEnvoy Code = "PF0901"
	PatchSkipped    Code = "PF0902"
)

// CodeInfo describes a code for users.
type CodeInfo struct {
	Code    Code   `json:"code"`
	Name    string `json:"name"`
	Meaning string `json:"meaning"`
	Remedy  string `json:"remedy"`
}

// Codes returns all codes in order.
func Codes() []CodeInfo { return slices.Clone(codes) }

// ExplainCode returns the description of code, in upper or lower case. It returns false if the code is unknown.
func ExplainCode(code string) (CodeInfo, bool) {
	i := slices.IndexFunc(codes, func(c CodeInfo) bool { return strings.EqualFold(string(c.Code), code) })
	if i < 0 {
		return CodeInfo{}, false
	}
	return codes[i], true
}

var codes = []CodeInfo{
	{Unreadable, "unreadable", "A file or document cannot be read, because of its syntax, its encoding or its size.", "Fix the syntax at the reported position."},
	{NoSuchKind, "no such kind", "The control plane does not know the document's kind or API version, or the document has no name.", "Correct apiVersion, kind or metadata.name."},
	{NoSuchField, "no such field", "The document has a field that its kind does not have.", "Correct its spelling or its indentation."},
	{InvalidValue, "invalid value", "A value is missing, is of the wrong type, is out of range, or contradicts another value of the document.", "Set a value that the remedy describes."},
	{DuplicateName, "duplicate name", "Two documents have the same kind, namespace and name; the first one is in force.", "Rename or remove one of them."},
	{NoEffect, "no effect", "The document is in force, but a part of it has no effect here.", "Remove it, or use the replacement in the remedy."},
	{KindNoEffect, "kind without effect", "The document was read, but its kind has no effect here.", "None needed: the document may stay."},
	{Questionable, "questionable", "The document is in force, but a part of it probably does not have the expected effect.", "Check the reported field."},
	{UnsafeToIgnore, "unsafe to ignore", "A field that restricts access has no effect here; the document is refused, because it would permit more than intended.", "Use the replacement in the remedy."},
	{MeshConfigRefused, "mesh configuration refused", "The mesh configuration file is refused; its last accepted version stays in force.", "Fix the file."},
	{CertificateNotValid, "certificate not valid now", "A certificate of a Secret has expired or is not valid yet: peers that verify it refuse the connection.", "Replace it with a certificate that is valid now."},
	{AmbiguousWord, "ambiguous word", "The document contains an unquoted yes, no, on, off, y or n. kubectl and Istio, which use YAML 1.1, read this word as true or false; other parsers read it as text.", "Quote it if text is meant; otherwise write true or false."},
	{SourceUnavailable, "source unavailable", "A configuration source (configSources of the mesh configuration, a Kubernetes cluster, or Consul) is not connected, or has not sent valid documents of all kinds yet. Its last accepted documents stay in force. Proxies receive no configuration before the first ones.", "Check the address, tlsSettings, credentials and permissions of the source, and its log."},

	{UnknownHost, "unknown host", "A rule, or an ExternalName, names a host that no Service or ServiceEntry has: requests that are routed there receive a 503, and a rule for it has no effect.", "Correct the host, or add a Service or ServiceEntry."},
	{UnknownPort, "unknown port", "A rule names a port that the service does not have, a Sidecar names a port that none of its egress hosts has, or an alias has a port that its service does not have.", "Use one of the service's ports."},
	{UnknownSubset, "unknown subset", "A route names a subset that no DestinationRule in force for the host defines: requests that are routed there receive a 503.", "Define the subset, or correct its name."},
	{UnknownGateway, "unknown gateway", "A VirtualService is bound to a Gateway that does not exist.", "Correct the name (namespace/name), or add the Gateway."},
	{HiddenHost, "hidden host", "The host exists, but its exportTo hides it from the namespace of the document that names it.", "Extend the service's exportTo, or move the rule to a namespace that sees it."},
	{SubsetWithoutEndpoints, "subset without endpoints", "The service has endpoints, but none of them has the labels of the subset: requests that are routed there receive a 503.", "Correct the subset's labels, or those of the workloads."},
	{UnknownDelegate, "unknown delegate", "A VirtualService delegates to a VirtualService that does not exist or that cannot be a delegate.", "Correct the delegate's name and namespace; a delegate has no hosts and no gateways."},
	{UnknownCredential, "unknown credential", "The named certificate does not exist, or is a file of a gateway in another namespace.", "Add the Secret, or correct its name."},
	{UnknownIdentity, "unknown identity", "A policy names a namespace or service account that no known workload has.", "Correct the name; the form of a principal is TRUST-DOMAIN/ns/NAMESPACE/sa/SERVICE-ACCOUNT."},
	{KeysNotFetched, "keys not fetched", "The keys of a token issuer cannot be fetched; the previously fetched keys stay in use; if there are none, all tokens of the issuer are refused.", "Make the address reachable for the control plane, correct it, or set the keys in jwks."},
	{UnknownProvider, "unknown provider", "A policy or Telemetry names an extension provider that the mesh configuration does not define, or that cannot be reached: requests that match the policy's rules are denied; logs, traces and metrics are not produced.", "Add the provider to extensionProviders of the mesh configuration, or correct its name."},
	{EndpointRefused, "endpoint refused", "An endpoint leads to a unix socket that the platform does not allow, to a port of the proxy itself or the control plane, or, for a gateway, to its own machine or a link-local or multicast address: proxies do not use it. A host name may resolve to the proxy's own machine, so it cannot have such a port.", "Use an address and a port that other machines reach, or allow the socket (--allow-unix-endpoints) or the network (--allow-local-endpoints)."},
	{PortRequired, "port required", "A route names no port, and its service has several ports, but not the one at which requests arrive: they receive a 503.", "Set the destination's port.number."},

	{HostConflict, "host conflict", "Two VirtualServices have routes for one host; sidecars use only the older one; among equally old ones, the first in name order.", "Put all routes of the host into one VirtualService, or delegate."},
	{UnreachableRoute, "unreachable route", "A route or match is never reached: an earlier one matches all its requests, or its gateway, port or delegating route never sends it requests.", "Move the more specific match first, correct its conditions, or remove it."},
	{RuleShadowed, "rule shadowed", "Two DestinationRules of one namespace have a traffic policy for one host; the policy of the older rule is in force, or of the first in name order.", "Merge them into one DestinationRule."},
	{GatewayOverlap, "gateways overlap", "Two servers of Gateways for the same proxies claim one host on one port; the older one serves it, or the first in name order.", "Remove the host from one of them."},
	{GatewayPortMixed, "gateway port mixed", "Two servers of Gateways for the same proxies use one port with protocols that cannot share it.", "Use another port for one of them."},
	{ServiceHostConflict, "service host conflict", "Two services claim one host; the older one is in force, or the first in namespace order.", "Merge them, or limit each to its namespace by exportTo."},
	{SharedAddress, "shared address", "Two services have the same address and the same TCP port: proxies treat all connections to it as connections to one of the two services.", "Change the address of one of them."},
	{MultipleForWorkload, "several for one workload", "Several documents of one kind apply to the same workloads, but only one of them can be in force: the oldest, or the first in name order.", "Merge them, or use selectors that do not overlap."},
	{DuplicateSubset, "duplicate subset", "Two DestinationRules of one namespace define a subset with the same name for one host; the subset of the older rule is in force, or of the first in name order.", "Rename or remove one of them."},
	{WeightsNot100, "weights not 100", "The weights of a route do not add up to 100. They are used as proportions.", "Make them add up to 100 if they are percentages."},
	{GatewayHostMissing, "gateway without the host", "A VirtualService is bound to a Gateway, but no server of the Gateway has the hosts of the VirtualService: the Gateway does not serve its routes.", "Add the host to the Gateway's server, or bind the VirtualService to another Gateway."},
	{PortProtocols, "port of two protocols", "Two services select the same workloads and specify different protocols for the same port of these workloads: proxies use the protocol of the service whose host is first in alphabetical order.", "Use the same protocol in both, or different ports."},
	{PolicyNeverAccepted, "policy never accepted", "An AuthorizationPolicy or PeerAuthentication is refused, and no version of it was ever accepted. Until it is corrected, all requests to the selected workloads are denied (for a PeerAuthentication: plaintext connections are refused). The policy protects nothing if its selector cannot be read, if none of its targets is a Gateway, or with --on-invalid-policy=ignore.", "Correct the document as its other findings describe."},
	{GatewayAccountUnknown, "gateway account unknown", "The Gateway selects no known workload with a service account in the namespace of its Secret: no proxy receives the Secret, and the server is not available. For a DestinationRule, no Gateway selects such a workload: no gateway receives the Secret, and requests through gateways fail.", "Name the gateway's service account in the Secret's annotation pilotfish.dev/service-accounts, or add a WorkloadEntry of the gateway with its labels and serviceAccount."},
	{CertificateShared, "certificate shared", "Two HTTPS servers of Gateways for the same proxies use one certificate on one port for different hosts. A client may reuse its HTTP/2 connection to one host for the other, and then receives a 404.", "Put the hosts into one server, or use a certificate for each host."},

	{SelectsNothing, "selects nothing", "The document's selector matches no known workload and no known service: the document has no effect. If no workload is known in the namespace, the severity is info.", "Correct the labels or the namespace."},
	{PortNotServed, "port not served", "A policy names a port that none of the selected workloads serves.", "Use the port of the workload (targetPort), not that of the service."},
	{PortNotExposed, "port not exposed", "No Service of a Gateway's workloads has the port of one of its servers: clients that use the Service cannot reach this server.", "Add the port to the Service, or correct it in the Gateway."},

	{PlaintextToStrict, "plaintext to strict", "A DestinationRule makes clients use plaintext, or TLS without the mesh's certificates, but the workloads accept only mutual TLS: the requests fail.", "Remove trafficPolicy.tls, or use ISTIO_MUTUAL; or make the PeerAuthentication PERMISSIVE."},
	{StrictWithoutSidecar, "strict without sidecar", "STRICT mutual TLS is configured for a workload without a sidecar: it is not enforced.", "Add a sidecar to the workload (label security.istio.io/tlsMode: istio)."},
	{MutualToPlaintext, "mutual TLS to plaintext", "A DestinationRule makes clients use the mesh's mutual TLS, but no endpoint supports it: the requests fail.", "Remove trafficPolicy.tls, or add sidecars to the workloads."},
	{PrincipalsUnprovable, "principals unprovable", "A policy matches principals or namespaces of clients, but mutual TLS is disabled for its workloads: clients cannot prove who they are.", "Enable mutual TLS there, or match by ipBlocks."},
	{RequestUnverified, "request unverified", "A policy or a route requires claims of a token, but no RequestAuthentication verifies tokens for its workloads: no request can meet the condition.", "Add a RequestAuthentication for the same workloads."},
	{HTTPRuleOnTCP, "HTTP rule on TCP", "A policy matches HTTP attributes at a port that does not use HTTP: an ALLOW rule never matches at this port (severity info), and a DENY rule ignores these attributes and refuses connections. Or a CUSTOM policy with an HTTP provider applies to a port that does not use HTTP: connections that match it are denied.", "Limit the rule to the HTTP ports by to.operation.ports, or name the port http-…."},
	{CredentialForSidecar, "credential not for sidecars", "A DestinationRule without a workloadSelector has a credentialName: only gateways can use it, and requests from sidecars receive a 503.", "Select the calling workloads with workloadSelector, or export the rule only to the namespace of the gateway."},

	{RejectedByEnvoy, "rejected by Envoy", "An Envoy rejected the resources that were generated from these documents; its previous resources stay in force.", "Check the reported documents, beginning with the first."},
	{PatchSkipped, "patch skipped", "Envoy would reject the result of an EnvoyFilter's patch: the control plane skips the patch for this resource and applies the other patches.", "Correct the patch's value, or restrict its match."},
}

// suppressAnnotation lists the codes of accepted findings about a document, separated by commas, or "*". Errors cannot
// be suppressed, because the document is not in force.
const suppressAnnotation = "pilotfish.dev/suppress"

// Suppresses reports whether annotations, which belong to a document, suppress the finding p about it.
func Suppresses(annotations map[string]string, p Problem) bool {
	if p.Severity == Error || len(annotations) == 0 {
		return false
	}
	for item := range strings.SplitSeq(annotations[suppressAnnotation], ",") {
		if item = strings.TrimSpace(item); item == "*" || item != "" && strings.EqualFold(item, string(p.Code)) {
			return true
		}
	}
	return false
}

// Unsuppressed returns the problems that the annotations of their documents do not suppress. It modifies the slice
// problems.
func Unsuppressed(problems []Problem, store Store) []Problem {
	return slices.DeleteFunc(problems, func(p Problem) bool {
		r := store.Get(p.Key)
		return r != nil && Suppresses(r.Annotations, p)
	})
}

// usualCode returns the code for a problem of the severity that has no specific code.
func usualCode(s Severity) Code {
	if s == Error {
		return InvalidValue
	}
	return Questionable
}
