package snapshot

import (
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshconfig "istio.io/api/mesh/v1alpha1"
)

// WithDefaults returns a copy of the mesh configuration with Istio's defaults for unset fields. m may be nil.
func WithDefaults(m *meshconfig.MeshConfig) *meshconfig.MeshConfig {
	if m == nil {
		m = &meshconfig.MeshConfig{}
	}
	m = proto.Clone(m).(*meshconfig.MeshConfig)
	if m.TrustDomain == "" {
		m.TrustDomain = "cluster.local"
	}
	if m.RootNamespace == "" {
		m.RootNamespace = "istio-system"
	}
	if m.EnableAutoMtls == nil {
		m.EnableAutoMtls = wrapperspb.Bool(true)
	}
	if m.ConnectTimeout == nil {
		m.ConnectTimeout = durationpb.New(10 * time.Second)
	}
	if m.OutboundTrafficPolicy == nil {
		m.OutboundTrafficPolicy = &meshconfig.MeshConfig_OutboundTrafficPolicy{
			Mode: meshconfig.MeshConfig_OutboundTrafficPolicy_ALLOW_ANY,
		}
	}
	if m.ProxyListenPort == 0 {
		m.ProxyListenPort = 15001
	}
	if m.ProxyInboundListenPort == 0 {
		m.ProxyInboundListenPort = 15006
	}
	return m
}
