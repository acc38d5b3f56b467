package bootstrap

import (
	"bytes"
	"encoding/json"
	"fmt"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	internallistenerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/bootstrap/internal_listener/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const loadStatsMetadata = "LOAD_STATS_CONFIG_JSON"

// profilePath is the file to which Envoy's admin interface writes CPU profiles, if Envoy was built with a profiler. It
// is in the volume of Istio's sidecars to which Envoy's user may write.
const profilePath = "/var/lib/istio/data/envoy.prof"

// Build returns the bootstrap for c. It ignores Override and Custom. The result is deterministic.
func Build(c Config) (*bootstrapv3.Bootstrap, error) {
	b, a, err := assemble(c)
	if err != nil {
		return nil, err
	}
	return b, a.pack()
}

// assemble returns the bootstrap, and the messages of its Any fields. These messages are not serialized yet.
func assemble(c Config) (*bootstrapv3.Bootstrap, *anyBuilder, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, nil, err
	}
	node, err := Node(c)
	if err != nil {
		return nil, nil, err
	}
	a := newAnyBuilder()
	b := &bootstrapv3.Bootstrap{
		Node:                node,
		LayeredRuntime:      layeredRuntime(c),
		BootstrapExtensions: []*corev3.TypedExtensionConfig{internalListener(a)},
		StatsConfig:         statsConfig(c),
		StatsSinks:          statsSinks(c, a),
		OverloadManager:     overloadManager(c, a),
		Admin:               &bootstrapv3.Admin{Address: c.adminListener(), ProfilePath: profilePath},
		ClusterManager:      clusterManager(c, a),
		// Envoy creates the statistics of a cluster's traffic only when the first request uses the cluster.
		DeferredStatOptions: &bootstrapv3.Bootstrap_DeferredStatOptions{EnableDeferredCreationStats: true},
		//lint:ignore SA1019 control planes, such as Istio's, expect the tracer in the bootstrap
		Tracing:          httpTracing(c, a),
		DynamicResources: dynamicResources(c),
		StaticResources: &bootstrapv3.Bootstrap_StaticResources{
			Clusters:  staticClusters(c, a),
			Listeners: staticListeners(c, a),
			Secrets:   c.agentSecrets(),
		},
	}
	setStatsIntervals(c, b)
	return b, a, a.err
}

// JSON returns a bootstrap as indented JSON for users to read, with the names of enumeration values. The output is
// deterministic.
func JSON(b *bootstrapv3.Bootstrap) ([]byte, error) {
	raw, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(b)
	if err != nil {
		return nil, fmt.Errorf("bootstrap: encoding the bootstrap as JSON: %w", err)
	}
	// protojson varies its white space deliberately. Indentation makes the output deterministic.
	var out bytes.Buffer
	if err := json.Indent(&out, raw, "", "  "); err != nil {
		return nil, fmt.Errorf("bootstrap: indenting the bootstrap's JSON: %w", err)
	}
	out.WriteByte('\n')
	return out.Bytes(), nil
}

// dynamicResources makes Envoy request listeners and clusters from the agent. It sets no initial fetch timeout, so that
// Envoy waits: a proxy without configuration must not become ready.
func dynamicResources(c Config) *bootstrapv3.Bootstrap_DynamicResources {
	apiType := corev3.ApiConfigSource_DELTA_GRPC
	if c.SotW && c.Type != Waypoint {
		apiType = corev3.ApiConfigSource_GRPC
	}
	ads := func() *corev3.ConfigSource {
		return &corev3.ConfigSource{
			ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
			InitialFetchTimeout:   &durationpb.Duration{},
			ResourceApiVersion:    corev3.ApiVersion_V3,
		}
	}
	return &bootstrapv3.Bootstrap_DynamicResources{
		LdsConfig: ads(),
		CdsConfig: ads(),
		AdsConfig: &corev3.ApiConfigSource{
			ApiType:                   apiType,
			TransportApiVersion:       corev3.ApiVersion_V3,
			SetNodeOnFirstMessageOnly: true,
			GrpcServices:              []*corev3.GrpcService{grpcTo(xdsCluster)},
		},
	}
}

func internalListener(a *anyBuilder) *corev3.TypedExtensionConfig {
	return &corev3.TypedExtensionConfig{
		Name:        "envoy.bootstrap.internal_listener",
		TypedConfig: a.add(&internallistenerv3.InternalListener{BufferSizeKb: wrapperspb.UInt32(64)}),
	}
}

// clusterManager returns a configuration with which each worker creates a cluster only when it receives the first
// request for it. A proxy never uses most clusters of a mesh.
func clusterManager(c Config, a *anyBuilder) *bootstrapv3.ClusterManager {
	m := &bootstrapv3.ClusterManager{
		EnableDeferredClusterCreation: true,
		LoadStatsConfig:               loadReports(c, a),
	}
	if c.OutlierLog != "" {
		m.OutlierDetection = &bootstrapv3.ClusterManager_OutlierDetection{EventLogPath: c.OutlierLog}
	}
	if c.usesSelfDiscovery() {
		m.LocalClusterName = localCluster
	}
	return m
}

// loadReports returns the destination of Envoy's load reports from the node metadata, or nil if the metadata has none.
// If the metadata specifies no gRPC services, the destination is the control plane.
func loadReports(c Config, a *anyBuilder) *corev3.ApiConfigSource {
	text, ok := c.Metadata[loadStatsMetadata].(string)
	if !ok || text == "" {
		return nil
	}
	source := &corev3.ApiConfigSource{}
	if err := protojson.Unmarshal([]byte(text), source); err != nil {
		a.fail(fmt.Errorf(`ISTIO_META_%s: %q: %w; write an Envoy ApiConfigSource, for example {"api_type": "GRPC", "transport_api_version": "V3"}`,
			loadStatsMetadata, text, err))
		return nil
	}
	if len(source.GetGrpcServices()) == 0 {
		source.GrpcServices = []*corev3.GrpcService{grpcTo(xdsCluster)}
	}
	return source
}

// anyBuilder creates Any fields. The method pack serializes their messages at the end. anyBuilder also records the
// first error that a function passes to fail.
type anyBuilder struct {
	messages map[*anypb.Any]proto.Message
	order    []*anypb.Any // in order of creation: a nested message precedes the message that contains it
	err      error
}

func newAnyBuilder() *anyBuilder { return &anyBuilder{messages: map[*anypb.Any]proto.Message{}} }

// add returns an Any for the message. pack later serializes the message into it.
func (a *anyBuilder) add(m proto.Message) *anypb.Any {
	packed := &anypb.Any{TypeUrl: "type.googleapis.com/" + string(m.ProtoReflect().Descriptor().FullName())}
	a.messages[packed] = m
	a.order = append(a.order, packed)
	return packed
}

func (a *anyBuilder) pack() error {
	for _, packed := range a.order {
		value, err := proto.MarshalOptions{Deterministic: true}.Marshal(a.messages[packed])
		if err != nil {
			return fmt.Errorf("bootstrap: packing %s: %w", packed.GetTypeUrl(), err)
		}
		packed.Value = value
	}
	return nil
}

func (a *anyBuilder) fail(err error) {
	if a.err == nil {
		a.err = err
	}
}

func tcp(address string, port uint32) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address:       address,
		PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: port},
	}}}
}

func pipe(path string) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: path}}}
}

func udp(address string, port uint32) *corev3.Address {
	a := tcp(address, port)
	a.GetSocketAddress().Protocol = corev3.SocketAddress_UDP
	return a
}
