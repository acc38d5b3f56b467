package bootstrap

import (
	"slices"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/pilotfish-mesh/pilotfish/internal/tlspolicy"
)

// Runtime flags that are set only for some Envoy versions, or only with some configurations.
const (
	coalesceFlag  = "envoy.reloadable_features.coalesce_lb_rebuilds_on_batch_update"
	allocatedFlag = "envoy.reloadable_features.fixed_heap_use_allocated"
	noTLS13Flag   = "envoy.reloadable_features.google_grpc_disable_tls_13"
)

// firstToCoalesce is the first Envoy version that knows coalesceFlag. Earlier versions log a warning about the unknown
// flag.
var firstToCoalesce = [2]int{1, 38}

// KnowsAllFlags reports whether the Envoy version that will start knows all runtime flags that the bootstrap may
// contain.
func (c Config) KnowsAllFlags() bool {
	return c.Envoy == [2]int{} || slices.Compare(c.Envoy[:], firstToCoalesce[:]) >= 0
}

// defaultRuntime returns the runtime flags whose default in Envoy is not suitable for a mesh proxy. Istio's agent sets
// the same values.
func defaultRuntime(c Config) map[string]*structpb.Value {
	flags := map[string]*structpb.Value{
		// Users write the regular expressions in routes, and Envoy's default limit of 100 is too low for many of them.
		"re2.max_program_size.error_level": structpb.NewStringValue("32768"),
		// Istio's control plane uses this field of listeners to capture outbound traffic.
		"envoy.deprecated_features:envoy.config.listener.v3.Listener.hidden_envoy_deprecated_use_original_dst": structpb.NewBoolValue(true),
		// Envoy removes the fragment from a path instead of rejecting the request. Requests of clients that send
		// fragments then succeed.
		"envoy.reloadable_features.http_reject_path_with_fragment": structpb.NewBoolValue(false),
	}
	if c.KnowsAllFlags() {
		// If this flag is true, load balancing may omit some endpoints when one update adds several (Envoy's issue 45212).
		flags[coalesceFlag] = structpb.NewBoolValue(false)
	}
	if c.MemoryLimit == 0 {
		// If this flag is true, a heap monitor that the user configures counts only allocated memory. The heap monitor for
		// MemoryLimit must also count memory that Envoy has freed but not returned to the kernel.
		flags[allocatedFlag] = structpb.NewBoolValue(true)
	}
	if c.TLSPolicy == tlspolicy.FIPS1402 {
		// The policy excludes TLS 1.3. Clients of type google_grpc have no TLS parameters, so only this flag restricts
		// them.
		flags[noTLS13Flag] = structpb.NewBoolValue(true)
	}
	return flags
}

// layeredRuntime returns the runtime layers in order of increasing precedence: the defaults, merged with the user's
// values, and the admin interface. An empty value of the user removes a default. layeredRuntime omits the connection
// limit, because the overload manager enforces that limit.
func layeredRuntime(c Config) *bootstrapv3.LayeredRuntime {
	flags := defaultRuntime(c)
	for name, value := range c.ProxyConfig.GetRuntimeValues() {
		switch value {
		case "":
			delete(flags, name)
		case "true", "false":
			flags[name] = structpb.NewBoolValue(value == "true")
		default:
			flags[name] = structpb.NewStringValue(value)
		}
	}
	delete(flags, maxConnectionsRuntime)
	return &bootstrapv3.LayeredRuntime{Layers: []*bootstrapv3.RuntimeLayer{
		{
			Name: "global config",
			LayerSpecifier: &bootstrapv3.RuntimeLayer_StaticLayer{
				StaticLayer: &structpb.Struct{Fields: flags},
			},
		},
		{
			Name:           "admin",
			LayerSpecifier: &bootstrapv3.RuntimeLayer_AdminLayer_{AdminLayer: &bootstrapv3.RuntimeLayer_AdminLayer{}},
		},
	}}
}
