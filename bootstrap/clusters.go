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

// Names of the static clusters. The resources of control planes refer to xds-grpc, sds-grpc and sds-files-grpc.
const (
	statsCluster = "prometheus_stats"
	agentCluster = "agent"
	sdsCluster   = "sds-grpc"
	filesCluster = "sds-files-grpc"
	xdsCluster   = "xds-grpc"
)

// maxStreams is the limit of the circuit breakers of xds-grpc. An Envoy never opens that many streams.
const maxStreams = 100000

// localCluster is the cluster with the proxy's own workload. Envoy uses it to count the workload's instances per zone.
const localCluster = "local_cluster"

// localFetchTimeout limits how long a starting Envoy waits for the endpoints of its own workload.
const localFetchTimeout = 2 * time.Second

const httpProtocolOptions = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"

func staticClusters(c Config, a *anyBuilder) []*clusterv3.Cluster {
	clusters := []*clusterv3.Cluster{
		newStaticCluster(statsCluster, c.adminEndpoint(), 250*time.Millisecond),
		newStaticCluster(agentCluster, agentAddress(c), 250*time.Millisecond),
		grpcCluster(sdsCluster, c.SDSSocket, c.sdsClusterOptions(a), a),
		newXDSCluster(c, a),
	}
	if c.FilesSocket != "" {
		clusters = append(clusters, grpcCluster(filesCluster, c.FilesSocket, c.secretOptions(a), a))
	}
	clusters = append(clusters, telemetryClusters(c, a)...)
	if c.usesSelfDiscovery() {
		clusters = append(clusters, newLocalCluster())
	}
	return clusters
}

// secretFilesCluster returns the name of the cluster from which Envoy requests secrets that are in files.
func (c Config) secretFilesCluster() string {
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

func newStaticCluster(name string, address *corev3.Address, connectTimeout time.Duration) *clusterv3.Cluster {
	return &clusterv3.Cluster{
		Name:                 name,
		AltStatName:          statName(name),
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

// statName returns the name of a cluster in statistics. Istio's control plane adds the same separator to the names of
// its clusters.
func statName(cluster string) string { return cluster + ";" }

func grpcCluster(name, socket string, options *upstreamhttpv3.HttpProtocolOptions, a *anyBuilder) *clusterv3.Cluster {
	c := newStaticCluster(name, pipe(socket), time.Second)
	useHTTP2(c, options, a)
	return c
}

// useHTTP2 sets the options, with HTTP/2 added, on the cluster. options may be nil.
func useHTTP2(c *clusterv3.Cluster, options *upstreamhttpv3.HttpProtocolOptions, a *anyBuilder) {
	if options == nil {
		options = &upstreamhttpv3.HttpProtocolOptions{}
	}
	options.UpstreamProtocolOptions = &upstreamhttpv3.HttpProtocolOptions_ExplicitHttpConfig_{
		ExplicitHttpConfig: &upstreamhttpv3.HttpProtocolOptions_ExplicitHttpConfig{
			ProtocolConfig: &upstreamhttpv3.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{
				Http2ProtocolOptions: &corev3.Http2ProtocolOptions{},
			},
		},
	}
	c.TypedExtensionProtocolOptions = map[string]*anypb.Any{httpProtocolOptions: a.add(options)}
}

// newXDSCluster returns the cluster of the ADS stream. Its circuit breakers never reject the stream, and TCP keepalive
// detects a lost connection.
func newXDSCluster(c Config, a *anyBuilder) *clusterv3.Cluster {
	// Each stream has its own connection, so that a new stream does not wait for a failing connection.
	options := c.secretOptions(a)
	options.CommonHttpProtocolOptions = &corev3.HttpProtocolOptions{MaxRequestsPerConnection: wrapperspb.UInt32(1)}
	cluster := grpcCluster(xdsCluster, c.XDSSocket, options, a)
	limits := func(p corev3.RoutingPriority) *clusterv3.CircuitBreakers_Thresholds {
		return &clusterv3.CircuitBreakers_Thresholds{
			Priority:           p,
			MaxConnections:     wrapperspb.UInt32(maxStreams),
			MaxPendingRequests: wrapperspb.UInt32(maxStreams),
			MaxRequests:        wrapperspb.UInt32(maxStreams),
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

// usesSelfDiscovery reports whether Envoy requests the endpoints of its own workload, for zone-aware routing.
func (c Config) usesSelfDiscovery() bool {
	enabled, _ := strconv.ParseBool(fmt.Sprint(c.Metadata["ENABLE_SELF_DISCOVERY"]))
	return enabled && c.Type == Sidecar
}

// newLocalCluster returns the local cluster, whose endpoints Envoy requests by ADS. Envoy requires that this cluster is
// in the bootstrap. Its initial fetch has a timeout, because a control plane that does not know the cluster never
// responds to the request.
func newLocalCluster() *clusterv3.Cluster {
	return &clusterv3.Cluster{
		Name:                 localCluster,
		AltStatName:          statName(localCluster),
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
		ConnectTimeout:       durationpb.New(time.Second),
		EdsClusterConfig: &clusterv3.Cluster_EdsClusterConfig{EdsConfig: &corev3.ConfigSource{
			ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
			InitialFetchTimeout:   durationpb.New(localFetchTimeout),
			ResourceApiVersion:    corev3.ApiVersion_V3,
		}},
	}
}
