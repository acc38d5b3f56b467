package capture

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/cni/agentapi"
	"github.com/pilotfish-mesh/pilotfish/iptables"
)

func TestOptionsComeFromThePodAndTheMesh(t *testing.T) {
	const own = "15020,15021,15090"
	for name, c := range map[string]struct {
		settings Settings
		change   func(p *agentapi.Pod)
		want     map[string]string // expected options, by flag or variable name
	}{
		"nothing said": {want: map[string]string{
			"envoy-port": "15001", "inbound-capture-port": "15006", "inbound-tunnel-port": "15008",
			"istio-service-cidr": "*", "istio-inbound-ports": "*", "istio-local-exclude-ports": own,
			"istio-local-outbound-ports-exclude": "", "istio-inbound-interception-mode": "REDIRECT",
			"proxy-uid": "1337", "proxy-gid": "1337", "redirect-dns": "false", "dual-stack": "false", "drop-invalid": "false",
			"ISTIO_OUTBOUND_OWNER_GROUPS": "*",
		}},
		"ports of the mesh": {settings: Settings{ProxyListenPort: 16001, InboundListenPort: 16006, TunnelPort: 16008},
			want: map[string]string{"envoy-port": "16001", "inbound-capture-port": "16006", "inbound-tunnel-port": "16008"}},
		"all annotations": {change: annotate(map[string]string{
			traffic + "includeOutboundIPRanges": "10.0.0.0/8", traffic + "excludeOutboundIPRanges": "10.1.0.0/16, fd00::/8",
			traffic + "includeOutboundPorts": "3306", traffic + "excludeOutboundPorts": "5432,9000-9010",
			traffic + "includeInboundPorts": "*", traffic + "excludeInboundPorts": "22",
			traffic + "excludeInterfaces": "net1", "istio.io/reroute-virtual-interfaces": "tap0", modeKey: "TPROXY",
		}), want: map[string]string{
			"istio-service-cidr": "10.0.0.0/8", "istio-service-exclude-cidr": "10.1.0.0/16,fd00::/8", "istio-outbound-ports": "3306",
			"istio-local-outbound-ports-exclude": "5432,9000-9010", "istio-local-exclude-ports": "22," + own,
			"istio-exclude-interfaces": "net1", "kube-virt-interfaces": "tap0", "istio-inbound-interception-mode": "TPROXY",
		}},
		"old name of virtual interfaces": {change: annotate(map[string]string{traffic + "kubevirtInterfaces": "tap1"}),
			want: map[string]string{"kube-virt-interfaces": "tap1"}},
		"nothing outbound":                     {change: annotate(map[string]string{traffic + "includeOutboundIPRanges": ""}), want: map[string]string{"istio-service-cidr": ""}},
		"own ports are spared of a list too":   {change: annotate(map[string]string{traffic + "includeInboundPorts": "80,15000-15030"}), want: map[string]string{"istio-inbound-ports": "80,15000-15019,15022-15030", "istio-local-exclude-ports": ""}},
		"a status port of its own":             {change: annotate(map[string]string{statusPortKey: "16020"}), want: map[string]string{"istio-local-exclude-ports": own + ",16020"}},
		"DNS: of any resolver":                 {change: env("ISTIO_META_DNS_CAPTURE", "true"), want: map[string]string{"redirect-dns": "true", "capture-all-dns": "true"}},
		"dual stack beats the node's policy":   {settings: Settings{IPv6: "reject"}, change: env("ISTIO_DUAL_STACK", "true"), want: map[string]string{"dual-stack": "true", "ipv6": "auto"}},
		"the node's policy for IPv6":           {settings: Settings{IPv6: "reject"}, want: map[string]string{"ipv6": "reject"}},
		"DNS: a resolver that is open":         {change: env("DNS_PROXY_ADDR", ":15053"), want: map[string]string{"DNS_PROXY_ADDR": ":15053"}},
		"invalid packets":                      {change: env("INVALID_DROP", "true"), want: map[string]string{"drop-invalid": "true"}},
		"owner groups of the proxy, not ours":  {change: env("ISTIO_OUTBOUND_OWNER_GROUPS", "202,303"), want: map[string]string{"ISTIO_OUTBOUND_OWNER_GROUPS": "202,303"}},
		"mode by the proxy's metadata":         {change: env(modeEnv, "TPROXY"), want: map[string]string{"istio-inbound-interception-mode": "TPROXY"}},
		"uid and gid":                          {change: runs(2000, 3000), want: map[string]string{"proxy-uid": "2000", "proxy-gid": "3000"}},
		"uid alone":                            {change: runs(2000, -1), want: map[string]string{"proxy-uid": "2000", "proxy-gid": "2000"}},
		"root in the proxy's group":            {change: runs(0, 1337), want: map[string]string{"proxy-uid": "", "proxy-gid": "1337"}},
		"native sidecar":                       {change: func(p *agentapi.Pod) { runs(2000, 3000)(p); native(p) }, want: map[string]string{"proxy-uid": "2000"}},
		"the pod's ids, where it has no other": {change: func(p *agentapi.Pod) { p.Spec.SecurityContext.RunAsUser = new(int64(77)) }, want: map[string]string{"proxy-uid": "77"}},
	} {
		o, err := c.settings.Options(injected(c.change), []netip.Addr{netip.MustParseAddr("10.0.0.5")})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for option, want := range c.want {
			if got := o.Get(option); got != want {
				t.Errorf("%s: %s = %q, want %q", name, option, got, want)
			}
		}
		if _, err := iptables.Compile(o); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func runs(uid, gid int64) func(p *agentapi.Pod) {
	return func(p *agentapi.Pod) {
		Proxy(p).SecurityContext.RunAsUser = &uid
		if gid >= 0 {
			Proxy(p).SecurityContext.RunAsGroup = &gid
		}
	}
}

func TestAllInvalidSettingsOfAPodAreReported(t *testing.T) {
	for name, c := range map[string]struct {
		change func(p *agentapi.Pod)
		want   []string
	}{
		"port and CIDR": {annotate(map[string]string{traffic + "excludeOutboundPorts": "70000", traffic + "includeOutboundIPRanges": "10.0.0.1"}),
			[]string{traffic + "excludeOutboundPorts", "70000", traffic + "includeOutboundIPRanges", "10.0.0.1", "not a CIDR"}},
		"star in a list":     {annotate(map[string]string{traffic + "includeInboundPorts": "*,80"}), []string{traffic + "includeInboundPorts", "*"}},
		"mode":               {annotate(map[string]string{modeKey: "FOO"}), []string{modeKey, "FOO", "REDIRECT", "TPROXY"}},
		"IPv6 policy":        {env(ipv6Variable, "maybe"), []string{"--ipv6", "maybe"}},
		"root without group": {runs(0, -1), []string{"root", "runAsGroup"}},
		"root in root":       {runs(0, 0), []string{"root", "runAsGroup"}},
		"negative user":      {runs(-5, -1), []string{"runAsUser", "-5"}},
	} {
		_, err := (&Settings{}).Options(injected(c.change), nil)
		if err == nil {
			t.Errorf("%s: accepted", name)
			continue
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %q is not in: %v", name, want, err)
			}
		}
	}
}

// Istio's plugin starts the pod with each of these settings.
func TestSettingsThatIstioToleratesAreWarnings(t *testing.T) {
	for name, c := range map[string]struct {
		change        func(p *agentapi.Pod)
		option, value string
		warnings      []string
	}{
		"host bits": {annotate(map[string]string{traffic + "includeOutboundIPRanges": "10.96.0.1/12"}), "istio-service-cidr", "10.96.0.0/12",
			[]string{"10.96.0.1/12", "host bits"}},
		"excluded host bits": {annotate(map[string]string{traffic + "excludeOutboundIPRanges": "10.96.0.1/12"}), "istio-service-exclude-cidr", "10.96.0.0/12",
			[]string{"10.96.0.1/12", "host bits"}},
		"port 0":                {annotate(map[string]string{traffic + "excludeOutboundPorts": "0"}), "istio-local-outbound-ports-exclude", "", []string{"port 0"}},
		"status port":           {annotate(map[string]string{statusPortKey: "x"}), "istio-local-exclude-ports", "15020,15021,15090", []string{statusPortKey, `"x"`}},
		"status ports":          {annotate(map[string]string{statusPortKey: "15020,16020"}), "istio-local-exclude-ports", "15020,15021,15090,16020", nil},
		"resolver":              {env("DNS_PROXY_ADDR", "15053"), "DNS_PROXY_ADDR", "", []string{"DNS_PROXY_ADDR", "15053", "host:port"}},
		"boolean":               {env("ISTIO_META_DNS_CAPTURE", "yes please"), "redirect-dns", "false", []string{"ISTIO_META_DNS_CAPTURE", "yes please"}},
		"group by name":         {env("ISTIO_OUTBOUND_OWNER_GROUPS", "java"), "ISTIO_OUTBOUND_OWNER_GROUPS", "*", []string{"ISTIO_OUTBOUND_OWNER_GROUPS", "java", "number"}},
		"mode variable":         {env(modeEnv, "FOO"), "istio-inbound-interception-mode", "REDIRECT", []string{modeEnv, "FOO", "REDIRECT is used"}},
		"deprecated annotation": {annotate(map[string]string{kubevirtKey: "a-name-that-is-too-long", rerouteKey: "tap0"}), "kube-virt-interfaces", "tap0", nil},
	} {
		o, err := (&Settings{}).Options(injected(c.change), nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := o.Get(c.option); got != c.value {
			t.Errorf("%s: %s = %q, want %q", name, c.option, got, c.value)
		}
		warnings := strings.Join(o.Warnings(), "\n")
		for _, want := range c.warnings {
			if !strings.Contains(warnings, want) {
				t.Errorf("%s: %q is not in the warnings: %s", name, want, warnings)
			}
		}
	}
}

func TestContainersWithTheProxysUserAreWarnedAbout(t *testing.T) {
	p := injected(func(p *agentapi.Pod) {
		p.Spec.Containers[0].SecurityContext.RunAsUser = new(int64(1337))
		p.Spec.InitContainers = []agentapi.Container{{Name: ValidationContainer, SecurityContext: agentapi.SecurityContext{RunAsUser: new(int64(1337))}}}
	})
	if w := Warnings(p); len(w) != 1 || !strings.Contains(w[0], "container app runs as user 1337") {
		t.Errorf("warned of %q", w)
	}
	if w := Warnings(injected(nil)); len(w) != 0 {
		t.Errorf("warned of %q", w)
	}
}

// Any user who can create pods controls these settings. They must not crash the plugin or yield rules that do not
// compile.
func FuzzAnnotations(f *testing.F) {
	f.Add("*", "80,90-100", "10.0.0.0/8", "eth0", "TPROXY", "true", int64(1337))
	f.Add("70000", "*,1", "::/0", "a b", "REDIRECT", "x", int64(0))
	f.Fuzz(func(t *testing.T, in, out, cidr, link, mode, flag string, uid int64) {
		p := injected(annotate(map[string]string{
			traffic + "includeInboundPorts": in, traffic + "excludeInboundPorts": out, traffic + "excludeOutboundPorts": out,
			traffic + "includeOutboundIPRanges": cidr, traffic + "excludeOutboundIPRanges": cidr,
			traffic + "excludeInterfaces": link, "istio.io/reroute-virtual-interfaces": link, modeKey: mode, statusPortKey: in,
		}))
		runs(uid, uid)(p)
		env("ISTIO_META_DNS_CAPTURE", flag)(p)
		env("ISTIO_OUTBOUND_OWNER_GROUPS", in)(p)
		s := &Settings{}
		s.SkipPod(p)
		o, err := s.Options(p, nil)
		if err != nil {
			return
		}
		if _, err := iptables.Compile(o); err != nil {
			t.Errorf("accepted options do not compile: %v", err)
		}
		for _, port := range probePorts {
			for _, r := range o.InboundPorts.Listed {
				if r.Contains(port) {
					t.Errorf("port %d is captured by %v", port, r)
				}
			}
		}
	})
}
