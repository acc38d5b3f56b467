package config

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"
)

var entryProtocols = []string{"HTTP", "HTTPS", "GRPC", "GRPC-Web", "HTTP2", "MONGO", "TCP", "TLS", "MYSQL", "REDIS", "UDP"}

func validateServiceEntry(s validator, se *networking.ServiceEntry) {
	if len(se.GetHosts()) == 0 {
		s.field("hosts").refuse("", "a ServiceEntry needs hosts", "list the host names to which clients send requests")
	}
	for i, host := range se.GetHosts() {
		s.item("hosts", i).checkWildcardHost(host)
		if host == "*" {
			s.item("hosts", i).refuse(host, "a ServiceEntry cannot match all hosts", "set a host name, or a part of a domain as in *.example.com")
		}
	}
	if slices.ContainsFunc(se.GetPorts(), func(p *networking.ServicePort) bool { return isTLSProtocol(p.GetProtocol()) }) {
		for i, host := range se.GetHosts() {
			s.item("hosts", i).checkServerName(host)
		}
	}
	s.field("addresses").checkCIDRs(se.GetAddresses())
	s.checkEntryPorts(se)
	s.checkEntryEndpoints(se)
	s.checkResolution(se)
	s.field("workloadSelector").field("labels").checkLabels(se.GetWorkloadSelector().GetLabels())
	s.field("exportTo").checkExportTo(se.GetExportTo())
}

func (s validator) checkEntryPorts(se *networking.ServiceEntry) {
	if len(se.GetPorts()) == 0 {
		s.field("ports").warn("", "a ServiceEntry without ports has no effect on traffic", "list the ports to which clients connect")
	}
	names, numbers := map[string]int{}, map[uint32]int{}
	for i, p := range se.GetPorts() {
		at := s.item("ports", i)
		at.field("number").checkPort(p.GetNumber())
		if p.GetTargetPort() != 0 {
			at.field("targetPort").checkPort(p.GetTargetPort())
		}
		if p.GetName() == "" {
			at.refuse("", "a port needs a name", "set name")
		} else if first, taken := names[p.GetName()]; taken {
			at.field("name").refuse(p.GetName(), fmt.Sprintf("ports %d and %d have the same name", first, i), "rename one")
		}
		if first, taken := numbers[p.GetNumber()]; taken {
			at.field("number").refuse(p.GetNumber(), fmt.Sprintf("ports %d and %d have the same number", first, i), "remove one")
		}
		if p.GetProtocol() != "" {
			at.checkProtocol(p.GetProtocol(), entryProtocols)
		}
		names[p.GetName()], numbers[p.GetNumber()] = i, i
	}
}

func (s validator) checkEntryEndpoints(se *networking.ServiceEntry) {
	if len(se.GetEndpoints()) > 0 && se.GetWorkloadSelector() != nil {
		s.field("workloadSelector").refuse("", "workloadSelector and endpoints exclude each other", "remove one of the two")
	}
	var ports []string
	for _, p := range se.GetPorts() {
		ports = append(ports, p.GetName())
	}
	for i, we := range se.GetEndpoints() {
		at := s.item("endpoints", i)
		at.checkWorkloadEntry(we)
		for _, name := range slices.Sorted(maps.Keys(we.GetPorts())) {
			if !contains(ports, name) {
				at.field("ports").key(name).refuse(name, "the ServiceEntry has no port of this name", didYouMean(name, ports))
			}
		}
	}
}

// checkResolution checks that the resolution fits the endpoints, hosts and ports.
func (s validator) checkResolution(se *networking.ServiceEntry) {
	resolution := se.GetResolution()
	listed := len(se.GetEndpoints()) > 0
	switch resolution {
	case networking.ServiceEntry_NONE:
		if listed {
			s.field("endpoints").refuse("", "with resolution NONE, proxies do not use the endpoints", "set resolution: STATIC for addresses, DNS for names")
		}
	case networking.ServiceEntry_STATIC:
		if !listed && se.GetWorkloadSelector() == nil {
			s.field("endpoints").warn("", "resolution STATIC requires endpoints or a workloadSelector; without them, requests fail", "list the endpoints, or set resolution: DNS")
		}
		for i, we := range se.GetEndpoints() {
			if address := we.GetAddress(); !isIP(address) && !strings.HasPrefix(address, "unix://") {
				s.item("endpoints", i).field("address").refuse(address, "not an IP address, which resolution STATIC needs", "set one, or set resolution: DNS")
			}
		}
	case networking.ServiceEntry_DNS, networking.ServiceEntry_DNS_ROUND_ROBIN:
		s.checkResolvable(se)
	case networking.ServiceEntry_DYNAMIC_DNS:
		for i, p := range se.GetPorts() {
			switch strings.ToUpper(p.GetProtocol()) {
			case "HTTP", "HTTP2", "GRPC", "GRPC-WEB", "HTTPS", "TLS":
			default:
				s.item("ports", i).field("protocol").warn(p.GetProtocol(), "connections of this protocol do not contain a host, so proxies forward them to the address that the client resolved", "list each host, and set resolution: DNS")
			}
		}
	}
	if resolution == networking.ServiceEntry_DNS_ROUND_ROBIN && len(se.GetEndpoints()) > 1 {
		s.field("endpoints").refuse("", "resolution DNS_ROUND_ROBIN supports only one endpoint", "remove the others, or set resolution: DNS")
	}
}

func (s validator) checkResolvable(se *networking.ServiceEntry) {
	for i, we := range se.GetEndpoints() {
		if strings.HasPrefix(we.GetAddress(), "unix://") {
			s.item("endpoints", i).field("address").refuse(we.GetAddress(), "proxies cannot resolve the path of a socket by DNS", "set resolution: STATIC")
		}
	}
	if len(se.GetEndpoints()) > 0 || se.GetWorkloadSelector() != nil {
		return
	}
	for i, host := range se.GetHosts() {
		if strings.HasPrefix(host, "*") {
			s.item("hosts", i).refuse(host, "proxies cannot resolve a wildcard by DNS", "list endpoints, or set resolution: NONE")
		}
	}
}

func validateWorkloadEntry(s validator, we *networking.WorkloadEntry) { s.checkWorkloadEntry(we) }

func (s validator) checkWorkloadEntry(we *networking.WorkloadEntry) {
	address := s.field("address")
	switch a := we.GetAddress(); {
	case a == "" && we.GetNetwork() == "":
		address.refuse("", "no address", "set the workload's IP address")
	case strings.HasPrefix(a, "unix://"):
		if file := strings.TrimPrefix(a, "unix://"); !path.IsAbs(file) && !strings.HasPrefix(file, "@") {
			address.refuse(a, "not the path of a socket", "use a value such as unix:///run/app.sock")
		}
		if len(we.GetPorts()) > 0 {
			s.field("ports").refuse("", "a socket has no ports", "remove them")
		}
	case a != "" && !isIP(a):
		address.checkHost(a)
	}
	s.checkWorkloadFields(we)
}

// checkWorkloadFields checks all fields except the address: the template of a WorkloadGroup has none.
func (s validator) checkWorkloadFields(we *networking.WorkloadEntry) {
	for name, number := range we.GetPorts() {
		s.field("ports").key(name).checkPort(number)
		if !dnsLabel.MatchString(strings.ToLower(name)) {
			s.field("ports").key(name).refuse(name, "not a port's name", "use lower-case letters, digits and '-'")
		}
	}
	s.field("labels").checkLabels(we.GetLabels())
	if a := we.GetServiceAccount(); a != "" && !dnsSubdomain.MatchString(a) {
		s.field("serviceAccount").refuse(a, "not the name of a service account", "set its name without a namespace")
	}
	if strings.Count(we.GetLocality(), "/") > 2 {
		s.field("locality").refuse(we.GetLocality(), "a locality has at most three parts", "write region/zone/subzone")
	}
}

func (s validator) checkEgressHost(host string) {
	namespace, name, ok := strings.Cut(host, "/")
	switch {
	case !ok:
		s.refuse(host, "the namespace is missing", fmt.Sprintf("write namespace/host, as in %q for this namespace or %q for all", "./"+host, "*/"+host))
	case !isEgressNamespace(strings.TrimPrefix(namespace, "~")) && namespace != "~":
		s.refuse(host, "the part before the slash is not a namespace", "use the name of a namespace, \".\" for the document's namespace, or \"*\" for all; a leading \"~\" excludes hosts")
	default:
		s.checkWildcardHost(name)
		if name != "*" && !strings.Contains(name, ".") {
			s.warn(host, "a name without a dot is not the full name of a service, so it matches none", fmt.Sprintf("write %q", namespace+"/"+name+".<namespace>.svc.cluster.local"))
		}
	}
}

func isEgressNamespace(namespace string) bool {
	return namespace == "*" || namespace == "." || dnsLabel.MatchString(namespace)
}
