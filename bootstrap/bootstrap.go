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

// Build makes the bootstrap, without what Override and Custom change. The same configuration gives the same bootstrap.
func Build(c Config) (*bootstrapv3.Bootstrap, error) {
	b, a, err := assemble(c)
	if err != nil {
		return nil, err
	}
	return b, a.pack()
}

// assemble makes the bootstrap with its packed messages still beside it.
func assemble(c Config) (*bootstrapv3.Bootstrap, *anys, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, nil, err
	}
	node, err := Node(c)
	if err != nil {
		return nil, nil, err
	}
	stats, err := statsConfig(c)
	if err != nil {
		return nil, nil, err
	}
	a := newAnys()
	b := &bootstrapv3.Bootstrap{
		Node:                node,
		LayeredRuntime:      layeredRuntime(c),
		BootstrapExtensions: []*corev3.TypedExtensionConfig{internalListener(a)},
		StatsConfig:         stats,
		StatsSinks:          statsSinks(c, a),
		OverloadManager:     overloadManager(c, a),
		Admin:               &bootstrapv3.Admin{Address: tcp(c.localAddress(), c.adminPort())},
		ClusterManager:      clusterManager(c, a),
		//lint:ignore SA1019 control planes leave the tracer to the bootstrap, as Istio's does
		Tracing:          httpTracing(c, a),
		DynamicResources: dynamicResources(c),
		StaticResources: &bootstrapv3.Bootstrap_StaticResources{
			Clusters:  staticClusters(c, a),
			Listeners: staticListeners(c, a),
		},
	}
	if err := statsIntervals(c, b); err != nil {
		return nil, nil, err
	}
	return b, a, a.err
}

// JSON writes a bootstrap for people, with the names of enumerations; the same bootstrap gives the same bytes.
func JSON(b *bootstrapv3.Bootstrap) ([]byte, error) {
	raw, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(b)
	if err != nil {
		return nil, fmt.Errorf("bootstrap: encoding it as JSON: %w", err)
	}
	// protojson varies its white space on purpose; indenting anew makes it the same each time.
	var out bytes.Buffer
	if err := json.Indent(&out, raw, "", "  "); err != nil {
		return nil, fmt.Errorf("bootstrap: formatting its JSON: %w", err)
	}
	out.WriteByte('\n')
	return out.Bytes(), nil
}

// dynamicResources makes Envoy ask the agent for listeners and clusters. Envoy waits for them as long as it takes (no
// initial fetch timeout): a proxy without configuration must not become ready.
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

func internalListener(a *anys) *corev3.TypedExtensionConfig {
	return &corev3.TypedExtensionConfig{
		Name:        "envoy.bootstrap.internal_listener",
		TypedConfig: a.of(&internallistenerv3.InternalListener{BufferSizeKb: wrapperspb.UInt32(64)}),
	}
}

// clusterManager makes workers create a cluster when they first send to it, because most clusters of a mesh are never
// sent to by one proxy.
func clusterManager(c Config, a *anys) *bootstrapv3.ClusterManager {
	m := &bootstrapv3.ClusterManager{
		EnableDeferredClusterCreation: true,
		LoadStatsConfig:               loadReports(c, a),
	}
	if c.OutlierLog != "" {
		m.OutlierDetection = &bootstrapv3.ClusterManager_OutlierDetection{EventLogPath: c.OutlierLog}
	}
	if c.selfDiscovery() {
		m.LocalClusterName = localCluster
	}
	return m
}

// loadReports is where the metadata says that load is reported to; to the control plane unless it says otherwise.
func loadReports(c Config, a *anys) *corev3.ApiConfigSource {
	text, ok := c.Metadata[loadStatsMetadata].(string)
	if !ok || text == "" {
		return nil
	}
	source := &corev3.ApiConfigSource{}
	if err := protojson.Unmarshal([]byte(text), source); err != nil {
		a.fail(fmt.Errorf(`ISTIO_META_%s: %q: %w; write an Envoy ApiConfigSource, as {"api_type": "GRPC", "transport_api_version": "V3"}`,
			loadStatsMetadata, text, err))
		return nil
	}
	if len(source.GetGrpcServices()) == 0 {
		source.GrpcServices = []*corev3.GrpcService{grpcTo(xdsCluster)}
	}
	return source
}

// anys are the messages that go into an Any, and the first error, so that the builders read as what they build.
type anys struct {
	messages map[*anypb.Any]proto.Message
	order    []*anypb.Any // of making: one inside another comes before it
	err      error
}

func newAnys() *anys { return &anys{messages: map[*anypb.Any]proto.Message{}} }

// of stands for the message, which is packed later.
func (a *anys) of(m proto.Message) *anypb.Any {
	packed := &anypb.Any{TypeUrl: "type.googleapis.com/" + string(m.ProtoReflect().Descriptor().FullName())}
	a.messages[packed] = m
	a.order = append(a.order, packed)
	return packed
}

func (a *anys) pack() error {
	for _, packed := range a.order {
		value, err := proto.MarshalOptions{Deterministic: true}.Marshal(a.messages[packed])
		if err != nil {
			return fmt.Errorf("bootstrap: packing %s: %w", packed.GetTypeUrl(), err)
		}
		packed.Value = value
	}
	return nil
}

func (a *anys) fail(err error) {
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
