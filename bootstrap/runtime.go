package bootstrap

import (
	"fmt"
	"math"
	"strconv"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	overloadv3 "github.com/envoyproxy/go-control-plane/envoy/config/overload/v3"
	downstreamv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/resource_monitors/downstream_connections/v3"
	"google.golang.org/protobuf/types/known/structpb"
)

const (
	maxConnectionsRuntime  = "overload.global_downstream_max_connections"
	maxConnectionsMetadata = "GLOBAL_DOWNSTREAM_MAX_CONNECTIONS"
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

// overloadManager bounds the connections of all listeners together. Envoy warns at start when nothing does.
func overloadManager(c Config, a *anys) *overloadv3.OverloadManager {
	limit, err := maxConnections(c)
	if err != nil {
		a.fail(err)
		return nil
	}
	return &overloadv3.OverloadManager{ResourceMonitors: []*overloadv3.ResourceMonitor{{
		Name: "envoy.resource_monitors.global_downstream_max_connections",
		ConfigType: &overloadv3.ResourceMonitor_TypedConfig{
			TypedConfig: a.of(&downstreamv3.DownstreamConnectionsConfig{MaxActiveDownstreamConnections: limit}),
		},
	}}}
}

// maxConnections is ProxyConfig's connectionSettings, or else the metadata's, or else the runtime value's, or no limit.
func maxConnections(c Config) (int64, error) {
	if set := c.ProxyConfig.GetConnectionSettings().GetGlobalDownstreamConnectionLimit(); set != nil {
		return positive("connectionSettings.globalDownstreamConnectionLimit", strconv.Itoa(int(set.GetValue())))
	}
	if set, ok := c.Metadata[maxConnectionsMetadata].(string); ok && set != "" {
		return positive("ISTIO_META_"+maxConnectionsMetadata, set)
	}
	if set := c.ProxyConfig.GetRuntimeValues()[maxConnectionsRuntime]; set != "" {
		return positive("runtimeValues: "+maxConnectionsRuntime, set)
	}
	return math.MaxInt32, nil
}

func positive(name, text string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n <= 0 {
		return 0, fmt.Errorf("%s: %q is not a number of connections; give a whole number over 0", name, text)
	}
	return n, nil
}
