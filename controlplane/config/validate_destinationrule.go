package config

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"
)

var subsetName = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$`)

func validateDestinationRule(s validator, dr *networking.DestinationRule) {
	s.field("host").checkWildcardHost(dr.GetHost())
	s.field("trafficPolicy").checkTrafficPolicy(dr.GetTrafficPolicy())
	names := map[string]int{}
	for i, subset := range dr.GetSubsets() {
		at, name := s.item("subsets", i), subset.GetName()
		switch first, taken := names[name]; {
		case name == "":
			at.refuse("", "a subset needs a name", "set a name to which VirtualServices can refer")
		case !subsetName.MatchString(name):
			at.field("name").refuse(name, "not the name of a subset", "use letters, digits, '-', '_' and '.'")
		case taken:
			at.field("name").refuse(name, fmt.Sprintf("subsets %d and %d have the same name", first, i), "rename one")
		}
		names[name] = i
		at.field("labels").checkLabels(subset.GetLabels())
		at.field("trafficPolicy").checkTrafficPolicy(subset.GetTrafficPolicy())
	}
	s.field("workloadSelector").field("matchLabels").checkLabels(dr.GetWorkloadSelector().GetMatchLabels())
	s.field("exportTo").checkExportTo(dr.GetExportTo())
}

func (s validator) checkTrafficPolicy(p *networking.TrafficPolicy) {
	if p == nil {
		return
	}
	s.checkSettings(p)
	ports := map[uint32]int{}
	for i, ps := range p.GetPortLevelSettings() {
		at := s.item("portLevelSettings", i)
		number := ps.GetPort().GetNumber()
		if number == 0 {
			at.field("port").refuse("", "the port is missing", "set port.number")
		} else {
			at.field("port").field("number").checkPort(number)
		}
		if first, taken := ports[number]; taken {
			at.field("port").refuse(number, fmt.Sprintf("portLevelSettings %d and %d are for the same port", first, i), "merge them")
		}
		ports[number] = i
		at.checkSettings(ps)
	}
	if b := p.GetRetryBudget(); b != nil {
		s.field("retryBudget").field("percent").checkPercent(b.GetPercent().GetValue())
		s.field("retryBudget").field("budgetInterval").checkZeroOrMore(b.GetBudgetInterval())
	}
	if t := p.GetTunnel(); t != nil {
		at := s.field("tunnel")
		at.field("targetHost").checkHost(t.GetTargetHost())
		at.field("targetPort").checkPort(t.GetTargetPort())
		switch strings.ToUpper(t.GetProtocol()) {
		case "", "CONNECT", "POST":
		default:
			at.field("protocol").refuse(t.GetProtocol(), "not a supported method to request a tunnel", "one of: CONNECT, POST")
		}
	}
}

// checkSettings checks the settings that a traffic policy and its portLevelSettings have in common.
func (s validator) checkSettings(p interface {
	GetLoadBalancer() *networking.LoadBalancerSettings
	GetConnectionPool() *networking.ConnectionPoolSettings
	GetOutlierDetection() *networking.OutlierDetection
	GetTls() *networking.ClientTLSSettings
}) {
	s.field("loadBalancer").checkLoadBalancer(p.GetLoadBalancer())
	s.field("connectionPool").checkConnectionPool(p.GetConnectionPool())
	s.field("outlierDetection").checkOutlierDetection(p.GetOutlierDetection())
	s.field("tls").checkClientTLS(p.GetTls())
}

func (s validator) checkLoadBalancer(lb *networking.LoadBalancerSettings) {
	if hash := lb.GetConsistentHash(); hash != nil {
		at := s.field("consistentHash")
		if hash.GetHashKey() == nil {
			at.refuse("", "the hash key is missing", "set httpHeaderName, httpCookie, useSourceIp or httpQueryParameterName")
		}
		switch key := hash.GetHashKey().(type) {
		case *networking.LoadBalancerSettings_ConsistentHashLB_HttpHeaderName:
			at.field("httpHeaderName").checkHeaderName(key.HttpHeaderName)
		case *networking.LoadBalancerSettings_ConsistentHashLB_HttpQueryParameterName:
			if key.HttpQueryParameterName == "" {
				at.field("httpQueryParameterName").refuse("", "the parameter has no name", "set the name of the parameter")
			}
		}
		if cookie := hash.GetHttpCookie(); cookie != nil {
			if cookie.GetName() == "" {
				at.field("httpCookie").refuse("", "a cookie needs a name", "set name")
			}
			at.field("httpCookie").field("name").checkHeaderValue(cookie.GetName())
			at.field("httpCookie").field("path").checkHeaderValue(cookie.GetPath())
			for i, a := range cookie.GetAttributes() {
				at.field("httpCookie").item("attributes", i).field("name").checkHeaderName(a.GetName())
				at.field("httpCookie").item("attributes", i).field("value").checkHeaderValue(a.GetValue())
			}
			at.field("httpCookie").field("ttl").checkZeroOrMore(cookie.GetTtl())
		}
	}
	s.field("warmupDurationSecs").checkMilliseconds(lb.GetWarmupDurationSecs())
	if w := lb.GetWarmup(); w != nil {
		s.field("warmup").field("duration").checkMilliseconds(w.GetDuration())
		if w.GetDuration() == nil {
			s.field("warmup").warnNoEffect("", "has no effect without a duration", "set duration, as in 30s")
		}
		s.field("warmup").field("minimumPercent").checkPercent(w.GetMinimumPercent().GetValue())
	}
	s.field("localityLbSetting").checkLocalities(lb.GetLocalityLbSetting())
	s.checkZones(lb)
}

// automaticLabels are the labels that zone-aware routing always compares, so failoverPriority must not list them.
var automaticLabels = []string{"topology.kubernetes.io/region", "topology.kubernetes.io/zone", "topology.istio.io/subzone"}

func (s validator) checkZones(lb *networking.LoadBalancerSettings) {
	setting := lb.GetZoneAwareLbSetting()
	if setting == nil {
		return
	}
	at := s.field("zoneAwareLbSetting")
	if lb.GetLocalityLbSetting() != nil {
		at.refuse("", "cannot be combined with localityLbSetting", "remove one of them")
	}
	if lb.GetConsistentHash() != nil {
		at.warn("", "zone-aware routing has no effect with consistent hashing, which selects an endpoint in any zone", "remove one of the two settings")
	}
	if n := setting.GetMinClusterSize(); n != nil && n.GetValue() == 0 {
		at.field("minClusterSize").refuse(0, "not a number of endpoints", "set 1 or more")
	}
	for i, f := range setting.GetFailover() {
		if f.GetFrom() == "" || f.GetTo() == "" || f.GetFrom() == f.GetTo() {
			at.item("failover", i).refuse(f.GetTo(), "from and to must be two different regions", "set two different regions")
		}
	}
	for i, label := range setting.GetFailoverPriority() {
		if key, _, _ := strings.Cut(label, "="); slices.Contains(automaticLabels, key) {
			at.item("failoverPriority", i).refuse(label, "zone-aware routing always compares region, zone and subzone", "remove it")
		}
	}
}

func (s validator) checkLocalities(setting *networking.LocalityLoadBalancerSetting) {
	ways := 0
	for _, n := range []int{len(setting.GetDistribute()), len(setting.GetFailover()), len(setting.GetFailoverPriority())} {
		if n > 0 {
			ways++
		}
	}
	if ways > 1 {
		s.refuse("", "distribute, failover and failoverPriority exclude each other", "remove two of them")
	}
	for i, d := range setting.GetDistribute() {
		total := int64(0)
		for _, share := range d.GetTo() {
			total += int64(share)
		}
		if total != 100 {
			s.item("distribute", i).refuse(total, "the sum of the shares is not 100", "set shares with the sum 100")
		}
	}
}

func (s validator) checkConnectionPool(p *networking.ConnectionPoolSettings) {
	if tcp := p.GetTcp(); tcp != nil {
		at := s.field("tcp")
		at.field("maxConnections").checkNotNegative(tcp.GetMaxConnections())
		at.field("connectTimeout").checkMilliseconds(tcp.GetConnectTimeout())
		at.field("maxConnectionDuration").checkMilliseconds(tcp.GetMaxConnectionDuration())
		at.field("idleTimeout").checkZeroOrMore(tcp.GetIdleTimeout())
		at.field("tcpKeepalive").field("time").checkZeroOrMore(tcp.GetTcpKeepalive().GetTime())
		at.field("tcpKeepalive").field("interval").checkZeroOrMore(tcp.GetTcpKeepalive().GetInterval())
	}
	if http := p.GetHttp(); http != nil {
		at := s.field("http")
		at.field("http1MaxPendingRequests").checkNotNegative(http.GetHttp1MaxPendingRequests())
		at.field("http2MaxRequests").checkNotNegative(http.GetHttp2MaxRequests())
		at.field("maxRequestsPerConnection").checkRange(int64(http.GetMaxRequestsPerConnection()), 0, 536870912, "")
		at.field("maxRetries").checkNotNegative(http.GetMaxRetries())
		at.field("maxConcurrentStreams").checkNotNegative(http.GetMaxConcurrentStreams())
		at.field("idleTimeout").checkZeroOrMore(http.GetIdleTimeout())
		at.field("http2KeepAlive").field("interval").checkMilliseconds(http.GetHttp2KeepAlive().GetInterval())
		at.field("http2KeepAlive").field("timeout").checkMilliseconds(http.GetHttp2KeepAlive().GetTimeout())
		if http.GetUseClientProtocol() && http.GetH2UpgradePolicy() == networking.ConnectionPoolSettings_HTTPSettings_UPGRADE {
			at.field("useClientProtocol").refuse(true, "cannot be combined with h2UpgradePolicy: UPGRADE", "remove one of the two")
		}
	}
}

func (s validator) checkOutlierDetection(o *networking.OutlierDetection) {
	if o == nil {
		return
	}
	s.field("interval").checkMilliseconds(o.GetInterval())
	s.field("baseEjectionTime").checkMilliseconds(o.GetBaseEjectionTime())
	//lint:ignore SA1019 the field is deprecated, but documents still use it
	s.field("consecutiveErrors").checkNotNegative(o.GetConsecutiveErrors())
	for i, code := range o.GetOutlierDetectionHttpErrorCodes() {
		s.item("outlierDetectionHttpErrorCodes", i).checkRange(int64(code), 100, 599, "set a status code, as in 503")
	}
	s.field("maxEjectionPercent").checkPercent(float64(o.GetMaxEjectionPercent()))
	s.field("minHealthPercent").checkPercent(float64(o.GetMinHealthPercent()))
	if o.GetConsecutiveLocalOriginFailures().GetValue() > 0 && !o.GetSplitExternalLocalOriginErrors() {
		s.field("consecutiveLocalOriginFailures").refuse(o.GetConsecutiveLocalOriginFailures().GetValue(),
			"has an effect only with splitExternalLocalOriginErrors", "set splitExternalLocalOriginErrors: true")
	}
}

func (s validator) checkClientTLS(t *networking.ClientTLSSettings) {
	if t == nil {
		return
	}
	s.checkClientRevocations(t)
	s.checkUnverified(t)
	files := map[string]string{"clientCertificate": t.GetClientCertificate(), "privateKey": t.GetPrivateKey(), "caCertificates": t.GetCaCertificates()}
	switch t.GetMode() {
	case networking.ClientTLSSettings_MUTUAL:
		s.checkMutualFiles(t)
	case networking.ClientTLSSettings_ISTIO_MUTUAL:
		for name, file := range files {
			if file != "" {
				s.field(name).refuse(file, "with mode ISTIO_MUTUAL, proxies use the certificates of the mesh and ignore this file", "remove the field, or use mode MUTUAL")
			}
		}
	case networking.ClientTLSSettings_DISABLE:
		for name, file := range files {
			if file != "" {
				s.field(name).warn(file, "has no effect with mode DISABLE", "remove the field, or set the mode to SIMPLE, MUTUAL or ISTIO_MUTUAL")
			}
		}
	}
}

// checkUnverified warns of caCertificates and subjectAltNames that have no effect, because insecureSkipVerify is set.
func (s validator) checkUnverified(t *networking.ClientTLSSettings) {
	if !t.GetInsecureSkipVerify().GetValue() {
		return
	}
	const message, remedy = "has no effect, because insecureSkipVerify disables the verification of the server", "remove insecureSkipVerify, or this field"
	if file := t.GetCaCertificates(); file != "" {
		s.field("caCertificates").warnNoEffect(file, message, remedy)
	}
	if names := t.GetSubjectAltNames(); len(names) > 0 {
		s.field("subjectAltNames").warnNoEffect(strings.Join(names, ", "), message, remedy)
	}
}

// checkClientRevocations refuses a certificate revocation list (caCrl) that would have no effect.
func (s validator) checkClientRevocations(t *networking.ClientTLSSettings) {
	at, crl := s.field("caCrl"), t.GetCaCrl()
	switch {
	case crl == "":
	case t.GetCredentialName() != "":
		at.refuse(crl, "has no effect together with credentialName, so clients would accept a revoked certificate", "add the list to the Secret, as ca.crl")
	case t.GetMode() == networking.ClientTLSSettings_ISTIO_MUTUAL:
		at.refuse(crl, "has no effect on certificates of the mesh, so clients would accept a revoked certificate", "provide the list to agents as ca-crl.pem")
	case t.GetInsecureSkipVerify().GetValue():
		at.refuse(crl, "with insecureSkipVerify, clients accept any certificate, including revoked ones", "remove insecureSkipVerify")
	default:
		at.checkFilePath(crl)
	}
}

func (s validator) checkMutualFiles(t *networking.ClientTLSSettings) {
	if t.GetCredentialName() != "" {
		if t.GetClientCertificate() != "" || t.GetPrivateKey() != "" || t.GetCaCertificates() != "" {
			s.field("credentialName").refuse(t.GetCredentialName(), "credentialName and certificate files exclude each other", "remove one of them")
		}
		return
	}
	if t.GetClientCertificate() == "" {
		s.field("clientCertificate").refuse("", "mode MUTUAL needs a certificate", "set the path of its file")
	}
	if t.GetPrivateKey() == "" {
		s.field("privateKey").refuse("", "mode MUTUAL needs a private key", "set the path of its file")
	}
}
