package bootstrap

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	metricsv3 "github.com/envoyproxy/go-control-plane/envoy/config/metrics/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Pod annotations about the proxy's statistics. Each overrides the same setting of ProxyConfig.
const (
	annotationPrefixes  = "sidecar.istio.io/statsInclusionPrefixes"
	annotationSuffixes  = "sidecar.istio.io/statsInclusionSuffixes"
	annotationRegexps   = "sidecar.istio.io/statsInclusionRegexps"
	annotationExtraTags = "sidecar.istio.io/extraStatTags"
	annotationBuckets   = "sidecar.istio.io/statsHistogramBuckets"
	annotationFlush     = "sidecar.istio.io/statsFlushInterval"
	annotationEviction  = "sidecar.istio.io/statsEvictionInterval"
	annotationCompress  = "sidecar.istio.io/statsCompression"
)

// Statistics that Envoy always reports: those that the agent's readiness check reads, and those that mesh operators
// rely on. The lists are short, because each statistic costs memory in every proxy.
var (
	requiredPrefixes = []string{"cluster_manager", "listener_manager", "server", "cluster.xds-grpc", "wasm", "control_plane.connected_state"}
	requiredSuffixes = append([]string{"rbac.allowed", "rbac.denied", "shadow_allowed", "shadow_denied"}, drainSuffixes...)
	requiredRegexps  = []string{`vhost\..*\.route\..*`}
)

// drainSuffixes are the statistics for which a draining proxy waits: a listener's connections, the active requests, and
// the unsent bytes of responses. The counters of accepted connections and requests show whether clients still send
// requests.
var drainSuffixes = []string{
	"downstream_cx_active", "downstream_rq_active", "downstream_cx_tx_bytes_buffered", "downstream_cx_total", "downstream_rq_total",
}

// DrainOnlyStats returns "_" and the name suffix of each statistic that only a drain needs, because the user's settings
// do not select it. It returns nil if the settings contain a regular expression, or a prefix of listener, HTTP or TCP
// statistics. It also returns nil for a customized bootstrap, whose statistics are unknown.
func DrainOnlyStats(c Config) []string {
	if c.isCustomized() {
		return nil
	}
	configured := c.ProxyConfig.GetProxyStatsMatcher()
	prefixes := selectPatterns(c, annotationPrefixes, configured.GetInclusionPrefixes())
	suffixes := selectPatterns(c, annotationSuffixes, configured.GetInclusionSuffixes())
	regexps := selectPatterns(c, annotationRegexps, configured.GetInclusionRegexps())
	// A regular expression, or a prefix such as "http.", may select some of these statistics. The function does not
	// analyze which, and omits none.
	if len(regexps) > 0 || slices.ContainsFunc(prefixes, isTrafficPrefix) {
		return nil
	}
	var hidden []string
	for _, stat := range drainSuffixes {
		if !slices.ContainsFunc(suffixes, func(s string) bool { return strings.HasSuffix(stat, s) || strings.HasSuffix(s, stat) }) {
			hidden = append(hidden, "_"+stat)
		}
	}
	return hidden
}

// isTrafficPrefix reports whether a prefix selects statistics of listeners, HTTP servers or TCP proxies.
func isTrafficPrefix(p string) bool {
	return slices.ContainsFunc([]string{"listener.", "http.", "tcp."}, func(scope string) bool {
		return strings.HasPrefix(p, scope) || strings.HasPrefix(scope, p)
	})
}

// overloadPrefix is the prefix of the statistics about Envoy's overload actions and about how full the heap is.
const overloadPrefix = "overload."

const podIP = "{pod_ip}"

func statsConfig(c Config) *metricsv3.StatsConfig {
	buckets, _ := histogramBuckets(c.Annotations[annotationBuckets]) // statsWarnings reports the error
	return &metricsv3.StatsConfig{
		UseAllDefaultTags:       wrapperspb.Bool(false),
		StatsTags:               statsTags(extraTags(c)),
		StatsMatcher:            statsMatcher(c),
		HistogramBucketSettings: buckets,
	}
}

// extraTags returns the tags of ProxyConfig and of the annotation without duplicates.
func extraTags(c Config) []string {
	var tags []string
	all := append(slices.Clone(c.ProxyConfig.GetExtraStatTags()), splitList(c.Annotations[annotationExtraTags])...)
	for _, tag := range all {
		if tag != "" && !slices.Contains(tags, tag) {
			tags = append(tags, tag)
		}
	}
	return tags
}

// statsTags returns the rules that extract labels from the names of statistics.
func statsTags(extra []string) []*metricsv3.TagSpecifier {
	const address = `(((?:[_.[:digit:]]*|[_\[\]aAbBcCdDeEfF[:digit:]]*))\.)`
	// Control planes append a semicolon to the names of clusters and listeners, so that dots in the names are not
	// ambiguous. Older control planes do not.
	const (
		cluster    = `((.+(?=;\.)|.+?(\..+?\.svc\.cluster\.local)?);?\.)`
		connection = `(([\w.:\[\]]+(?=;\.)|[_.[:digit:]]*|[_\[\]aAbBcCdDeEfF[:digit:]]*);?\.)`
	)
	tags := []*metricsv3.TagSpecifier{
		tag("cluster_name", `^cluster\.`+cluster),
		tag("tcp_prefix", `^tcp\.((.*?)\.)\w+?$`),
		tag("response_code", `_rq(_(\d{3}))$`),
		tag("response_code_class", `_rq(_(\dxx))$`),
		tag("http_conn_manager_listener_prefix", `^listener(?=\.).*?\.http\.`+address),
		tag("http_conn_manager_prefix", `^http\.`+connection),
		tag("thread_name", `^server(\.(.+))\.watchdog`),
		tag("listener_address", `^listener\.`+address),
		tag("mongo_prefix", `^mongo\.(.+?)\.(collection|cmd|cx_|op_|delays_|decoding_)(.*?)$`),
	}
	for _, name := range extra {
		tags = append(tags, tag(name, fmt.Sprintf(`(%s=\.=(.*?);\.;)`, name)))
	}
	return append(tags,
		tag("cache", `(cache\.(.+?)\.)`),
		tag("component", `(component\.(.+?)\.)`),
		tag("tag", `(tag\.(.+?);\.)`),
		tag("wasm_filter", `(wasm_filter\.(.+?)\.)`),
		tag("authz_enforce_result", `rbac(\.(allowed|denied))`),
		tag("authz_dry_run_action", `(\.istio_dry_run_(allow|deny)_)`),
		tag("authz_dry_run_result", `(\.shadow_(allowed|denied))`),
	)
}

func tag(name, regex string) *metricsv3.TagSpecifier {
	return &metricsv3.TagSpecifier{TagName: name, TagValue: &metricsv3.TagSpecifier_Regex{Regex: regex}}
}

func statsMatcher(c Config) *metricsv3.StatsMatcher {
	configured := c.ProxyConfig.GetProxyStatsMatcher()
	var patterns []*matcherv3.StringMatcher
	patterns = append(patterns, prefix("reporter="))
	prefixes := requiredPrefixes
	if c.MemoryLimit > 0 {
		prefixes = append(slices.Clone(prefixes), overloadPrefix)
	}
	for _, p := range inclusionPatterns(c, annotationPrefixes, configured.GetInclusionPrefixes(), prefixes) {
		patterns = append(patterns, prefix(p))
	}
	for _, s := range inclusionPatterns(c, annotationSuffixes, configured.GetInclusionSuffixes(), requiredSuffixes) {
		patterns = append(patterns, &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Suffix{Suffix: s}})
	}
	for _, r := range inclusionPatterns(c, annotationRegexps, configured.GetInclusionRegexps(), requiredRegexps) {
		patterns = append(patterns, &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_SafeRegex{
			SafeRegex: &matcherv3.RegexMatcher{Regex: r},
		}})
	}
	patterns = append(patterns, prefix("component"), prefix("istio"))
	return &metricsv3.StatsMatcher{StatsMatcher: &metricsv3.StatsMatcher_InclusionList{
		InclusionList: &matcherv3.ListStringMatcher{Patterns: patterns},
	}}
}

func prefix(p string) *matcherv3.StringMatcher {
	return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: p}}
}

// selectPatterns returns the patterns in the annotation. If the annotation is missing, it returns the configured ones.
func selectPatterns(c Config, annotation string, configured []string) []string {
	if wanted := splitList(c.Annotations[annotation]); len(wanted) > 0 {
		return wanted
	}
	return configured
}

// inclusionPatterns returns the patterns in the annotation, or else the configured ones, followed by the required
// patterns. It replaces a pattern with {pod_ip} by one pattern for each address of the proxy.
func inclusionPatterns(c Config, annotation string, configured, required []string) []string {
	var patterns []string
	for _, p := range append(slices.Clone(selectPatterns(c, annotation, configured)), required...) {
		if p == "" || slices.Contains(patterns, p) {
			continue
		}
		if !strings.Contains(p, podIP) {
			patterns = append(patterns, p)
			continue
		}
		for _, ip := range c.IPs {
			patterns = append(patterns, strings.ReplaceAll(p, podIP, ip.String()))
		}
	}
	return patterns
}

func splitList(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, ",")
}

// histogramBuckets parses the annotation: a JSON object that maps a prefix of statistics to bucket limits.
func histogramBuckets(annotation string) ([]*metricsv3.HistogramBucketSettings, error) {
	if annotation == "" {
		return nil, nil
	}
	byPrefix := map[string][]float64{}
	if err := json.Unmarshal([]byte(annotation), &byPrefix); err != nil {
		return nil, fmt.Errorf(`annotation %s: %q: %w; write a value such as {"<prefix of the statistic>": [1, 5, 10]}`,
			annotationBuckets, annotation, err)
	}
	var settings []*metricsv3.HistogramBucketSettings
	for p, buckets := range byPrefix {
		settings = append(settings, &metricsv3.HistogramBucketSettings{Match: prefix(p), Buckets: buckets})
	}
	slices.SortFunc(settings, func(a, b *metricsv3.HistogramBucketSettings) int {
		return strings.Compare(a.GetMatch().GetPrefix(), b.GetMatch().GetPrefix())
	})
	return settings, nil
}

// Envoy's default and limits of the interval between flushes of statistics.
const (
	defaultFlush = 5 * time.Second
	minFlush     = time.Millisecond
	maxFlush     = 5 * time.Minute // exclusive
)

// flushInterval returns the interval from the annotation at which Envoy flushes statistics. It returns 0 if the
// annotation is missing: Envoy's default then applies.
func flushInterval(c Config) (time.Duration, error) {
	flush, err := annotationDuration(c, annotationFlush)
	if err == nil && flush != 0 && (flush < minFlush || flush >= maxFlush) {
		return 0, fmt.Errorf("annotation %s: %s is out of range; write a duration from 1ms to less than 5m", annotationFlush, flush)
	}
	return flush, err
}

// evictionInterval returns the interval from the annotation at which Envoy removes unused statistics. It returns 0 if
// the annotation is missing: Envoy then removes none.
func evictionInterval(c Config) (time.Duration, error) {
	flush, _ := flushInterval(c)
	flush = cmp.Or(flush, defaultFlush)
	eviction, err := annotationDuration(c, annotationEviction)
	if err == nil && eviction%flush != 0 {
		return 0, fmt.Errorf("annotation %s: %s is not a multiple of the flush interval %s (%s); write a multiple",
			annotationEviction, eviction, flush, annotationFlush)
	}
	return eviction, err
}

// setStatsIntervals sets the intervals in the annotations. Invalid ones have no effect (see statsWarnings).
func setStatsIntervals(c Config, b *bootstrapv3.Bootstrap) {
	if flush, err := flushInterval(c); err == nil && flush != 0 {
		b.StatsFlushInterval = durationpb.New(flush)
	}
	if eviction, err := evictionInterval(c); err == nil && eviction != 0 {
		b.StatsEviction = &bootstrapv3.Bootstrap_StatsEvictionInterval{StatsEvictionInterval: durationpb.New(eviction)}
	}
}

// statsWarnings returns warnings about invalid annotations. As in Istio, invalid annotations do not prevent the start.
func statsWarnings(c Config) []string {
	_, flushErr := flushInterval(c)
	_, evictionErr := evictionInterval(c)
	_, bucketsErr := histogramBuckets(c.Annotations[annotationBuckets])
	var warnings []string
	for _, err := range []error{flushErr, evictionErr, bucketsErr} {
		if err != nil {
			warnings = append(warnings, err.Error()+"; the annotation has no effect")
		}
	}
	return append(warnings, compressionWarnings(c)...)
}

// annotationDuration returns the duration in an annotation, or 0 if there is none.
func annotationDuration(c Config, name string) (time.Duration, error) {
	text := c.Annotations[name]
	if text == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return 0, fmt.Errorf("annotation %s: %q is not a positive duration; write a value such as 10s or 2m", name, text)
	}
	return d, nil
}

// statsSinks returns the statistics sinks that ProxyConfig configures.
func statsSinks(c Config, a *anyBuilder) []*metricsv3.StatsSink {
	var sinks []*metricsv3.StatsSink
	if metricsService(c.ProxyConfig).GetAddress() != "" {
		sinks = append(sinks, metricsServiceSink(a))
	}
	if address := c.expand(c.ProxyConfig.GetStatsdUdpAddress()); address != "" {
		sinks = append(sinks, statsdSink(address, a))
	}
	return sinks
}

func (c Config) hasStatsSinks() bool {
	return metricsService(c.ProxyConfig).GetAddress() != "" || c.expand(c.ProxyConfig.GetStatsdUdpAddress()) != ""
}

func statsdSink(address string, a *anyBuilder) *metricsv3.StatsSink {
	host, portText, err := net.SplitHostPort(address)
	port, portErr := strconv.ParseUint(portText, 10, 16)
	if err != nil || portErr != nil || net.ParseIP(host) == nil {
		a.fail(fmt.Errorf("statsdUdpAddress %q is not <IP address>:<port>; Envoy does not resolve the names of statsd servers", address))
		return nil
	}
	return &metricsv3.StatsSink{
		Name: "envoy.stat_sinks.statsd",
		ConfigType: &metricsv3.StatsSink_TypedConfig{TypedConfig: a.add(&metricsv3.StatsdSink{
			StatsdSpecifier: &metricsv3.StatsdSink_Address{Address: udp(host, uint32(port))},
		})},
	}
}
