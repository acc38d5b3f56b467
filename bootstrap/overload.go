package bootstrap

import (
	"fmt"
	"math"
	"strconv"

	overloadv3 "github.com/envoyproxy/go-control-plane/envoy/config/overload/v3"
	downstreamv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/resource_monitors/downstream_connections/v3"
	fixedheapv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/resource_monitors/fixed_heap/v3"
	"google.golang.org/protobuf/proto"
)

const (
	maxConnectionsRuntime  = "overload.global_downstream_max_connections"
	maxConnectionsMetadata = "GLOBAL_DOWNSTREAM_MAX_CONNECTIONS"
)

const (
	heapMonitor       = "envoy.resource_monitors.fixed_heap"
	connectionMonitor = "envoy.resource_monitors.global_downstream_max_connections"
)

// heapActions are what Envoy does as its heap fills up, the mildest first: give freed pages back to the kernel, ask
// clients to go elsewhere with their next request, and refuse requests. What is under way goes on.
var heapActions = []struct {
	name   string
	filled float64
}{
	{"envoy.overload_actions.shrink_heap", 0.90},
	{"envoy.overload_actions.disable_http_keepalive", 0.95},
	{"envoy.overload_actions.stop_accepting_requests", 0.98},
}

// besidesHeap is what agent and Envoy use besides Envoy's heap: some 10 MB each when idle, and some room to be wrong.
const besidesHeap = 24 << 20

// overloadManager bounds the connections of all listeners together, and the heap where the memory is limited. Envoy
// warns at start when nothing bounds its connections.
func overloadManager(c Config, a *anys) *overloadv3.OverloadManager {
	limit, err := maxConnections(c)
	if err != nil {
		a.fail(err)
		return nil
	}
	m := &overloadv3.OverloadManager{ResourceMonitors: []*overloadv3.ResourceMonitor{
		monitor(connectionMonitor, &downstreamv3.DownstreamConnectionsConfig{MaxActiveDownstreamConnections: limit}, a),
	}}
	if c.MemoryLimit == 0 {
		return m
	}
	m.ResourceMonitors = append(m.ResourceMonitors,
		monitor(heapMonitor, &fixedheapv3.FixedHeapConfig{MaxHeapSizeBytes: heapLimit(c.MemoryLimit)}, a))
	for _, action := range heapActions {
		m.Actions = append(m.Actions, &overloadv3.OverloadAction{
			Name: action.name,
			Triggers: []*overloadv3.Trigger{{
				Name: heapMonitor,
				TriggerOneof: &overloadv3.Trigger_Threshold{
					Threshold: &overloadv3.ThresholdTrigger{Value: action.filled},
				},
			}},
		})
	}
	return m
}

func monitor(name string, config proto.Message, a *anys) *overloadv3.ResourceMonitor {
	return &overloadv3.ResourceMonitor{
		Name:       name,
		ConfigType: &overloadv3.ResourceMonitor_TypedConfig{TypedConfig: a.of(config)},
	}
}

// heapLimit is the part of a container's memory that Envoy's heap may fill. The heap is watched, and not the container,
// whose figure has the kernel's file cache in it, and so looks full when nothing is the matter.
func heapLimit(memory uint64) uint64 {
	return max(memory-min(memory, max(besidesHeap, memory/10)), memory/2, 1)
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
