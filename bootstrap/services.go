package bootstrap

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	metricsv3 "github.com/envoyproxy/go-control-plane/envoy/config/metrics/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
)

// Names of the clusters of telemetry. Control planes refer to envoy_accesslog_service in what they send.
const (
	metricsServiceCluster   = "envoy_metrics_service"
	accessLogServiceCluster = "envoy_accesslog_service"
)

// dnsRefresh is how often a telemetry service's name is resolved where the answer does not say; Envoy's own 5 s would
// wake an idle proxy for it all day.
const dnsRefresh = 30 * time.Second

// remote is a service that Envoy sends telemetry to.
type remote struct {
	cluster   string
	setting   string // what its address is told by, for errors
	address   string // host:port
	http2     bool
	tls       *networking.ClientTLSSettings
	keepalive *networking.ConnectionPoolSettings_TCPSettings_TcpKeepalive
}

// remoteCluster never holds up the start of the proxy: a collector that cannot be found is no reason to serve nobody.
func remoteCluster(c Config, a *anys, r remote) *clusterv3.Cluster {
	host, port, err := c.hostAndPort(r)
	if err != nil {
		a.fail(err)
		return nil
	}
	cluster := static(r.cluster, tcp(host, port), time.Second)
	if r.http2 {
		useHTTP2(cluster, nil, a)
	}
	cluster.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STRICT_DNS}
	//lint:ignore SA1019 the extension that comes after it is one more that an Envoy may be built without
	cluster.RespectDnsTtl = true
	//lint:ignore SA1019 as above
	cluster.DnsRefreshRate = durationpb.New(dnsRefresh)
	cluster.DnsLookupFamily = c.lookupFamily()
	cluster.WaitForWarmOnInit = wrapperspb.Bool(false)
	if cluster.TransportSocket, err = transportSocket(c, r, host, a); err != nil {
		a.fail(err)
	}
	cluster.UpstreamConnectionOptions = keepalive(r.keepalive)
	return cluster
}

// hostAndPort reads a remote's address, in which $(HOST_IP) stands for the node's.
func (c Config) hostAndPort(r remote) (string, uint32, error) {
	host, portText, err := net.SplitHostPort(c.expand(r.address))
	port, portErr := strconv.ParseUint(portText, 10, 16)
	if err != nil || portErr != nil || port == 0 || host == "" || strings.Contains(host, hostIPVariable) {
		remedy := "write it as host:port"
		if strings.Contains(c.expand(r.address), hostIPVariable) {
			remedy = "set HOST_IP, which " + hostIPVariable + " stands for"
		}
		return "", 0, fmt.Errorf("%s: %q is not the address of a service; %s", r.setting, r.address, remedy)
	}
	return host, uint32(port), nil
}

// expand puts the node's address in the place of $(HOST_IP), when it is known.
func (c Config) expand(address string) string {
	if c.HostIP == "" {
		return address
	}
	return strings.ReplaceAll(address, hostIPVariable, bracketed(c.HostIP))
}

// bracketed is an address as it is written before a port.
func bracketed(ip string) string {
	if a, err := netip.ParseAddr(ip); err == nil && a.Is6() {
		return "[" + ip + "]"
	}
	return ip
}

// lookupFamily is which addresses of a name this proxy can reach.
func (c Config) lookupFamily() clusterv3.Cluster_DnsLookupFamily {
	switch {
	case c.onlyIPv6():
		return clusterv3.Cluster_V6_ONLY
	case c.DualStack && c.hasIPv6():
		return clusterv3.Cluster_ALL
	}
	return clusterv3.Cluster_V4_ONLY
}

func keepalive(k *networking.ConnectionPoolSettings_TCPSettings_TcpKeepalive) *clusterv3.UpstreamConnectionOptions {
	if k == nil {
		return nil
	}
	options := &corev3.TcpKeepalive{}
	if k.GetProbes() > 0 {
		options.KeepaliveProbes = wrapperspb.UInt32(k.GetProbes())
	}
	options.KeepaliveTime = wholeSeconds(k.GetTime())
	options.KeepaliveInterval = wholeSeconds(k.GetInterval())
	return &clusterv3.UpstreamConnectionOptions{TcpKeepalive: options}
}

func wholeSeconds(d *durationpb.Duration) *wrapperspb.UInt32Value {
	if d.GetSeconds() <= 0 {
		return nil
	}
	return wrapperspb.UInt32(uint32(d.GetSeconds()))
}

// telemetryClusters are those that the proxy's own telemetry goes to.
func telemetryClusters(c Config, a *anys) []*clusterv3.Cluster {
	var remotes []remote
	if t := tracer(c); t != nil {
		remotes = append(remotes, t.remote)
	}
	if s := metricsService(c.ProxyConfig); s.GetAddress() != "" {
		remotes = append(remotes, serviceRemote(metricsServiceCluster, "envoyMetricsService.address", s))
	}
	if s := c.ProxyConfig.GetEnvoyAccessLogService(); s.GetAddress() != "" {
		remotes = append(remotes, serviceRemote(accessLogServiceCluster, "envoyAccessLogService.address", s))
	}
	var clusters []*clusterv3.Cluster
	for _, r := range remotes {
		clusters = append(clusters, remoteCluster(c, a, r))
	}
	return clusters
}

func serviceRemote(cluster, setting string, s *meshv1.RemoteService) remote {
	return remote{
		cluster: cluster, setting: setting, address: s.GetAddress(),
		http2: true, tls: s.GetTlsSettings(), keepalive: s.GetTcpKeepalive(),
	}
}

// metricsService is where statistics are streamed to; the older setting of the address alone stands in for the newer.
func metricsService(pc *meshv1.ProxyConfig) *meshv1.RemoteService {
	if s := pc.GetEnvoyMetricsService(); s.GetAddress() != "" {
		return s
	}
	//lint:ignore SA1019 meshes that still have it rely on it
	return &meshv1.RemoteService{Address: pc.GetEnvoyMetricsServiceAddress()}
}

func metricsServiceSink(a *anys) *metricsv3.StatsSink {
	return &metricsv3.StatsSink{
		Name: "envoy.stat_sinks.metrics_service",
		ConfigType: &metricsv3.StatsSink_TypedConfig{TypedConfig: a.of(&metricsv3.MetricsServiceConfig{
			TransportApiVersion: corev3.ApiVersion_V3,
			GrpcService:         grpcTo(metricsServiceCluster),
		})},
	}
}

func grpcTo(cluster string) *corev3.GrpcService {
	return &corev3.GrpcService{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{
		EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: cluster},
	}}
}
