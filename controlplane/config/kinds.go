package config

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/pilotfish-mesh/pilotfish/internal/suggest"
)

// Kinds returns the kinds that the control plane supports, in a fixed order.
func Kinds() []Kind {
	return []Kind{
		Service, ServiceEntry, WorkloadEntry, VirtualService, DestinationRule, Gateway, Sidecar,
		PeerAuthentication, AuthorizationPolicy, RequestAuthentication, EnvoyFilter, WorkloadGroup, ProxyConfig, Telemetry,
		WasmPlugin, Secret, Pod, EndpointSlice, Node, Namespace,
	}
}

// IsSecurity reports whether the kind belongs to Istio's security API group.
func (k Kind) IsSecurity() bool { return kinds[k].group == securityGroup }

// IstioKinds returns the kinds of Istio's API groups, in a fixed order.
func IstioKinds() []Kind {
	return slices.DeleteFunc(Kinds(), func(k Kind) bool { return kinds[k].message == nil })
}

// APIVersions returns the supported apiVersions of the kind, the preferred one first.
func (k Kind) APIVersions() []string {
	info := kinds[k]
	list := slices.Clone(info.versions)
	for i, v := range list {
		if info.group != "" {
			list[i] = info.group + "/" + v
		}
	}
	return list
}

// NewSpec returns an empty spec of the kind. It returns nil if the kind is not in Istio's API groups.
func (k Kind) NewSpec() protoreflect.ProtoMessage {
	if kinds[k].message == nil {
		return nil
	}
	return kinds[k].message.New().Interface()
}

// kindInfo describes a kind that has an effect.
type kindInfo struct {
	group    string // "" is the Kubernetes core group
	versions []string
	message  protoreflect.MessageType // type of the spec; nil for objects of Kubernetes
	validate func(s validator, spec protoreflect.ProtoMessage)
}

const (
	networkingGroup = "networking.istio.io"
	securityGroup   = "security.istio.io"
	telemetryGroup  = "telemetry.istio.io"
	extensionsGroup = "extensions.istio.io"
	discoveryGroup  = "discovery.k8s.io"
)

var (
	networkingVersions = []string{"v1", "v1beta1", "v1alpha3"}
	securityVersions   = []string{"v1", "v1beta1"}
	telemetryVersions  = []string{"v1", "v1alpha1"}
	extensionsVersions = []string{"v1alpha1"}
)

var kinds = map[Kind]kindInfo{
	Service:             {group: "", versions: []string{"v1"}},
	Secret:              {group: "", versions: []string{"v1"}},
	Pod:                 {group: "", versions: []string{"v1"}},
	Node:                {group: "", versions: []string{"v1"}},
	Namespace:           {group: "", versions: []string{"v1"}},
	EndpointSlice:       {group: discoveryGroup, versions: []string{"v1"}},
	VirtualService:      istioKind(networkingGroup, networkingVersions, validateVirtualService),
	DestinationRule:     istioKind(networkingGroup, networkingVersions, validateDestinationRule),
	Gateway:             istioKind(networkingGroup, networkingVersions, validateGateway),
	ServiceEntry:        istioKind(networkingGroup, networkingVersions, validateServiceEntry),
	WorkloadEntry:       istioKind(networkingGroup, networkingVersions, validateWorkloadEntry),
	Sidecar:             istioKind(networkingGroup, networkingVersions, validateSidecar),
	PeerAuthentication:  istioKind(securityGroup, securityVersions, validatePeerAuthentication),
	AuthorizationPolicy: istioKind(securityGroup, securityVersions, validateAuthorizationPolicy),

	RequestAuthentication: istioKind(securityGroup, securityVersions, validateRequestAuthentication),
	EnvoyFilter:           istioKind(networkingGroup, networkingVersions, validateEnvoyFilter),
	WorkloadGroup:         istioKind(networkingGroup, networkingVersions, validateWorkloadGroup),
	ProxyConfig:           istioKind(networkingGroup, networkingVersions, validateProxyConfig),
	Telemetry:             istioKind(telemetryGroup, telemetryVersions, validateTelemetry),
	WasmPlugin:            istioKind(extensionsGroup, extensionsVersions, validateWasmPlugin),
}

func istioKind[M protoreflect.ProtoMessage](group string, versions []string, validate func(validator, M)) kindInfo {
	var zero M
	return kindInfo{
		group: group, versions: versions, message: zero.ProtoReflect().Type(),
		validate: func(s validator, spec protoreflect.ProtoMessage) { validate(s, spec.(M)) },
	}
}

// inertKinds lists the kinds of Kubernetes' core group that the parser skips, because they have no effect on the mesh.
// It also skips all kinds of other API groups, except Istio's.
var inertKinds = []string{
	"ServiceAccount", "ConfigMap", "Endpoints", "PersistentVolume", "PersistentVolumeClaim",
	"ReplicationController", "LimitRange", "ResourceQuota", "PodTemplate", "Event", "Binding", "ComponentStatus",
}

// unsupportedKinds lists, by API group, kinds that have an effect in other meshes, but not with this control plane.
var unsupportedKinds = map[string][]string{
	extensionsGroup:    {"TrafficExtension"},
	"install.istio.io": {"IstioOperator"},
	"gateway.networking.k8s.io": {
		"GatewayClass", "Gateway", "HTTPRoute", "GRPCRoute", "TLSRoute", "TCPRoute", "UDPRoute", "ReferenceGrant", "BackendTLSPolicy",
		"XListenerSet", "ListenerSet",
	},
	"gateway.networking.x-k8s.io": {"XListenerSet", "XBackendTrafficPolicy", "XMesh"},
}

// topologyGroup is the API group of this project's topology files. Such a file may be in the configuration directory.
const topologyGroup = "pilotfish"

// isInert reports whether the parser skips documents of the kind: group and kind are those of an inert kind of the core
// group, or of a topology file of this project.
func isInert(group, kind string) bool {
	return group == "" && slices.Contains(inertKinds, kind) || kind == "Mesh" && strings.Contains(group, topologyGroup)
}

func isUnsupported(group, kind string) bool { return slices.Contains(unsupportedKinds[group], kind) }

// isMeshGroup reports whether an unknown kind of the API group is an error. This is so in Kubernetes' core group and in
// Istio's groups, where the kind is probably misspelt.
func isMeshGroup(group string) bool { return group == "" || strings.HasSuffix(group, ".istio.io") }

// isMisspelledGroup reports whether the API group resembles one of Istio's groups.
func isMisspelledGroup(group string) bool {
	groups := []string{networkingGroup, securityGroup, telemetryGroup, extensionsGroup}
	return suggest.ClosestWithin(group, groups, 3) != ""
}

// kindRemedy returns the remedy for an unknown kind of a group for which isMeshGroup is true.
func kindRemedy(group, kind string) string {
	var names []string
	for name, info := range kinds {
		if info.group == group {
			names = append(names, string(name))
		}
	}
	names = append(names, unsupportedKinds[group]...)
	if group == "" {
		names = append(names, inertKinds...)
	}
	if match := suggest.Name(kind, names); match != "" || group == "" {
		return didYouMean(kind, names)
	}
	for _, other := range Kinds() {
		if suggest.Name(kind, []string{string(other)}) != "" {
			return fmt.Sprintf("did you mean %s, with apiVersion %s?", other, strings.Join(other.APIVersions(), ", "))
		}
	}
	return didYouMean(kind, names)
}

// splitAPIVersion returns the group and version of an apiVersion. "v1" has the group "".
func splitAPIVersion(apiVersion string) (group, version string) {
	if group, version, ok := strings.Cut(apiVersion, "/"); ok {
		return group, version
	}
	return "", apiVersion
}
