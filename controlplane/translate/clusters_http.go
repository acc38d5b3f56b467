package translate

import (
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/types/known/anypb"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
)

const httpOptionsName = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"

// setHTTPOptions sets how requests are sent to the cluster's endpoints.
func setHTTPOptions(cluster *clusterv3.Cluster, options *httpv3.HttpProtocolOptions) {
	cluster.TypedExtensionProtocolOptions = map[string]*anypb.Any{httpOptionsName: anyOf(options)}
}

// speaksHTTP2 reports whether Envoy uses HTTP/2 to connect to the cluster's endpoints. The h2UpgradePolicy of the
// DestinationRule takes precedence. Without one, Envoy uses HTTP/2 if the port is declared as HTTP/2 or gRPC, and
// between sidecars. Between sidecars, multiplexing on one connection costs a quarter less than HTTP/1.1; the upstream
// sidecar then uses the declared protocol to connect to its workload.
func (c serviceCluster) speaksHTTP2(port registry.Port, traffic snapshot.Traffic, security upstreamSecurity) bool {
	switch traffic.ConnectionPool.GetHttp().GetH2UpgradePolicy() {
	case networking.ConnectionPoolSettings_HTTPSettings_UPGRADE:
		return true
	case networking.ConnectionPoolSettings_HTTPSettings_DO_NOT_UPGRADE:
		return port.Protocol.IsHTTP2()
	}
	return port.Protocol.IsHTTP2() || security.meshTLS() && c.facts.AllMTLS
}

func (c serviceCluster) httpOptions(port registry.Port, traffic snapshot.Traffic, security upstreamSecurity) *httpv3.HttpProtocolOptions {
	settings := traffic.ConnectionPool.GetHttp()
	options := &httpv3.HttpProtocolOptions{CommonHttpProtocolOptions: commonHTTPOptions(traffic.ConnectionPool)}
	options.OutlierDetection = errorCodes(traffic.OutlierDetection)
	http2 := http2Options(settings)
	switch {
	case settings.GetUseClientProtocol() || port.Protocol == registry.Undeclared:
		options.UpstreamProtocolOptions = &httpv3.HttpProtocolOptions_UseDownstreamProtocolConfig{
			UseDownstreamProtocolConfig: &httpv3.HttpProtocolOptions_UseDownstreamHttpConfig{
				HttpProtocolOptions: &corev3.Http1ProtocolOptions{}, Http2ProtocolOptions: http2,
			},
		}
	case c.speaksHTTP2(port, traffic, security):
		options.UpstreamProtocolOptions = explicitHTTP2(http2)
	default:
		options.UpstreamProtocolOptions = explicitHTTP1()
	}
	if c.svc.Resolution == registry.Passthrough && !c.originalDst {
		setAutoSNI(options)
	} else if security.autoSNI {
		options.UpstreamHttpProtocolOptions = &corev3.UpstreamHttpProtocolOptions{AutoSni: true, AutoSanValidation: security.autoSAN}
	}
	if !c.svc.External && !c.facts.AllMTLS {
		options.HttpFilters = removePeerHeaderFilters()
	}
	return options
}

func commonHTTPOptions(pool *networking.ConnectionPoolSettings) *corev3.HttpProtocolOptions {
	common := &corev3.HttpProtocolOptions{
		IdleTimeout:           nonZeroDuration(pool.GetHttp().GetIdleTimeout()),
		MaxConnectionDuration: nonZeroDuration(pool.GetTcp().GetMaxConnectionDuration()),
	}
	if n := pool.GetHttp().GetMaxRequestsPerConnection(); n > 0 {
		common.MaxRequestsPerConnection = u32(uint32(n))
	}
	if common.IdleTimeout == nil && common.MaxConnectionDuration == nil && common.MaxRequestsPerConnection == nil {
		return nil
	}
	return common
}

func http2Options(settings *networking.ConnectionPoolSettings_HTTPSettings) *corev3.Http2ProtocolOptions {
	// Without extended CONNECT, upgraded connections such as WebSockets cannot use HTTP/2.
	o := &corev3.Http2ProtocolOptions{AllowConnect: true}
	if n := settings.GetMaxConcurrentStreams(); n > 0 {
		o.MaxConcurrentStreams = u32(uint32(n))
	}
	if k := settings.GetHttp2KeepAlive(); k != nil {
		o.ConnectionKeepalive = &corev3.KeepaliveSettings{Interval: nonZeroDuration(k.GetInterval()), Timeout: nonZeroDuration(k.GetTimeout())}
		if o.ConnectionKeepalive.Timeout == nil { // Envoy requires a timeout
			o.ConnectionKeepalive.Timeout = duration(20 * time.Second)
		}
	}
	return o
}

func explicitHTTP1() *httpv3.HttpProtocolOptions_ExplicitHttpConfig_ {
	return &httpv3.HttpProtocolOptions_ExplicitHttpConfig_{ExplicitHttpConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig{
		ProtocolConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_HttpProtocolOptions{HttpProtocolOptions: &corev3.Http1ProtocolOptions{}},
	}}
}

func explicitHTTP2(o *corev3.Http2ProtocolOptions) *httpv3.HttpProtocolOptions_ExplicitHttpConfig_ {
	return &httpv3.HttpProtocolOptions_ExplicitHttpConfig_{ExplicitHttpConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig{
		ProtocolConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{Http2ProtocolOptions: o},
	}}
}

// plainHTTPOptions returns the options of a cluster for the workload's own port or for destinations outside the mesh.
// No DestinationRule applies to such a cluster.
func plainHTTPOptions(http2 bool) *httpv3.HttpProtocolOptions {
	if http2 {
		return &httpv3.HttpProtocolOptions{UpstreamProtocolOptions: explicitHTTP2(http2Options(nil))}
	}
	return &httpv3.HttpProtocolOptions{UpstreamProtocolOptions: explicitHTTP1()}
}
