package capture

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/cni/agentapi"
	"github.com/pilotfish-mesh/pilotfish/iptables"
)

const traffic = "traffic.sidecar.istio.io/"

// kubevirtKey is the deprecated name of rerouteKey.
const (
	kubevirtKey = traffic + "kubevirtInterfaces"
	rerouteKey  = "istio.io/reroute-virtual-interfaces"
)

// annotationOptions maps annotations to redirection options.
var annotationOptions = []struct{ annotation, option string }{
	{traffic + "includeOutboundIPRanges", "istio-service-cidr"},
	{traffic + "excludeOutboundIPRanges", "istio-service-exclude-cidr"},
	{traffic + "includeOutboundPorts", "istio-outbound-ports"},
	{traffic + "excludeOutboundPorts", "istio-local-outbound-ports-exclude"},
	{traffic + "includeInboundPorts", "istio-inbound-ports"},
	{traffic + "excludeInboundPorts", "istio-local-exclude-ports"},
	{traffic + "excludeInterfaces", "istio-exclude-interfaces"},
	{kubevirtKey, "kube-virt-interfaces"},
	{rerouteKey, "kube-virt-interfaces"},
}

// ipv6Variable is the environment variable for the IPv6 policy. Istio has no such variable.
const ipv6Variable = "PILOTFISH_IPV6"

// envOptions maps environment variables of the sidecar's container to redirection options. The agent in the container
// reads the same variables, so the agent and the plugin must use the same values. Invalid values of Istio's variables
// are ignored with a warning, because Istio's plugin either does not read the variables or ignores such values too.
var envOptions = []struct{ variable, option string }{
	{"ISTIO_META_DNS_CAPTURE", "redirect-dns"},
	{"ISTIO_DUAL_STACK", "dual-stack"},
	{"DNS_PROXY_ADDR", "DNS_PROXY_ADDR"},
	{"INVALID_DROP", "drop-invalid"},
	{"ISTIO_OUTBOUND_OWNER_GROUPS", "ISTIO_OUTBOUND_OWNER_GROUPS"},
	{"ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE", "ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE"},
	{"ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR", "ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR"},
	{ipv6Variable, "ipv6"},
}

const (
	modeKey       = "sidecar.istio.io/interceptionMode"
	modeEnv       = "ISTIO_META_INTERCEPTION_MODE"
	statusPortKey = "status.sidecar.istio.io/port"
)

// probePorts are the plaintext ports for probes and metrics of the agent and Envoy. They are never captured.
var probePorts = []uint16{15020, 15021, 15090}

// Options returns the redirection options of a pod for which SkipPod returned nil. It derives them from the pod's
// annotations and its sidecar container. addresses are the IP addresses in the pod's network namespace. The error
// contains all problems, each with the annotation, variable or field that causes it.
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
	for _, a := range annotationOptions {
		if value, set := p.Metadata.Annotations[a.annotation]; set && !isReplaced(p, a.annotation) {
			errs = append(errs, locateError("annotation "+a.annotation, o.Set(a.option, value, iptables.Names{})))
		}
	}
	for _, e := range envOptions {
		if value, _ := lookupEnv(proxy, e.variable); value != "" {
			err := locateError("variable "+e.variable+" of "+ProxyContainer, o.Set(e.option, value, iptables.Names{}))
			if err != nil && e.variable != ipv6Variable {
				o.AddWarning(err.Error() + "; the default is used")
				err = nil
			}
			errs = append(errs, err)
		}
	}
	errs = append(errs, setMode(&o, p, proxy), runAs(&o, p, proxy))
	excludeProbePorts(&o, p)
	o.CaptureAllDNS = o.RedirectDNS // the plugin does not know the resolvers in the pod's resolv.conf
	if o.DualStack {
		o.IPv6 = iptables.IPv6Auto // the pod's ISTIO_DUAL_STACK overrides the node's IPv6 policy
	}
	if err := errors.Join(errs...); err != nil {
		return o, err
	}
	o.Normalize()
	return o, o.Validate()
}

// isReplaced reports whether annotation is kubevirtKey and the pod has rerouteKey, which replaces it. The deprecated
// annotation is then not read.
func isReplaced(p *agentapi.Pod, annotation string) bool {
	_, set := p.Metadata.Annotations[rerouteKey]
	return annotation == kubevirtKey && set
}

// setMode sets the interception mode. As in Istio's plugin, an invalid annotation is an error. An invalid variable is not.
func setMode(o *iptables.Options, p *agentapi.Pod, proxy *agentapi.Container) error {
	mode, where := interceptionMode(p, proxy)
	switch iptables.Interception(mode) {
	case "":
		return nil
	case iptables.RedirectMode, iptables.TProxyMode:
	default:
		err := locateError(where, fmt.Errorf("%q is not an interception mode: use REDIRECT, TPROXY or NONE", mode))
		if p.Metadata.Annotations[modeKey] != "" {
			return err
		}
		o.AddWarning(err.Error() + "; REDIRECT is used")
		return nil
	}
	return locateError(where, o.Set("istio-inbound-interception-mode", mode, iptables.Names{}))
}

func locateError(where string, err error) error {
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

// interceptionMode returns the pod's inbound interception mode, and the annotation or variable that specifies it. The
// agent sends the variable's value to the control plane, which configures Envoy's listeners for this mode.
func interceptionMode(p *agentapi.Pod, proxy *agentapi.Container) (mode, where string) {
	if mode = p.Metadata.Annotations[modeKey]; mode != "" {
		return mode, "annotation " + modeKey
	}
	mode, _ = lookupEnv(proxy, modeEnv)
	return mode, "variable " + modeEnv + " of " + ProxyContainer
}

// runAs sets the user and group IDs of the sidecar, whose traffic is not captured. For TPROXY, injectors run the
// sidecar as user 0 with a separate group. In this case, only the group ID is set, because user 0 would match all
// processes of root.
func runAs(o *iptables.Options, p *agentapi.Pod, proxy *agentapi.Container) error {
	uid, gid := ids(p, proxy)
	root := uid != nil && *uid == 0
	if root && (gid == nil || *gid == 0) {
		return fmt.Errorf("%s runs with user 0 and group 0, so its connections cannot be distinguished from those of other processes that run as root: "+
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
			return fmt.Errorf("securityContext.%s %d of %s is not a valid ID: use a number from 0 to 4294967294", id.what, *id.of, ProxyContainer)
		}
		*id.to = []uint32{uint32(*id.of)}
	}
	switch {
	case root:
		o.ProxyUIDs = nil
	case uid != nil && gid == nil:
		o.ProxyGIDs = slices.Clone(o.ProxyUIDs) // the group ID defaults to the user ID, as with the flag --proxy-gid
	}
	return nil
}

// excludeProbePorts excludes the ports for probes and metrics from inbound capture, even if the pod's annotations
// include them.
func excludeProbePorts(o *iptables.Options, p *agentapi.Pod) {
	excluded := slices.Clone(probePorts)
	for text := range strings.SplitSeq(p.Metadata.Annotations[statusPortKey], ",") {
		text = strings.TrimSpace(text)
		port, err := strconv.ParseUint(text, 10, 16)
		if err != nil && text != "" {
			o.AddWarning(fmt.Sprintf("annotation %s: %q is not a port and has no effect: use a number from 1 to 65535, or 0 for none", statusPortKey, text))
		}
		if err == nil && port != 0 && !slices.Contains(excluded, uint16(port)) {
			excluded = append(excluded, uint16(port))
		}
	}
	if !o.InboundPorts.All {
		for _, port := range excluded {
			o.InboundPorts.Listed = removePort(o.InboundPorts.Listed, port)
		}
		return
	}
	for _, port := range excluded {
		if one := (iptables.PortRange{First: port, Last: port}); !slices.Contains(o.InboundExcludePorts, one) {
			o.InboundExcludePorts = append(o.InboundExcludePorts, one)
		}
	}
}

// removePort returns list without port. It splits a range that contains port.
func removePort(list []iptables.PortRange, port uint16) (rest []iptables.PortRange) {
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

// Warnings returns a warning for each container of a captured pod that runs with the sidecar's user ID. The outbound
// traffic of these containers is not captured, which may be intended.
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
				warnings = append(warnings, fmt.Sprintf("container %s runs as user %d, which is the sidecar's user: its outbound traffic is not captured", c.Name, *uid))
			}
		}
	}
	return warnings
}
