package bootstrap

import (
	"slices"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"google.golang.org/protobuf/types/known/structpb"
)

// Flags that depend on the Envoy version or on the rest of the bootstrap.
const (
	coalesceFlag  = "envoy.reloadable_features.coalesce_lb_rebuilds_on_batch_update"
	allocatedFlag = "envoy.reloadable_features.fixed_heap_use_allocated"
)

// firstToCoalesce is the first Envoy version that knows coalesceFlag. Earlier versions log a warning about it.
var firstToCoalesce = [2]int{1, 38}

// KnowsAllFlags reports whether the Envoy version to be started knows all runtime flags of the bootstrap.
func (c Config) KnowsAllFlags() bool {
	return c.Envoy == [2]int{} || slices.Compare(c.Envoy[:], firstToCoalesce[:]) >= 0
}

// defaultRuntime returns the runtime flags for which a mesh proxy needs other values than Envoy's defaults, as Istio's
// agent sets them.
func defaultRuntime(c Config) map[string]*structpb.Value {
	flags := map[string]*structpb.Value{
		// Users write the regular expressions in routes. Envoy's default limit of 100 is too low for them.
		"re2.max_program_size.error_level": structpb.NewStringValue("32768"),
		// Istio's control plane captures outbound traffic with this field of listeners.
		"envoy.deprecated_features:envoy.config.listener.v3.Listener.hidden_envoy_deprecated_use_original_dst": structpb.NewBoolValue(true),
		// Envoy strips the fragment of a path instead of refusing the request, so clients that send one still work.
		"envoy.reloadable_features.http_reject_path_with_fragment": structpb.NewBoolValue(false),
	}
	if c.KnowsAllFlags() {
		// Envoy's issue 45212: with the flag, load balancing may omit endpoints that were batched with others in one
		// update.
		flags[coalesceFlag] = structpb.NewBoolValue(false)
	}
	if c.MemoryLimit == 0 {
		// This applies to a user's own heap monitor. The agent's monitor protects the container's memory limit, which
		// includes freed memory that Envoy has not returned.
		flags[allocatedFlag] = structpb.NewBoolValue(true)
	}
	return flags
}

// layeredRuntime returns the runtime layers: the defaults with the user's values over them, and the admin interface on
// top. An empty value removes a default. The overload manager limits connections, so that runtime flag is removed here.
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
