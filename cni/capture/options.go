package capture

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/pilotfish-mesh/pilotfish/cni/agentapi"
	"github.com/pilotfish-mesh/pilotfish/iptables"
)

const traffic = "traffic.sidecar.istio.io/"

// annotated are the annotations that set one option of redirection each, under the option's name.
var annotated = []struct{ annotation, option string }{
	{traffic + "includeOutboundIPRanges", "istio-service-cidr"},
	{traffic + "excludeOutboundIPRanges", "istio-service-exclude-cidr"},
	{traffic + "includeOutboundPorts", "istio-outbound-ports"},
	{traffic + "excludeOutboundPorts", "istio-local-outbound-ports-exclude"},
	{traffic + "includeInboundPorts", "istio-inbound-ports"},
	{traffic + "excludeInboundPorts", "istio-local-exclude-ports"},
	{traffic + "excludeInterfaces", "istio-exclude-interfaces"},
	{traffic + "kubevirtInterfaces", "kube-virt-interfaces"}, // the old name of the next
	{"istio.io/reroute-virtual-interfaces", "kube-virt-interfaces"},
}

// fromEnv are the variables of the proxy that the redirection of its traffic has to agree with.
var fromEnv = []struct{ variable, option string }{
	{"ISTIO_META_DNS_CAPTURE", "redirect-dns"},
	{"ISTIO_DUAL_STACK", "dual-stack"},
	{"DNS_PROXY_ADDR", "DNS_PROXY_ADDR"},
	{"INVALID_DROP", "drop-invalid"},
	{"ISTIO_OUTBOUND_OWNER_GROUPS", "ISTIO_OUTBOUND_OWNER_GROUPS"},
	{"ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE", "ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE"},
	{"ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR", "ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR"},
	{"PILOTFISH_IPV6", "ipv6"},
}

const (
	modeKey       = "sidecar.istio.io/interceptionMode"
	modeEnv       = "ISTIO_META_INTERCEPTION_MODE"
	statusPortKey = "status.sidecar.istio.io/port"
)

// ownPorts serve probes and metrics of the agent and of Envoy, in the clear: they are never captured.
var ownPorts = []uint16{15020, 15021, 15090}

// Options are those of the redirection of a pod that SkipPod lets be captured: its annotations, and what its proxy's
// container says. addresses are those of the pod's network namespace. All that is wrong is told at once, each with where it
// stands in the pod.
func (s *Settings) Options(p *agentapi.Pod, addresses []netip.Addr) (iptables.Options, error) {
	o := iptables.DefaultOptions()
	o.InboundPorts.All, o.OutboundCIDRs.All = true, true
	o.Addresses = addresses
	s.mesh(&o)
	proxy := Proxy(p)
	if proxy == nil {
		return o, fmt.Errorf("the pod has no container %s", ProxyContainer)
	}
	var errs []error
	for _, a := range annotated {
		if value, set := p.Metadata.Annotations[a.annotation]; set {
			errs = append(errs, in("annotation "+a.annotation, o.Set(a.option, value, iptables.Names{})))
		}
	}
	for _, e := range fromEnv {
		if value, _ := lookup(proxy, e.variable); value != "" {
			errs = append(errs, in("variable "+e.variable+" of "+ProxyContainer, o.Set(e.option, value, iptables.Names{})))
		}
	}
	if mode, where := interception(p, proxy); mode != "" {
		err := o.Set("istio-inbound-interception-mode", mode, iptables.Names{})
		if err == nil && o.Interception != iptables.RedirectMode && o.Interception != iptables.TProxyMode {
			err = fmt.Errorf("%q is no mode: write REDIRECT or TPROXY, or NONE", mode)
		}
		errs = append(errs, in(where, err))
	}
	errs = append(errs, runAs(&o, p, proxy), spareOwnPorts(&o, p))
	o.CaptureAllDNS = o.RedirectDNS // the pod's resolv.conf is not known here
	if o.DualStack {
		o.IPv6 = iptables.IPv6Auto // the pod says more than the node
	}
	if err := errors.Join(errs...); err != nil {
		return o, err
	}
	return o, o.Validate()
}

func in(where string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", where, err)
}

func (s *Settings) mesh(o *iptables.Options) {
	for _, p := range []struct {
		from uint16
		to   *uint16
	}{{s.ProxyListenPort, &o.ProxyPort}, {s.InboundListenPort, &o.InboundPort}, {s.TunnelPort, &o.TunnelPort}} {
		if p.from != 0 {
			*p.to = p.from
		}
	}
	if s.IPv6 != "" {
		o.IPv6 = iptables.IPv6Policy(s.IPv6)
	}
}

// interception is what the pod says of how inbound connections reach Envoy. The variable is what the proxy tells the
// control plane, which makes its listeners so.
func interception(p *agentapi.Pod, proxy *agentapi.Container) (mode, where string) {
	if mode = p.Metadata.Annotations[modeKey]; mode != "" {
		return mode, "annotation " + modeKey
	}
	mode, _ = lookup(proxy, modeEnv)
	return mode, "variable " + modeEnv + " of " + ProxyContainer
}

// runAs takes the proxy's ids from its container. Injectors let the proxy run as user 0 for TPROXY, with a group of its
// own: then the group alone tells it apart, as every process of root would otherwise be taken for the proxy.
func runAs(o *iptables.Options, p *agentapi.Pod, proxy *agentapi.Container) error {
	uid, gid := ids(p, proxy)
	root := uid != nil && *uid == 0
	if root && (gid == nil || *gid == 0) {
		return fmt.Errorf("%s runs as root and in root's group, so nothing tells its connections from an application's of root: "+
			"set securityContext.runAsGroup of the container to 1337", ProxyContainer)
	}
	for _, id := range []struct {
		what string
		of   *int64
		to   *[]uint32
	}{{"runAsUser", uid, &o.ProxyUIDs}, {"runAsGroup", gid, &o.ProxyGIDs}} {
		if id.of == nil {
			continue
		}
		if *id.of < 0 || *id.of >= 1<<32-1 {
			return fmt.Errorf("securityContext.%s %d of %s is no id", id.what, *id.of, ProxyContainer)
		}
		*id.to = []uint32{uint32(*id.of)}
	}
	switch {
	case root:
		o.ProxyUIDs = nil
	case uid != nil && gid == nil:
		o.ProxyGIDs = slices.Clone(o.ProxyUIDs) // as the flags do
	}
	return nil
}

// spareOwnPorts keeps the ports of probes out of what is captured, also of a list that names them.
func spareOwnPorts(o *iptables.Options, p *agentapi.Pod) error {
	spare := slices.Clone(ownPorts)
	if value := p.Metadata.Annotations[statusPortKey]; value != "" {
		port, err := strconv.ParseUint(value, 10, 16)
		if err != nil {
			return fmt.Errorf("annotation %s: %q is no port: write a number from 1 to 65535, or 0 for none", statusPortKey, value)
		}
		if port != 0 && !slices.Contains(spare, uint16(port)) {
			spare = append(spare, uint16(port))
		}
	}
	if !o.InboundPorts.All {
		for _, port := range spare {
			o.InboundPorts.Listed = without(o.InboundPorts.Listed, port)
		}
		return nil
	}
	for _, port := range spare {
		if one := (iptables.PortRange{First: port, Last: port}); !slices.Contains(o.InboundExcludePorts, one) {
			o.InboundExcludePorts = append(o.InboundExcludePorts, one)
		}
	}
	return nil
}

// without takes a port out of a list of ranges.
func without(list []iptables.PortRange, port uint16) (rest []iptables.PortRange) {
	for _, r := range list {
		if port < r.First || port > r.Last {
			rest = append(rest, r)
			continue
		}
		if r.First < port {
			rest = append(rest, iptables.PortRange{First: r.First, Last: port - 1})
		}
		if port < r.Last {
			rest = append(rest, iptables.PortRange{First: port + 1, Last: r.Last})
		}
	}
	return rest
}

// Warnings are what a person ought to know of a pod that is captured all the same: containers whose traffic is taken for the
// proxy's own. Some are made so on purpose, to be left alone.
func Warnings(p *agentapi.Pod) (warnings []string) {
	proxy := Proxy(p)
	if proxy == nil {
		return nil
	}
	uid, _ := ids(p, proxy)
	if uid == nil {
		uid = new(int64(1337))
	}
	for _, list := range [][]agentapi.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			c := &list[i]
			if c.Name == ProxyContainer || c.Name == ValidationContainer {
				continue
			}
			if other, _ := ids(p, c); other != nil && *other == *uid && *uid != 0 {
				warnings = append(warnings, fmt.Sprintf("container %s runs as user %d, as the proxy does: its outbound traffic is not captured", c.Name, *uid))
			}
		}
	}
	return warnings
}
