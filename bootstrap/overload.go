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

// heapActions are the overload actions that Envoy performs while its heap fills, the mildest first: return freed pages
// to the kernel, close connections after the current request, reject requests. filled is the fraction of the heap limit
// at which an action starts. Active requests are not affected.
var heapActions = []struct {
	name   string
	filled float64
}{
	{"envoy.overload_actions.shrink_heap", 0.90},
	{"envoy.overload_actions.disable_http_keepalive", 0.95},
	{"envoy.overload_actions.stop_accepting_requests", 0.98},
}

// nonHeapReserve is the memory that is reserved for the agent, and for Envoy outside of its heap: about 10 MB each when
// idle, and a safety margin.
const nonHeapReserve = 24 << 20

// overloadManager returns a configuration that limits the total number of connections of all listeners and, if there is
// a memory limit, Envoy's heap. Without a connection limit, Envoy would log a warning at start.
func overloadManager(c Config, a *anyBuilder) *overloadv3.OverloadManager {
	limit, _ := maxConnections(c)
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

func monitor(name string, config proto.Message, a *anyBuilder) *overloadv3.ResourceMonitor {
	return &overloadv3.ResourceMonitor{
		Name:       name,
		ConfigType: &overloadv3.ResourceMonitor_TypedConfig{TypedConfig: a.add(config)},
	}
}

// heapLimit returns the maximum size of Envoy's heap for a container's memory limit. Envoy monitors its heap instead of
// the container's memory usage, because the latter includes the kernel's file cache and is often near the limit.
func heapLimit(memory uint64) uint64 {
	return max(memory-min(memory, max(nonHeapReserve, memory/10)), memory/2, 1)
}

// maxConnections returns the first valid limit in ProxyConfig's connectionSettings, the metadata, or the runtime
// values. If there is none, it returns a limit that is never reached. warnings describes the invalid limits, which have
// no effect.
func maxConnections(c Config) (limit int64, warnings []string) {
	var settings, metadata string
	if set := c.ProxyConfig.GetConnectionSettings().GetGlobalDownstreamConnectionLimit(); set != nil {
		settings = strconv.Itoa(int(set.GetValue()))
	}
	metadata, _ = c.Metadata[maxConnectionsMetadata].(string)
	for _, set := range []struct{ name, text string }{
		{"connectionSettings.globalDownstreamConnectionLimit", settings},
		{"ISTIO_META_" + maxConnectionsMetadata, metadata},
		{"runtimeValues: " + maxConnectionsRuntime, c.ProxyConfig.GetRuntimeValues()[maxConnectionsRuntime]},
	} {
		if set.text == "" {
			continue
		}
		n, err := parsePositive(set.name, set.text)
		if err == nil {
			return n, warnings
		}
		warnings = append(warnings, err.Error()+"; the value has no effect")
	}
	return math.MaxInt32, warnings
}

func parsePositive(name, text string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n <= 0 {
		return 0, fmt.Errorf("%s: %q is not a number of connections; use a positive integer", name, text)
	}
	return n, nil
}
