package bootstrap

import (
	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"google.golang.org/protobuf/types/known/structpb"
)

// defaultRuntime are the flags that a mesh proxy needs otherwise than Envoy has them.
func defaultRuntime() map[string]*structpb.Value {
	return map[string]*structpb.Value{
		// Routes of a mesh are regular expressions that its users write; Envoy's own limit of 100 is too low for them.
		"re2.max_program_size.error_level": structpb.NewStringValue("32768"),
		// Istio's control plane captures outbound traffic with this field of listeners.
		"envoy.deprecated_features:envoy.config.listener.v3.Listener.hidden_envoy_deprecated_use_original_dst": structpb.NewBoolValue(true),
		// A path with a fragment is stripped, not refused, so that clients that send one go on working.
		"envoy.reloadable_features.http_reject_path_with_fragment": structpb.NewBoolValue(false),
	}
}

// layeredRuntime has the defaults under the user's values, and the admin interface over both. An empty value takes a
// default away. The limit of connections is not a runtime flag here: the overload manager has it.
func layeredRuntime(values map[string]string) *bootstrapv3.LayeredRuntime {
	flags := defaultRuntime()
	for name, value := range values {
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
