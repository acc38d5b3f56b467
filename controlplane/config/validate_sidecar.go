package config

import (
	"net/netip"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"
)

func validateSidecar(s validator, sc *networking.Sidecar) {
	s.field("workloadSelector").field("labels").checkLabels(sc.GetWorkloadSelector().GetLabels())
	if len(sc.GetEgress()) == 0 && len(sc.GetIngress()) == 0 && sc.GetOutboundTrafficPolicy() == nil && sc.GetInboundConnectionPool() == nil {
		s.warn("", "the Sidecar is empty", "list the hosts that the workloads call: egress with hosts")
	}
	for i, listener := range sc.GetEgress() {
		s.item("egress", i).checkEgress(listener)
	}
	ports := map[uint32]bool{}
	for i, listener := range sc.GetIngress() {
		s.item("ingress", i).checkIngress(listener)
		number := listener.GetPort().GetNumber()
		if ports[number] {
			s.item("ingress", i).field("port").field("number").refuse(number, "another listener has this port", "remove one of the two")
		}
		ports[number] = true
	}
	if proxy := sc.GetOutboundTrafficPolicy().GetEgressProxy(); proxy != nil {
		s.field("outboundTrafficPolicy").field("egressProxy").checkEgressProxy(proxy)
	}
	if sc.GetInboundConnectionPool() != nil {
		s.field("inboundConnectionPool").checkConnectionPool(sc.GetInboundConnectionPool())
	}
}

func (s validator) checkEgress(listener *networking.IstioEgressListener) {
	if len(listener.GetHosts()) == 0 {
		s.field("hosts").refuse("", "the list of hosts is empty", "list the hosts that the workloads call, as in \"./*\"; \"~/*\" means none")
	}
	for j, host := range listener.GetHosts() {
		s.item("hosts", j).checkEgressHost(host)
	}
	s.field("hosts").checkExclusions(listener.GetHosts())
	if listener.GetPort() != nil {
		s.field("port").checkSidecarPort(listener.GetPort())
	} else if listener.GetBind() != "" {
		s.field("bind").refuse(listener.GetBind(), "a listener with bind needs a port", "set the port")
	}
	s.field("bind").checkBind(listener.GetBind())
}

// checkExclusions warns of a list that excludes hosts but includes none, unless it contains "~/*", which excludes all
// hosts intentionally.
func (s validator) checkExclusions(hosts []string) {
	isExclusion := func(host string) bool { return strings.HasPrefix(host, "~") }
	if len(hosts) == 0 || slices.Contains(hosts, "~/*") || !slices.ContainsFunc(hosts, isExclusion) {
		return
	}
	if !slices.ContainsFunc(hosts, func(host string) bool { return !isExclusion(host) }) {
		s.warn(strings.Join(hosts, ", "), "the list only excludes hosts, so the workloads see no host", "add the hosts to include, for example \"*/*\"")
	}
}

func (s validator) checkIngress(listener *networking.IstioIngressListener) {
	if listener.GetPort() == nil {
		s.field("port").refuse("", "the port is missing", "set the port to listen on")
		return
	}
	s.field("port").checkSidecarPort(listener.GetPort())
	s.field("bind").checkBind(listener.GetBind())
	s.field("defaultEndpoint").checkEndpoint(listener.GetDefaultEndpoint())
	if listener.GetConnectionPool() != nil {
		s.field("connectionPool").checkConnectionPool(listener.GetConnectionPool())
	}
	tls := listener.GetTls()
	if tls == nil {
		return
	}
	switch at := s.field("tls"); {
	case tls.GetMode() != networking.ServerTLSSettings_SIMPLE && tls.GetMode() != networking.ServerTLSSettings_MUTUAL && tls.GetMode() != networking.ServerTLSSettings_OPTIONAL_MUTUAL:
		at.field("mode").refuse(tls.GetMode(), "a Sidecar can configure only simple or mutual TLS; a PeerAuthentication configures the TLS of the mesh", "use SIMPLE, MUTUAL or OPTIONAL_MUTUAL")
	case tls.GetHttpsRedirect():
		at.field("httpsRedirect").refuse(true, "has an effect only at gateways", "remove it")
	default:
		at.checkServerTLS(tls)
	}
}

func (s validator) checkSidecarPort(port *networking.SidecarPort) {
	s.field("number").checkPort(port.GetNumber())
	if port.GetProtocol() != "" {
		s.checkProtocol(port.GetProtocol(), gatewayProtocols)
	}
}

func (s validator) checkBind(address string) {
	if address != "" && !isIP(address) {
		s.refuse(address, "sidecars in this mesh cannot listen on this address", "set an IP address")
	}
}

// checkEndpoint checks a defaultEndpoint: a loopback or unspecified address with a port, or a unix socket.
func (s validator) checkEndpoint(text string) {
	if text == "" {
		return
	}
	const remedy = "use 127.0.0.1:PORT, [::1]:PORT, 0.0.0.0:PORT for the workload's own address, or unix:///PATH"
	if path, ok := strings.CutPrefix(text, "unix://"); ok {
		if !strings.HasPrefix(path, "/") || len(path) > 107 {
			s.refuse(text, "not a socket's path", remedy)
		}
		return
	}
	at, err := netip.ParseAddrPort(text)
	if err != nil || at.Port() == 0 || !at.Addr().IsLoopback() && !at.Addr().IsUnspecified() {
		s.refuse(text, "not an address of the workload", remedy)
	}
}

func (s validator) checkEgressProxy(proxy *networking.Destination) {
	s.field("host").checkHost(proxy.GetHost())
	if proxy.GetPort().GetNumber() == 0 {
		s.field("port").refuse("", "the port is missing", "set the port of the proxy: port.number")
	}
}
