package bootstrap

import (
	"slices"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"google.golang.org/protobuf/types/known/structpb"
)

// Flags that depend on the Envoy, or on the rest of its bootstrap.
const (
	coalesceFlag  = "envoy.reloadable_features.coalesce_lb_rebuilds_on_batch_update"
	allocatedFlag = "envoy.reloadable_features.fixed_heap_use_allocated"
)

// firstToCoalesce is the version with which the flag came; an earlier one complains of it.
var firstToCoalesce = [2]int{1, 38}

// KnowsAllFlags says whether the Envoy that is to start knows all runtime flags.
func (c Config) KnowsAllFlags() bool {
	return c.Envoy == [2]int{} || slices.Compare(c.Envoy[:], firstToCoalesce[:]) >= 0
}

// defaultRuntime are the flags that a mesh proxy needs otherwise than Envoy has them: those of Istio's agent.
func defaultRuntime(c Config) map[string]*structpb.Value {
	flags := map[string]*structpb.Value{
		// Routes of a mesh are regular expressions that its users write; Envoy's own limit of 100 is too low for them.
		"re2.max_program_size.error_level": structpb.NewStringValue("32768"),
		// Istio's control plane captures outbound traffic with this field of listeners.
		"envoy.deprecated_features:envoy.config.listener.v3.Listener.hidden_envoy_deprecated_use_original_dst": structpb.NewBoolValue(true),
		// A path with a fragment is stripped, not refused, so that clients that send one go on working.
		"envoy.reloadable_features.http_reject_path_with_fragment": structpb.NewBoolValue(false),
	}
	if c.KnowsAllFlags() {
		// Envoy's issue 45212: with it, endpoints that came with others in one update may be left out of load balancing.
		flags[coalesceFlag] = structpb.NewBoolValue(false)
	}
	if c.MemoryLimit == 0 {
		// For whoever adds a heap monitor of his own. The agent's is to keep the container within its limit, where memory
		// counts that Envoy has freed and not given back.
		flags[allocatedFlag] = structpb.NewBoolValue(true)
	}
	return flags
}

// layeredRuntime has the defaults under the user's values, and the admin interface over both. An empty value takes a
// default away. The limit of connections is not a runtime flag here: the overload manager has it.
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
