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

// Names of the telemetry clusters. The resources of control planes refer to envoy_accesslog_service.
const (
	metricsServiceCluster   = "envoy_metrics_service"
	accessLogServiceCluster = "envoy_accesslog_service"
)

// dnsRefresh is the interval at which a telemetry service's name is resolved if the DNS response has no TTL. With
// Envoy's default of 5 s, an idle proxy would wake up too often.
const dnsRefresh = 30 * time.Second

// remote is a service that receives Envoy's telemetry.
type remote struct {
	cluster   string
	setting   string // name of the setting that contains address, for errors
	address   string // host:port
	http2     bool
	tls       *networking.ClientTLSSettings
	keepalive *networking.ConnectionPoolSettings_TCPSettings_TcpKeepalive
}

// remoteCluster returns the cluster of a telemetry service. The cluster never delays the proxy's start, because a proxy
// must serve traffic even if a collector is unreachable.
func remoteCluster(c Config, a *anyBuilder, r remote) *clusterv3.Cluster {
	host, port, err := c.hostAndPort(r)
	if err != nil {
		a.fail(err)
		return nil
	}
	cluster := newStaticCluster(r.cluster, tcp(host, port), time.Second)
	if r.http2 {
		useHTTP2(cluster, nil, a)
	}
	cluster.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STRICT_DNS}
	//lint:ignore SA1019 the replacement is an extension, which an Envoy build may lack
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

// hostAndPort returns the host and the port in a remote's address. It replaces $(HOST_IP) by the node's address.
func (c Config) hostAndPort(r remote) (string, uint32, error) {
	host, portText, err := net.SplitHostPort(c.expand(r.address))
	port, portErr := strconv.ParseUint(portText, 10, 16)
	if err != nil || portErr != nil || port == 0 || host == "" || strings.Contains(host, hostIPVariable) {
		remedy := "write host:port"
		if strings.Contains(c.expand(r.address), hostIPVariable) {
			remedy = "set HOST_IP, which " + hostIPVariable + " refers to"
		}
		return "", 0, fmt.Errorf("%s: %q is not the address of a service; %s", r.setting, r.address, remedy)
	}
	return host, uint32(port), nil
}

func (c Config) expand(address string) string { return ExpandHostIP(address, c.HostIP) }

// ExpandHostIP replaces $(HOST_IP) in an address by the node's address. If the node's address is empty, it changes
// nothing.
func ExpandHostIP(address, hostIP string) string {
	if hostIP == "" {
		return address
	}
	return strings.ReplaceAll(address, hostIPVariable, bracketIPv6(hostIP))
}

// bracketIPv6 adds brackets to an IPv6 address.
func bracketIPv6(ip string) string {
	if a, err := netip.ParseAddr(ip); err == nil && a.Is6() {
		return "[" + ip + "]"
	}
	return ip
}

// lookupFamily returns the address families for DNS lookups, according to the proxy's own addresses.
func (c Config) lookupFamily() clusterv3.Cluster_DnsLookupFamily {
	switch {
	case c.hasOnlyIPv6():
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

// telemetryClusters returns the clusters that receive the traces, statistics and access logs that the proxy sends.
func telemetryClusters(c Config, a *anyBuilder) []*clusterv3.Cluster {
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

// metricsService returns the service to which Envoy streams statistics. If the setting is missing, it reads the older
// setting, which contains only an address.
func metricsService(pc *meshv1.ProxyConfig) *meshv1.RemoteService {
	if s := pc.GetEnvoyMetricsService(); s.GetAddress() != "" {
		return s
	}
	//lint:ignore SA1019 some meshes still use this deprecated setting
	return &meshv1.RemoteService{Address: pc.GetEnvoyMetricsServiceAddress()}
}

func metricsServiceSink(a *anyBuilder) *metricsv3.StatsSink {
	return &metricsv3.StatsSink{
		Name: "envoy.stat_sinks.metrics_service",
		ConfigType: &metricsv3.StatsSink_TypedConfig{TypedConfig: a.add(&metricsv3.MetricsServiceConfig{
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
