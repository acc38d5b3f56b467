package iptables

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Setting is one option in text form. It is set by a flag, an environment variable, or an entry of a saved
// configuration.
type Setting struct {
	Name      string   // name of the flag without dashes; if NoFlag is set, name of the environment variable
	Shorthand string   // one-letter flag; "" if none
	Env       []string // environment variables in order of precedence; the first one that is set is used
	NoFlag    bool     // the option has no flag, only an environment variable
	Boolean   bool
	Help      string

	get func(*Options) string
	set func(*Options, string, Names) error
}

// The names of flags and environment variables. Error messages use them too.
const (
	flagProxyPort       = "envoy-port"
	flagInboundPort     = "inbound-capture-port"
	flagTunnelPort      = "inbound-tunnel-port"
	flagDNSPort         = "dns-port"
	flagUID             = "proxy-uid"
	flagGID             = "proxy-gid"
	flagMode            = "istio-inbound-interception-mode"
	flagMark            = "istio-inbound-tproxy-mark"
	flagTable           = "istio-inbound-tproxy-route-table"
	flagInbound         = "istio-inbound-ports"
	flagInboundExclude  = "istio-local-exclude-ports"
	flagCIDRs           = "istio-service-cidr"
	flagExcludeCIDRs    = "istio-service-exclude-cidr"
	flagOutbound        = "istio-outbound-ports"
	flagOutboundExclude = "istio-local-outbound-ports-exclude"
	flagInterfaces      = "istio-exclude-interfaces"
	flagVirtual         = "kube-virt-interfaces"
	flagRedirectDNS     = "redirect-dns"
	flagCaptureAllDNS   = "capture-all-dns"
	flagDNSServers      = "dns-servers"
	flagDropInvalid     = "drop-invalid"
	flagDualStack       = "dual-stack"
	flagIPv6            = "ipv6"
	flagAddresses       = "addresses"

	envGroups        = "ISTIO_OUTBOUND_OWNER_GROUPS"
	envExcludeGroups = "ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE"
	envLoopback      = "ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR"
	envResolver      = "DNS_PROXY_ADDR"
)

// settings lists all options. The help text and saved configurations use the same order.
var settings = []Setting{
	port(flagProxyPort, "p", "port of Envoy to which outbound connections are redirected", func(o *Options) *uint16 { return &o.ProxyPort }).noEnv(),
	port(flagInboundPort, "z", "port of Envoy to which inbound connections are redirected", func(o *Options) *uint16 { return &o.InboundPort }),
	port(flagTunnelPort, "e", "port of Envoy for HBONE connections, which are not redirected", func(o *Options) *uint16 { return &o.TunnelPort }),
	port(flagDNSPort, "", "port of the agent's resolver, to which DNS queries are redirected", func(o *Options) *uint16 { return &o.DNSPort }),
	list(flagUID, "u", "users that the proxy runs as; their outbound connections are not redirected (default: the user named in $ENVOY_USER, or 1337)",
		func(o *Options) *[]uint32 { return &o.ProxyUIDs }, decimal, func(n Names) func(string) (uint32, error) { return parseID("user", n.User) }),
	list(flagGID, "g", "groups that the proxy runs as; their outbound connections are not redirected (default: the IDs of --proxy-uid)",
		func(o *Options) *[]uint32 { return &o.ProxyGIDs }, decimal, group),
	{Name: flagMode, Shorthand: "m", Help: "how inbound connections reach Envoy: REDIRECT, or TPROXY, which preserves the client's address",
		get: func(o *Options) string { return string(o.Interception) },
		set: func(o *Options, text string, _ Names) error {
			o.Interception = cmp.Or(Interception(text), RedirectMode)
			if o.Interception != TProxyMode && o.Interception != RedirectMode {
				o.AddWarning(fmt.Sprintf("%q is not an interception mode; REDIRECT is used", text))
				o.Interception = RedirectMode
			}
			return nil
		}},
	{Name: flagMark, Shorthand: "t", Help: "packet mark of captured connections with TPROXY, a number",
		get: func(o *Options) string { return decimal(o.TProxyMark) }, set: setMark},
	{Name: flagTable, Shorthand: "r", Help: "number of the routing table that TPROXY uses",
		get: func(o *Options) string { return strconv.Itoa(o.TProxyTable) }, set: setTable},
	{Name: flagInbound, Shorthand: "b", Help: `inbound ports to capture: "*", or a list of ports and ranges (80,8000-8010)`,
		get: func(o *Options) string {
			return choiceText(o.InboundPorts.All, joined(o.InboundPorts.Listed, PortRange.String))
		},
		set: func(o *Options, text string, _ Names) (err error) {
			o.InboundPorts.All, o.InboundPorts.Listed, err = parseChoice(text, parsePortRange, o.AddWarning)
			return err
		}},
	ports(flagInboundExclude, "d", `inbound ports not to capture, if --istio-inbound-ports is "*"`, func(o *Options) *[]PortRange { return &o.InboundExcludePorts }),
	{Name: flagCIDRs, Shorthand: "i", Help: `destinations to capture: "*", or a list of CIDRs`,
		get: func(o *Options) string {
			return choiceText(o.OutboundCIDRs.All, joined(o.OutboundCIDRs.Listed, netip.Prefix.String))
		},
		set: func(o *Options, text string, _ Names) (err error) {
			o.OutboundCIDRs.All, o.OutboundCIDRs.Listed, err = parseChoice(text, parseCIDR, o.AddWarning)
			return err
		}},
	list(flagExcludeCIDRs, "x", "destinations not to capture, as CIDRs", func(o *Options) *[]netip.Prefix { return &o.OutboundExcludeCIDRs },
		netip.Prefix.String, func(Names) func(string) (netip.Prefix, error) { return parseCIDR }),
	ports(flagOutbound, "q", "outbound ports to capture at any destination address", func(o *Options) *[]PortRange { return &o.OutboundPorts }),
	ports(flagOutboundExclude, "o", "outbound ports not to capture", func(o *Options) *[]PortRange { return &o.OutboundExcludePorts }),
	interfaces(flagInterfaces, "c", "interfaces whose traffic is not redirected", func(o *Options) *[]string { return &o.ExcludeInterfaces }),
	interfaces(flagVirtual, "k", "interfaces of virtual machines and nested containers, whose traffic is handled as outbound",
		func(o *Options) *[]string { return &o.VirtualInterfaces }),
	boolean(flagRedirectDNS, "redirect DNS queries to the agent's resolver", func(o *Options) *bool { return &o.RedirectDNS }, "ISTIO_META_DNS_CAPTURE"),
	boolean(flagCaptureAllDNS, "redirect the DNS queries to all resolvers, not only queries to the resolvers in resolv.conf", func(o *Options) *bool { return &o.CaptureAllDNS }),
	list(flagDNSServers, "", "resolvers to which DNS queries are redirected to the agent (default: the resolvers in resolv.conf)", func(o *Options) *[]netip.Addr { return &o.DNSServers },
		netip.Addr.String, func(Names) func(string) (netip.Addr, error) { return parseAddress }),
	{Name: envResolver, Env: []string{envResolver}, NoFlag: true, Help: "address on which the agent's resolver listens; DNS of virtual machines is captured only if it listens on all addresses (\":15053\")",
		get: func(o *Options) string { return o.ResolverAddress }, set: setResolver},
	boolean(flagDropInvalid, "drop inbound packets in the conntrack state INVALID, for which the kernel would reset the connection", func(o *Options) *bool { return &o.DropInvalid }, "INVALID_DROP"),
	boolean(flagDualStack, "capture IPv4 and IPv6 traffic, because the mesh is dual stack", func(o *Options) *bool { return &o.DualStack }, "ISTIO_DUAL_STACK"),
	{Name: flagIPv6, Env: []string{"PILOTFISH_IPV6"}, Help: "treatment of IPv6 traffic without --dual-stack: auto (capture if the pod has no IPv4 address), capture, reject or pass",
		get: func(o *Options) string { return string(o.IPv6) },
		set: func(o *Options, text string, _ Names) error { o.IPv6 = IPv6Policy(text); return nil }},
	list(flagAddresses, "", "IP addresses of the pod, from which --ipv6 auto determines the address families (default: the addresses of the network namespace)",
		func(o *Options) *[]netip.Addr { return &o.Addresses },
		netip.Addr.String, func(Names) func(string) (netip.Addr, error) { return parseAddress }).noEnv(),
	{Name: envGroups, Env: []string{envGroups}, NoFlag: true, Help: `groups of processes whose outbound traffic is captured: "*", or a list of at most 64`,
		get: func(o *Options) string { return choiceText(o.OwnerGroups.All, joined(o.OwnerGroups.Listed, decimal)) },
		set: func(o *Options, text string, n Names) (err error) {
			o.OwnerGroups.All, o.OwnerGroups.Listed, err = parseChoice(text, group(n), o.AddWarning)
			return err
		}},
	list(envExcludeGroups, "", "groups of processes whose outbound traffic is not captured",
		func(o *Options) *[]uint32 { return &o.ExcludeOwnerGroups }, decimal, group).envOnly(),
	{Name: envLoopback, Env: []string{envLoopback}, NoFlag: true, Help: "IPv4 loopback addresses whose connections are not redirected",
		get: func(o *Options) string { return o.LoopbackCIDR.String() },
		set: func(o *Options, text string, _ Names) error {
			cidrs, err := parseList(text, parseCIDR, o.AddWarning)
			if err == nil && len(cidrs) != 1 {
				err = fmt.Errorf("%q is not a CIDR: use one within 127.0.0.0/8, such as 127.0.0.1/32", text)
			}
			if err == nil {
				o.LoopbackCIDR = cidrs[0]
			}
			return err
		}},
}

// Settings returns a copy of the list of all options. Options that also exist in Istio have the same names as there.
func Settings() []Setting { return slices.Clone(settings) }

// Set sets the named option to a value in text form. On a parse error, the options remain unchanged. Values that Istio
// tolerates are not errors. Warnings reports how they are interpreted. Set does not check combinations of options;
// Normalize and Validate do.
func (o *Options) Set(name, value string, names Names) error {
	for i := range settings {
		if s := &settings[i]; s.Name == name {
			changed := *o
			changed.notes = nil
			if err := s.set(&changed, strings.TrimSpace(value), names); err != nil {
				return fmt.Errorf("%s: %w", s.Title(), err)
			}
			for i, note := range changed.notes {
				changed.notes[i] = s.Title() + ": " + note
			}
			changed.notes = append(slices.Clip(o.notes), changed.notes...)
			*o = changed
			return nil
		}
	}
	return fmt.Errorf("redirection has no option %q", name)
}

// IsTolerated reports whether an invalid value in an environment variable is ignored with a warning. As in Istio, it
// is for booleans. It also is for variables that Istio's command does not read, because they may be set for another
// purpose: Kubernetes sets DNS_PORT for a Service called dns.
func (s *Setting) IsTolerated() bool {
	return s.Boolean || s.Name == envResolver || s.Name == flagDNSPort
}

// AddWarning adds a warning that Warnings returns.
func (o *Options) AddWarning(text string) { o.notes = append(slices.Clip(o.notes), text) }

// Get returns the value of an option in the form that Set accepts.
func (o *Options) Get(name string) string {
	for i := range settings {
		if settings[i].Name == name {
			return settings[i].get(o)
		}
	}
	return ""
}

// Title returns the name for messages: the flag with its dashes, or the environment variable.
func (s *Setting) Title() string {
	if s.NoFlag {
		return s.Name
	}
	return "--" + s.Name
}

func titleOf(name string) string {
	for i := range settings {
		if settings[i].Name == name {
			return settings[i].Title()
		}
	}
	return name
}

func (s Setting) noEnv() Setting   { s.Env = nil; return s }
func (s Setting) envOnly() Setting { s.NoFlag, s.Env = true, []string{s.Name}; return s }

func upperSnake(flag string) string { return strings.ToUpper(strings.ReplaceAll(flag, "-", "_")) }

func init() {
	for i := range settings {
		s := &settings[i]
		if s.Env == nil && s.Name != flagProxyPort && s.Name != flagAddresses {
			s.Env = []string{upperSnake(s.Name)}
		}
	}
}

func choiceText(all bool, list string) string {
	if all {
		return "*"
	}
	return list
}

func decimal(n uint32) string { return strconv.FormatUint(uint64(n), 10) }

func group(n Names) func(string) (uint32, error) { return parseID("group", n.Group) }

func port(name, short, help string, field func(*Options) *uint16) Setting {
	return Setting{Name: name, Shorthand: short, Help: help,
		get: func(o *Options) string { return strconv.Itoa(int(*field(o))) },
		set: func(o *Options, text string, _ Names) (err error) {
			*field(o), err = parsePort(text)
			return err
		}}
}

func list[T comparable](name, short, help string, field func(*Options) *[]T, write func(T) string, read func(Names) func(string) (T, error)) Setting {
	return Setting{Name: name, Shorthand: short, Help: help,
		get: func(o *Options) string { return joined(*field(o), write) },
		set: func(o *Options, text string, n Names) (err error) {
			*field(o), err = parseList(text, read(n), o.AddWarning)
			return err
		}}
}

func ports(name, short, help string, field func(*Options) *[]PortRange) Setting {
	return list(name, short, help, field, PortRange.String, func(Names) func(string) (PortRange, error) { return parsePortRange })
}

func interfaces(name, short, help string, field func(*Options) *[]string) Setting {
	return list(name, short, help, field, func(s string) string { return s }, func(Names) func(string) (string, error) { return parseInterface })
}

func boolean(name, help string, field func(*Options) *bool, otherEnv ...string) Setting {
	return Setting{Name: name, Help: help, Boolean: true, Env: append(otherEnv, upperSnake(name)),
		get: func(o *Options) string { return strconv.FormatBool(*field(o)) },
		set: func(o *Options, text string, _ Names) (err error) {
			*field(o), err = parseBool(text)
			return err
		}}
}

func setResolver(o *Options, text string, _ Names) error {
	if _, _, err := net.SplitHostPort(text); text != "" && err != nil {
		return fmt.Errorf("%q is not host:port: use the agent's value of DNS_PROXY_ADDR, such as localhost:15053, or \":15053\" for all addresses", text)
	}
	o.ResolverAddress = text
	return nil
}

func setMark(o *Options, text string, _ Names) error {
	n, err := strconv.ParseUint(text, 0, 32)
	if (err != nil || n == 0) && o.Interception != TProxyMode {
		o.AddWarning(fmt.Sprintf("%q is not a packet mark; it has no effect without TPROXY", text))
		return nil
	}
	if err != nil {
		return fmt.Errorf("%q is not a packet mark: use a number from 1 to 4294967295, such as 1337 or 0x539", text)
	}
	o.TProxyMark = uint32(n)
	return nil
}

func setTable(o *Options, text string, _ Names) error {
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil && o.Interception != TProxyMode {
		o.AddWarning(fmt.Sprintf("%q is not a routing table; it has no effect without TPROXY", text))
		return nil
	}
	if err != nil {
		return fmt.Errorf("%q is not a routing table: use a number from 1 to 252, or above 255", text)
	}
	o.TProxyTable = int(n)
	return nil
}
