package config

import (
	"slices"
	"strings"
)

// Code names a kind of finding. A code keeps its meaning for good: pipelines and annotations refer to it. Codes that go
// are not given again.
type Code string

// What a document by itself can have wrong.
const (
	Unreadable     Code = "PF0001"
	NoSuchKind     Code = "PF0002"
	NoSuchField    Code = "PF0003"
	InvalidValue   Code = "PF0004"
	DuplicateName  Code = "PF0005"
	NoEffect       Code = "PF0006"
	KindNoEffect   Code = "PF0007"
	Questionable   Code = "PF0008"
	UnsafeToIgnore Code = "PF0009"
	MeshConfigBad  Code = "PF0010"
	CertificateOut Code = "PF0011"
	AmbiguousWord  Code = "PF0012"
)

// References that lead nowhere.
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
)

// Documents that contradict each other.
const (
	HostTaken          Code = "PF0201"
	UnreachableRoute   Code = "PF0202"
	RuleShadowed       Code = "PF0203"
	GatewayOverlap     Code = "PF0204"
	GatewayPortMixed   Code = "PF0205"
	ServiceHostTaken   Code = "PF0206"
	SharedAddress      Code = "PF0207"
	SeveralOfOne       Code = "PF0208"
	DuplicateSubset    Code = "PF0209"
	WeightsUnlike      Code = "PF0210"
	GatewayHostMissing Code = "PF0211"
	PortProtocols      Code = "PF0212"
)

// What selects nothing.
const (
	SelectsNothing Code = "PF0301"
	PortOfNobody   Code = "PF0302"
)

// Mutual TLS and policies that defeat each other.
const (
	PlaintextToStrict    Code = "PF0401"
	StrictWithoutSidecar Code = "PF0402"
	MutualToPlaintext    Code = "PF0403"
	PrincipalsUnprovable Code = "PF0404"
	RequestUnverified    Code = "PF0405"
	HTTPRuleOnTCP        Code = "PF0406"
)

// What only shows when Envoy has it.
const (
	RejectedByEnvoy Code = "PF0901"
	PatchLeftOut    Code = "PF0902"
)

// CodeInfo says what a code means, for people.
type CodeInfo struct {
	Code    Code   `json:"code"`
	Name    string `json:"name"`
	Meaning string `json:"meaning"`
	Remedy  string `json:"remedy"`
}

// Codes are all codes, in order.
func Codes() []CodeInfo { return slices.Clone(codes) }

// ExplainCode gives what is to be said of a code, written in any case.
func ExplainCode(code string) (CodeInfo, bool) {
	i := slices.IndexFunc(codes, func(c CodeInfo) bool { return strings.EqualFold(string(c.Code), code) })
	if i < 0 {
		return CodeInfo{}, false
	}
	return codes[i], true
}

var codes = []CodeInfo{
	{Unreadable, "unreadable", "A file or document cannot be read: its syntax, its encoding or its size.", "Mend the syntax at the place that is named."},
	{NoSuchKind, "no such kind", "The document is of no known kind or API version, or has no name.", "Correct apiVersion, kind or metadata.name."},
	{NoSuchField, "no such field", "A field does not exist in this kind.", "Correct its spelling or its indentation."},
	{InvalidValue, "invalid value", "A value is missing, is of the wrong type, is out of range, or contradicts another of the document.", "Give a value as the remedy says."},
	{DuplicateName, "duplicate name", "Two documents have the same kind, namespace and name; the first one counts.", "Rename or remove one."},
	{NoEffect, "no effect", "The document is in force, and something it says is not done here.", "Remove it, or use what the remedy names."},
	{KindNoEffect, "kind without effect", "The document was read and is of a kind that has no effect here.", "Nothing: it is fine to keep it."},
	{Questionable, "questionable", "The document is in force, and something in it hardly does what its author expects.", "Look at the field that is named."},
	{UnsafeToIgnore, "unsafe to ignore", "A field has no effect here, and without it a door would stand open that its author believes shut; the document is refused.", "Do it as the remedy says."},
	{MeshConfigBad, "mesh configuration refused", "The file of the mesh configuration is refused; what it said before stays in force.", "Mend the file."},
	{CertificateOut, "certificate out of its time", "A certificate of a Secret has ended, or is not good yet: who checks it refuses the connection.", "Put in a certificate that is good now."},
	{AmbiguousWord, "ambiguous word", "A word without quotes (yes, no, on, off, y, n) that is true or false for kubectl and Istio, which read YAML 1.1, and text for others.", "Put it in quotes where text is meant; write true or false where that is."},

	{UnknownHost, "unknown host", "A rule, or an ExternalName, names a host that no Service or ServiceEntry has: what is routed there is answered with 503, and a rule for it has no effect.", "Correct the host, or add a Service or ServiceEntry."},
	{UnknownPort, "unknown port", "A rule names a port that the service does not have, or a Sidecar one that none of those has which it is to lead to, or an alias one that its service lacks.", "Use one of the service's ports."},
	{UnknownSubset, "unknown subset", "A route names a subset that no DestinationRule in force for the host defines: what is routed there is answered with 503.", "Define the subset, or correct its name."},
	{UnknownGateway, "unknown gateway", "A VirtualService is bound to a Gateway that does not exist.", "Correct the name (namespace/name), or add the Gateway."},
	{HiddenHost, "hidden host", "The host exists, and its exportTo hides it from the namespace of the document that names it.", "Extend the service's exportTo, or move the rule to a namespace that sees it."},
	{SubsetWithoutEndpoints, "subset without endpoints", "The service has endpoints, and none of them has the labels of the subset: what is routed there is answered with 503.", "Correct the subset's labels, or those of the workloads."},
	{UnknownDelegate, "unknown delegate", "A VirtualService delegates to one that does not exist, or that may not be delegated to.", "Correct the delegate's name and namespace; a delegate has no hosts and no gateways."},
	{UnknownCredential, "unknown credential", "A certificate is named that is not there.", "Add the Secret, or correct its name."},
	{UnknownIdentity, "unknown identity", "A policy names a namespace or service account that no known workload has.", "Correct the name; the form of a principal is TRUST-DOMAIN/ns/NAMESPACE/sa/SERVICE-ACCOUNT."},
	{KeysNotFetched, "keys not fetched", "The keys of a token issuer cannot be fetched; those from before stay in use, and without any all its tokens are refused.", "Make the address reachable for the control plane, correct it, or give the keys in jwks."},
	{UnknownProvider, "unknown provider", "A policy or Telemetry names an extension provider that the mesh configuration does not define, or that cannot be reached: what a policy's rules match is denied; logs, traces and metrics are not made.", "Add the provider to extensionProviders of the mesh configuration, or correct its name."},

	{HostTaken, "host taken", "Two VirtualServices have routes for one host; sidecars follow the older one only.", "Put all routes of the host into one VirtualService, or delegate."},
	{UnreachableRoute, "unreachable route", "A route or match is never reached: one before it takes all that it matches, or it is for a gateway, a port or requests of a delegating route that do not come to it.", "Move the more special match first, correct what it asks for, or remove it."},
	{RuleShadowed, "rule shadowed", "Two DestinationRules of one namespace have a traffic policy for one host; that of the older one counts.", "Join them into one DestinationRule."},
	{GatewayOverlap, "gateways overlap", "Two servers of Gateways for the same proxies claim one host on one port; the older one has it.", "Give the host to one of them."},
	{GatewayPortMixed, "gateway port mixed", "Two servers of Gateways for the same proxies use one port with protocols that cannot share it.", "Use another port for one of them."},
	{ServiceHostTaken, "service host taken", "Two services claim one host; the older one has it.", "Join them, or limit each to its namespace by exportTo."},
	{SharedAddress, "shared address", "Two services have one address: connections to a TCP port that both have go to one of the two, by its rules.", "Give one of them another address."},
	{SeveralOfOne, "several of one", "Several documents apply to the same workloads where one counts; the oldest is in force.", "Join them, or tell them apart by selector."},
	{DuplicateSubset, "duplicate subset", "Two DestinationRules of one namespace define a subset of one name for one host; the older one's counts.", "Rename or remove one."},
	{WeightsUnlike, "weights unlike 100", "The weights of a route do not add up to 100. They are taken as proportions.", "Make them add up to 100, if percentages were meant."},
	{GatewayHostMissing, "gateway without the host", "A VirtualService is bound to a Gateway none of whose servers has its hosts: its routes are not served there.", "Add the host to the Gateway's server, or bind the VirtualService to another Gateway."},
	{PortProtocols, "port of two protocols", "Two services of the same workloads list one of their ports with different protocols: it speaks that of the service whose host comes first by name.", "Give both the same protocol, or each a port of its own."},

	{SelectsNothing, "selects nothing", "The selector matches no workload and no service that is known: the document has no effect.", "Correct the labels or the namespace."},
	{PortOfNobody, "port of nobody", "A policy names a port that none of the selected workloads serves.", "Use the port of the workload (targetPort), not that of the service."},

	{PlaintextToStrict, "plaintext to strict", "A DestinationRule has callers use plaintext, or TLS of their own, where the workloads accept mutual TLS only: the calls fail.", "Remove trafficPolicy.tls, or use ISTIO_MUTUAL; or make the PeerAuthentication PERMISSIVE."},
	{StrictWithoutSidecar, "strict without sidecar", "STRICT mutual TLS is asked of a workload that has no sidecar: nobody enforces it.", "Give the workload a sidecar (label security.istio.io/tlsMode: istio)."},
	{MutualToPlaintext, "mutual TLS to plaintext", "A DestinationRule has callers use the mesh's mutual TLS where no endpoint speaks it: the calls fail.", "Remove trafficPolicy.tls, or give the workloads sidecars."},
	{PrincipalsUnprovable, "principals unprovable", "A policy asks for principals or namespaces of callers where mutual TLS is disabled: no caller can prove one.", "Enable mutual TLS there, or match by ipBlocks."},
	{RequestUnverified, "request unverified", "A policy asks for claims of a token where no RequestAuthentication verifies one: no request has them.", "Add a RequestAuthentication for the same workloads."},
	{HTTPRuleOnTCP, "HTTP rule on TCP", "A policy asks for what only HTTP has, at a port that is not HTTP: an ALLOW rule never matches there (info), a DENY rule matches without regard to it, and refuses connections. Or it asks a provider by HTTP about connections, which are denied.", "Limit the rule to the HTTP ports by to.operation.ports, or name the port http-…."},

	{RejectedByEnvoy, "rejected by Envoy", "An Envoy rejected what was made of these documents; it keeps what it had.", "Look at the documents that are named, beginning with the first."},
	{PatchLeftOut, "patch left out", "A patch of an EnvoyFilter makes something that Envoy would not take: it is left out there, and the others are applied.", "Correct the patch's value, or match only what it fits."},
}

// SuppressAnnotation is the annotation by which a document says which findings about it are known and accepted: codes
// with commas between them, or "*". Errors cannot be suppressed: the document is not in force.
const SuppressAnnotation = "pilotfish.dev/suppress"

// Suppresses says whether a document with these annotations accepts a finding.
func Suppresses(annotations map[string]string, p Problem) bool {
	if p.Severity == Error || len(annotations) == 0 {
		return false
	}
	for item := range strings.SplitSeq(annotations[SuppressAnnotation], ",") {
		if item = strings.TrimSpace(item); item == "*" || item != "" && strings.EqualFold(item, string(p.Code)) {
			return true
		}
	}
	return false
}

// Unsuppressed gives those problems that the documents they are about do not suppress.
func Unsuppressed(problems []Problem, store Store) []Problem {
	return slices.DeleteFunc(problems, func(p Problem) bool {
		r := store.Get(p.Key)
		return r != nil && Suppresses(r.Annotations, p)
	})
}

// usualCode is the code of a problem for which there is none more special.
func usualCode(s Severity) Code {
	if s == Error {
		return InvalidValue
	}
	return Questionable
}
