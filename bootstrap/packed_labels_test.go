package bootstrap

import (
	"encoding/json"
	"testing"

	meshv1 "istio.io/api/mesh/v1alpha1"
)

// TestPackedLabelsAreForReadersThroughTheAgent: the control plane may pack labels only if each reader of the statistics
// reads them through the agent.
func TestPackedLabelsAreForReadersThroughTheAgent(t *testing.T) {
	for name, c := range map[string]struct {
		change  func(*Config)
		packs   bool
		cluster string
	}{
		"default":          {func(*Config) {}, true, agentCluster},
		"disabled":         {func(c *Config) { c.Metadata = map[string]any{unpackMetadata: "false"} }, false, statsCluster},
		"metrics service":  {func(c *Config) { c.ProxyConfig.EnvoyMetricsService = &meshv1.RemoteService{Address: "127.0.0.1:15000"} }, false, statsCluster},
		"statsd":           {func(c *Config) { c.ProxyConfig.StatsdUdpAddress = "127.0.0.1:8125" }, false, statsCluster},
		"another override": {func(c *Config) { c.Override = []byte("{layered_runtime: {layers: [{name: a, static_layer: {}}]}}") }, true, agentCluster},
		"sink in override": {func(c *Config) {
			c.Override = []byte(`{stats_sinks: [{name: envoy.stat_sinks.statsd, typed_config: {"@type": type.googleapis.com/envoy.config.metrics.v3.StatsdSink, tcp_cluster_name: agent}}]}`)
		}, false, agentCluster},
		"custom bootstrap": {func(c *Config) { c.Custom = []byte("{static_resources: {}}") }, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			config := sidecar()
			c.change(&config)
			var got struct {
				Node            struct{ Metadata map[string]any }
				StaticResources struct {
					Listeners []struct {
						FilterChains []struct {
							Filters []struct {
								TypedConfig struct {
									RouteConfig struct {
										VirtualHosts []struct {
											Routes []struct{ Route struct{ Cluster string } }
										} `json:"virtual_hosts"`
									} `json:"route_config"`
								} `json:"typed_config"`
							}
						} `json:"filter_chains"`
					}
				} `json:"static_resources"`
			}
			text, err := Encode(config)
			if err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(text, &got); err != nil {
				t.Fatal(err)
			}
			if flag := got.Node.Metadata[unpackMetadata]; (flag == "true") != c.packs {
				t.Errorf("metadata %v", flag)
			}
			if listeners := got.StaticResources.Listeners; c.cluster != "" {
				if to := listeners[0].FilterChains[0].Filters[0].TypedConfig.RouteConfig.VirtualHosts[0].Routes[0].Route.Cluster; to != c.cluster {
					t.Errorf("the Prometheus port leads to %s", to)
				}
			}
		})
	}
}
