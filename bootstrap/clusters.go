package bootstrap

import (
	"fmt"
	"strconv"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	upstreamhttpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Names of the static clusters. Control planes refer to xds-grpc, sds-grpc and sds-files-grpc in what they send.
const (
	statsCluster = "prometheus_stats"
	agentCluster = "agent"
	sdsCluster   = "sds-grpc"
	filesCluster = "sds-files-grpc"
	xdsCluster   = "xds-grpc"
)

// plenty is more streams than one Envoy ever has.
const plenty = 100000

// localCluster is the proxy's own workload, by which Envoy knows how many of its kind are in which zone.
const localCluster = "local_cluster"

// localPatience is how long the start of Envoy may wait for the endpoints of its own workload.
const localPatience = 2 * time.Second

const httpProtocolOptions = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"

func staticClusters(c Config, a *anys) []*clusterv3.Cluster {
	clusters := []*clusterv3.Cluster{
		static(statsCluster, tcp(c.localAddress(), c.adminPort()), 250*time.Millisecond),
		static(agentCluster, agentAddress(c), 250*time.Millisecond),
		grpcCluster(sdsCluster, c.SDSSocket, nil, a),
		xds(c, a),
	}
	if c.FilesSocket != "" {
		clusters = append(clusters, grpcCluster(filesCluster, c.FilesSocket, nil, a))
	}
	clusters = append(clusters, telemetryClusters(c, a)...)
	if c.selfDiscovery() {
		clusters = append(clusters, local())
	}
	return clusters
}

// filesFrom is the cluster that serves secrets from files.
func (c Config) filesFrom() string {
	if c.FilesSocket != "" {
		return filesCluster
	}
	return sdsCluster
}

func agentAddress(c Config) *corev3.Address {
	if c.StatusSocket != "" {
		return pipe(c.StatusSocket)
	}
	return tcp(c.localAddress(), c.statusPort())
}

func static(name string, address *corev3.Address, connectTimeout time.Duration) *clusterv3.Cluster {
	return &clusterv3.Cluster{
		Name:                 name,
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
		ConnectTimeout:       durationpb.New(connectTimeout),
		LoadAssignment: &endpointv3.ClusterLoadAssignment{
			ClusterName: name,
			Endpoints: []*endpointv3.LocalityLbEndpoints{{
				LbEndpoints: []*endpointv3.LbEndpoint{{
					HostIdentifier: &endpointv3.LbEndpoint_Endpoint{
						Endpoint: &endpointv3.Endpoint{Address: address},
					},
				}},
			}},
		},
	}
}

func grpcCluster(name, socket string, common *corev3.HttpProtocolOptions, a *anys) *clusterv3.Cluster {
	c := static(name, pipe(socket), time.Second)
	useHTTP2(c, common, a)
	return c
}

func useHTTP2(c *clusterv3.Cluster, common *corev3.HttpProtocolOptions, a *anys) {
	c.TypedExtensionProtocolOptions = map[string]*anypb.Any{
		httpProtocolOptions: a.of(&upstreamhttpv3.HttpProtocolOptions{
			CommonHttpProtocolOptions: common,
			UpstreamProtocolOptions: &upstreamhttpv3.HttpProtocolOptions_ExplicitHttpConfig_{
				ExplicitHttpConfig: &upstreamhttpv3.HttpProtocolOptions_ExplicitHttpConfig{
					ProtocolConfig: &upstreamhttpv3.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{
						Http2ProtocolOptions: &corev3.Http2ProtocolOptions{},
					},
				},
			},
		}),
	}
}

// xds keeps the ADS stream from ever being refused by a limit, or quietly lost with its connection.
func xds(c Config, a *anys) *clusterv3.Cluster {
	// Each stream gets a connection of its own, so that a new one is not queued behind a dying one.
	cluster := grpcCluster(xdsCluster, c.XDSSocket, &corev3.HttpProtocolOptions{MaxRequestsPerConnection: wrapperspb.UInt32(1)}, a)
	limits := func(p corev3.RoutingPriority) *clusterv3.CircuitBreakers_Thresholds {
		return &clusterv3.CircuitBreakers_Thresholds{
			Priority:           p,
			MaxConnections:     wrapperspb.UInt32(plenty),
			MaxPendingRequests: wrapperspb.UInt32(plenty),
			MaxRequests:        wrapperspb.UInt32(plenty),
		}
	}
	cluster.CircuitBreakers = &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{
		limits(corev3.RoutingPriority_DEFAULT), limits(corev3.RoutingPriority_HIGH),
	}}
	cluster.UpstreamConnectionOptions = &clusterv3.UpstreamConnectionOptions{
		TcpKeepalive: &corev3.TcpKeepalive{KeepaliveTime: wrapperspb.UInt32(300)},
	}
	return cluster
}

// selfDiscovery says that the control plane is asked for the proxy's own workload, for zone-aware routing.
func (c Config) selfDiscovery() bool {
	asked, _ := strconv.ParseBool(fmt.Sprint(c.Metadata["ENABLE_SELF_DISCOVERY"]))
	return asked && c.Type == Sidecar
}

// local gets its endpoints by ADS. It is a static cluster because Envoy wants that of a local cluster, so that a control
// plane that does not know it must not be waited for.
func local() *clusterv3.Cluster {
	return &clusterv3.Cluster{
		Name:                 localCluster,
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
		ConnectTimeout:       durationpb.New(time.Second),
		EdsClusterConfig: &clusterv3.Cluster_EdsClusterConfig{EdsConfig: &corev3.ConfigSource{
			ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
			InitialFetchTimeout:   durationpb.New(localPatience),
			ResourceApiVersion:    corev3.ApiVersion_V3,
		}},
	}
}
