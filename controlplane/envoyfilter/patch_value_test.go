package envoyfilter

import (
	"slices"
	"strings"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	redisv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/redis/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// TestMerge checks that merge replaces values, appends lists, and merges google.protobuf.Any fields of the same type.
func TestMerge(t *testing.T) {
	router := func(r *routerv3.Router) *hcmv3.HttpFilter {
		packed, err := anypb.New(r)
		if err != nil {
			t.Fatal(err)
		}
		return &hcmv3.HttpFilter{Name: "router", ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: packed}}
	}
	filter := router(&routerv3.Router{DynamicStats: wrapperspb.Bool(true), SuppressEnvoyHeaders: true})
	merge(filter, router(&routerv3.Router{DynamicStats: wrapperspb.Bool(false), StrictCheckHeaders: []string{"x-envoy-max-retries"}}))
	got := &routerv3.Router{}
	if err := filter.GetTypedConfig().UnmarshalTo(got); err != nil {
		t.Fatal(err)
	}
	if got.GetDynamicStats().GetValue() || !got.GetSuppressEnvoyHeaders() || len(got.GetStrictCheckHeaders()) != 1 {
		t.Errorf("merged: %v", got)
	}
	cluster := &clusterv3.Cluster{ConnectTimeout: durationpb.New(1500 * time.Millisecond), AltStatName: "a"}
	merge(cluster, &clusterv3.Cluster{ConnectTimeout: durationpb.New(2 * time.Second)})
	if cluster.GetConnectTimeout().AsDuration() != 2*time.Second || cluster.GetAltStatName() != "a" {
		t.Errorf("merged: %v", cluster)
	}
}

// TestMergeReplacingLists checks that MERGE_AND_REPLACE_LIST replaces lists, also within the configuration of a filter.
func TestMergeReplacingLists(t *testing.T) {
	router := func(headers ...string) *hcmv3.HttpFilter {
		packed, err := anypb.New(&routerv3.Router{StrictCheckHeaders: headers})
		if err != nil {
			t.Fatal(err)
		}
		return &hcmv3.HttpFilter{Name: "router", ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: packed}}
	}
	for op, want := range map[networking.EnvoyFilter_Patch_Operation][]string{
		networking.EnvoyFilter_Patch_MERGE:                  {"x-envoy-max-retries", "x-envoy-retry-on"},
		networking.EnvoyFilter_Patch_MERGE_AND_REPLACE_LIST: {"x-envoy-retry-on"},
	} {
		p := &patch{op: op, value: router("x-envoy-retry-on")}
		merged, changed, err := mergeElements([]*hcmv3.HttpFilter{router("x-envoy-max-retries")}, p, false, nil)
		if err != nil || !changed {
			t.Fatalf("%s: changed %v, %v", op, changed, err)
		}
		got := &routerv3.Router{}
		if err := merged[0].GetTypedConfig().UnmarshalTo(got); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got.GetStrictCheckHeaders(), want) {
			t.Errorf("%s: the filter has the headers %q, want %q", op, got.GetStrictCheckHeaders(), want)
		}
	}
}

// TestDurationsInGoForm checks that durations in Go's form are read at each depth of a value, and that a text that is
// not a duration is refused at its path.
func TestDurationsInGoForm(t *testing.T) {
	read := func(text string) (*clusterv3.Cluster, error) {
		value := &structpb.Struct{}
		if err := protojson.Unmarshal([]byte(text), value); err != nil {
			t.Fatal(err)
		}
		c := &clusterv3.Cluster{}
		return c, readValue(value, c)
	}
	c, err := read(`{"connect_timeout": "500ms", "cleanupInterval": "1m30s",
		"health_checks": [{"timeout": "1us", "interval": "2s", "interval_jitter": "-1.5s"}], "cluster_type": {"typed_config":
		{"@type": "type.googleapis.com/envoy.extensions.clusters.redis.v3.RedisClusterConfig", "cluster_refresh_rate": "250ms"}}}`)
	if err != nil {
		t.Fatal(err)
	}
	redis := &redisv3.RedisClusterConfig{}
	if err := c.GetClusterType().GetTypedConfig().UnmarshalTo(redis); err != nil {
		t.Fatal(err)
	}
	got := []time.Duration{
		c.GetConnectTimeout().AsDuration(), c.GetCleanupInterval().AsDuration(), c.GetHealthChecks()[0].GetIntervalJitter().AsDuration(),
		c.GetHealthChecks()[0].GetTimeout().AsDuration(), c.GetHealthChecks()[0].GetInterval().AsDuration(), redis.GetClusterRefreshRate().AsDuration(),
	}
	want := []time.Duration{500 * time.Millisecond, 90 * time.Second, -1500 * time.Millisecond, time.Microsecond, 2 * time.Second, 250 * time.Millisecond}
	if !slices.Equal(got, want) {
		t.Errorf("the durations are %v, want %v", got, want)
	}
	_, err = read(`{"health_checks": [{"timeout": "5 minutes"}]}`)
	if err == nil || !strings.HasPrefix(err.Error(), ".health_checks[0].timeout: ") {
		t.Errorf("a text that is not a duration: %v", err)
	}
}

// FuzzPatches checks that any value is either parsed or refused with a reason. Applying the parsed patches must not
// crash.
func FuzzPatches(f *testing.F) {
	for _, seed := range []string{
		`{"name": "x", "connect_timeout": "1s"}`, `{"typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}`,
		`{"typed_config": {"@type": "type.googleapis.com/udpa.type.v1.TypedStruct", "type_url": "x", "value": {"a": []}}}`, `{"": null}`,
		`{"circuit_breakers": {"thresholds": [{"max_connections": -1}]}}`, `{"typed_extension_protocol_options": {"a": {"@type": "b"}}}`,
		`{"routes": [{"match": {"prefix": 1}}]}`, `{"filters": {}}`,
	} {
		for to := range int32(12) {
			f.Add(seed, to, int32(1))
		}
	}
	f.Fuzz(func(t *testing.T, text string, to, op int32) {
		value := &structpb.Struct{}
		if protojson.Unmarshal([]byte(text), value) != nil {
			return
		}
		r := &config.Resource{Key: config.Key{Kind: config.EnvoyFilter}, Spec: &networking.EnvoyFilter{ConfigPatches: []*networking.EnvoyFilter_EnvoyConfigObjectPatch{{
			ApplyTo: networking.EnvoyFilter_ApplyTo(to), Patch: &networking.EnvoyFilter_Patch{Operation: networking.EnvoyFilter_Patch_Operation(op), Value: value},
		}}}}
		filter, problems := Read(r)
		for _, p := range problems {
			if p.Message == "" || p.Severity != config.Error {
				t.Errorf("the document is refused with the problems %v", p)
			}
		}
		set := NewSet([]*Filter{filter}, Proxy{}, func(*Filter, config.Problem) {})
		before := &clusterv3.Cluster{Name: "c", ConnectTimeout: durationpb.New(time.Second)}
		given := proto.Clone(before)
		after := set.ForCluster(Cluster{Side: Outbound, Name: "c"}).Apply(before)
		if !proto.Equal(given, before) || validate(after) != nil || after.GetName() != "c" {
			t.Errorf("applying patches changed %v to %v", before, after)
		}
		set.Listeners(false, "", nil)
		set.RouteConfiguration(Routes{Side: Outbound, Name: "80"}, nil, nil)
	})
}
