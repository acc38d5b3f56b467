package translate

import (
	"math"
	"strconv"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/config/common/matcher/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networking "istio.io/api/networking/v1alpha3"
)

// circuitBreakers returns the limits that a DestinationRule specifies. Without a rule there are no limits, as in Istio,
// because Envoy's defaults (1,024 connections, 3 retries) are too low for a mesh.
func circuitBreakers(pool *networking.ConnectionPoolSettings, retries *networking.TrafficPolicy_RetryBudget) *clusterv3.CircuitBreakers {
	t := &clusterv3.CircuitBreakers_Thresholds{
		MaxConnections:     u32(math.MaxUint32),
		MaxPendingRequests: u32(math.MaxUint32),
		MaxRequests:        u32(math.MaxUint32),
		MaxRetries:         u32(math.MaxUint32),
		TrackRemaining:     true,
	}
	setLimit(&t.MaxConnections, pool.GetTcp().GetMaxConnections())
	setLimit(&t.MaxPendingRequests, pool.GetHttp().GetHttp1MaxPendingRequests())
	setLimit(&t.MaxRequests, pool.GetHttp().GetHttp2MaxRequests())
	setLimit(&t.MaxRetries, pool.GetHttp().GetMaxRetries())
	if retries != nil { // the budget replaces the fixed maximum number of retries
		t.MaxRetries = nil
		t.RetryBudget = &clusterv3.CircuitBreakers_Thresholds_RetryBudget{
			BudgetPercent: &typev3.Percent{Value: 20}, MinRetryConcurrency: u32(3), BudgetInterval: retries.GetBudgetInterval(),
		}
		if p := retries.GetPercent(); p != nil {
			t.RetryBudget.BudgetPercent.Value = p.GetValue()
		}
		if n := retries.GetMinRetryConcurrency(); n > 0 {
			t.RetryBudget.MinRetryConcurrency = u32(n)
		}
	}
	return &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{t}}
}

func setLimit(field **wrapperspb.UInt32Value, n int32) {
	if n > 0 {
		*field = u32(uint32(n))
	}
}

// setConnectionOptions sets the options of the cluster's TCP connections.
func setConnectionOptions(cluster *clusterv3.Cluster, pool *networking.ConnectionPoolSettings, meshKeepalive *networking.ConnectionPoolSettings_TCPSettings_TcpKeepalive) {
	if t := pool.GetTcp().GetConnectTimeout(); t != nil {
		cluster.ConnectTimeout = t
	}
	keepalive := pool.GetTcp().GetTcpKeepalive()
	if keepalive == nil {
		keepalive = meshKeepalive
	}
	if keepalive == nil {
		return
	}
	k := &corev3.TcpKeepalive{}
	if n := keepalive.GetProbes(); n > 0 {
		k.KeepaliveProbes = u32(n)
	}
	if t := keepalive.GetTime(); t != nil {
		k.KeepaliveTime = u32(uint32(t.GetSeconds()))
	}
	if t := keepalive.GetInterval(); t != nil {
		k.KeepaliveInterval = u32(uint32(t.GetSeconds()))
	}
	cluster.UpstreamConnectionOptions = &clusterv3.UpstreamConnectionOptions{TcpKeepalive: k}
}

func setLoadBalancing(cluster *clusterv3.Cluster, lb *networking.LoadBalancerSettings) {
	cluster.LbPolicy = clusterv3.Cluster_LEAST_REQUEST
	switch lb.GetSimple() {
	case networking.LoadBalancerSettings_ROUND_ROBIN:
		cluster.LbPolicy = clusterv3.Cluster_ROUND_ROBIN
	case networking.LoadBalancerSettings_RANDOM:
		cluster.LbPolicy = clusterv3.Cluster_RANDOM
	case networking.LoadBalancerSettings_PASSTHROUGH:
		setOriginalDst(cluster)
		cluster.EdsClusterConfig, cluster.LoadAssignment, cluster.CommonLbConfig = nil, nil, nil
		return
	}
	if hash := lb.GetConsistentHash(); hash != nil {
		setConsistentHash(cluster, hash)
		return
	}
	setSlowStart(cluster, lb)
}

func setConsistentHash(cluster *clusterv3.Cluster, hash *networking.LoadBalancerSettings_ConsistentHashLB) {
	if maglev := hash.GetMaglev(); maglev != nil {
		cluster.LbPolicy = clusterv3.Cluster_MAGLEV
		if n := primeFrom(maglev.GetTableSize()); n > 0 {
			cluster.LbConfig = &clusterv3.Cluster_MaglevLbConfig_{MaglevLbConfig: &clusterv3.Cluster_MaglevLbConfig{TableSize: wrapperspb.UInt64(n)}}
		}
		return
	}
	size := hash.GetRingHash().GetMinimumRingSize()
	if size == 0 {
		size = hash.GetMinimumRingSize() //lint:ignore SA1019 the field is deprecated, but documents still use it
	}
	if size == 0 {
		size = 1024
	}
	size = min(size, maxRingSize)
	cluster.LbPolicy = clusterv3.Cluster_RING_HASH
	cluster.LbConfig = &clusterv3.Cluster_RingHashLbConfig_{RingHashLbConfig: &clusterv3.Cluster_RingHashLbConfig{MinimumRingSize: wrapperspb.UInt64(size)}}
}

// Envoy's limits for the sizes of the ring hash table and the Maglev table.
const (
	maxRingSize   = 8 << 20
	maxMaglevSize = 5_000_011
)

// primeFrom returns the smallest prime number that is at least n, but not more than maxMaglevSize. The size of a Maglev
// table must be a prime number. primeFrom returns 0 for 0.
func primeFrom(n uint64) uint64 {
	if n == 0 {
		return 0
	}
	for n = min(max(n, 2), maxMaglevSize); ; n++ {
		prime := true
		for d := uint64(2); d*d <= n && prime; d++ {
			prime = n%d != 0
		}
		if prime {
			return n
		}
	}
}

// setSlowStart makes the share of requests that a new endpoint receives grow gradually.
func setSlowStart(cluster *clusterv3.Cluster, lb *networking.LoadBalancerSettings) {
	slow := &clusterv3.Cluster_SlowStartConfig{SlowStartWindow: lb.GetWarmupDurationSecs()}
	if w := lb.GetWarmup(); w != nil {
		slow.SlowStartWindow = w.GetDuration()
		if w.GetMinimumPercent() != nil {
			slow.MinWeightPercent = &typev3.Percent{Value: w.GetMinimumPercent().GetValue()}
		}
		if w.GetAggression() != nil {
			slow.Aggression = &corev3.RuntimeDouble{DefaultValue: w.GetAggression().GetValue(), RuntimeKey: "slowstart.aggression"}
		}
	}
	if slow.SlowStartWindow == nil {
		return
	}
	switch cluster.LbPolicy {
	case clusterv3.Cluster_ROUND_ROBIN:
		cluster.LbConfig = &clusterv3.Cluster_RoundRobinLbConfig_{RoundRobinLbConfig: &clusterv3.Cluster_RoundRobinLbConfig{SlowStartConfig: slow}}
	case clusterv3.Cluster_LEAST_REQUEST:
		cluster.LbConfig = &clusterv3.Cluster_LeastRequestLbConfig_{LeastRequestLbConfig: &clusterv3.Cluster_LeastRequestLbConfig{SlowStartConfig: slow}}
	}
}

// setOutlierDetection ejects endpoints only after consecutive errors, as Istio does. It disables ejection by success
// rate, which would eject average endpoints if there are few.
func setOutlierDetection(cluster *clusterv3.Cluster, o *networking.OutlierDetection) {
	if o == nil || cluster.CommonLbConfig == nil {
		return
	}
	out := &clusterv3.OutlierDetection{
		EnforcingSuccessRate: u32(0),
		Interval:             o.GetInterval(),
		BaseEjectionTime:     o.GetBaseEjectionTime(),
	}
	out.Consecutive_5Xx, out.EnforcingConsecutive_5Xx = consecutiveThreshold(o.GetConsecutive_5XxErrors())
	out.ConsecutiveGatewayFailure, out.EnforcingConsecutiveGatewayFailure = consecutiveThreshold(o.GetConsecutiveGatewayErrors())
	//lint:ignore SA1019 the field is deprecated, but documents still use it
	if n := o.GetConsecutiveErrors(); n > 0 && o.GetConsecutiveGatewayErrors() == nil {
		out.ConsecutiveGatewayFailure, out.EnforcingConsecutiveGatewayFailure = consecutiveThreshold(wrapperspb.UInt32(uint32(n)))
	}
	if n := o.GetMaxEjectionPercent(); n > 0 {
		out.MaxEjectionPercent = u32(uint32(n))
	}
	if o.GetSplitExternalLocalOriginErrors() {
		out.SplitExternalLocalOriginErrors = true
		out.EnforcingLocalOriginSuccessRate = u32(0)
		if n := o.GetConsecutiveLocalOriginFailures(); n.GetValue() > 0 {
			out.ConsecutiveLocalOriginFailure, out.EnforcingConsecutiveLocalOriginFailure = consecutiveThreshold(n)
		}
	}
	cluster.OutlierDetection = out
	cluster.CommonLbConfig.HealthyPanicThreshold = &typev3.Percent{Value: float64(o.GetMinHealthPercent())}
}

// consecutiveThreshold returns the number of consecutive errors after which Envoy ejects an endpoint, and the
// percentage of cases in which Envoy enforces the ejection. If n is 0, the percentage is 0, which disables the
// ejection. If n is nil, both results are nil, which selects Envoy's defaults.
func consecutiveThreshold(n *wrapperspb.UInt32Value) (threshold, enforcing *wrapperspb.UInt32Value) {
	switch {
	case n == nil:
		return nil, nil
	case n.GetValue() == 0:
		// Envoy requires a threshold of at least one, even if ejection is not enforced.
		return nil, u32(0)
	}
	return u32(n.GetValue()), u32(100)
}

// errorCodes returns the status codes that outlier detection counts as errors in place of 5xx. It returns nil if the
// rule specifies none.
func errorCodes(o *networking.OutlierDetection) *httpv3.HttpProtocolOptions_OutlierDetection {
	codes := o.GetOutlierDetectionHttpErrorCodes()
	if len(codes) == 0 {
		return nil
	}
	var texts []string
	for _, code := range codes {
		texts = append(texts, strconv.FormatUint(uint64(code), 10))
	}
	return &httpv3.HttpProtocolOptions_OutlierDetection{ErrorMatcher: &matcherv3.MatchPredicate{
		Rule: &matcherv3.MatchPredicate_HttpResponseHeadersMatch{HttpResponseHeadersMatch: &matcherv3.HttpHeadersMatch{
			Headers: []*routev3.HeaderMatcher{{
				Name:                 ":status",
				HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{StringMatch: regex(strings.Join(texts, "|"))},
			}},
		}},
	}}
}

// nonZeroDuration returns the duration, or nil if it is unset or zero.
func nonZeroDuration(d *durationpb.Duration) *durationpb.Duration {
	if d.AsDuration() == 0 {
		return nil
	}
	return d
}
