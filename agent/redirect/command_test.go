package redirect

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/pilotfish-mesh/pilotfish/internal/usage"
	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// newMachine returns a Process with environment variables, and with files in a temporary root directory.
func newMachine(t *testing.T, vars map[string]string, files map[string]string) Process {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return Process{Root: root, Env: func(name string) (string, bool) {
		v, ok := vars[name]
		return v, ok
	}}
}

// execute runs a command line, and returns its output.
func execute(t *testing.T, p Process, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, log bytes.Buffer
	c := newProgram(p, program)
	c.SetArgs(args)
	c.SetOut(&out)
	c.SetErr(&log)
	c.SetContext(t.Context())
	_, err = usage.Execute(c)
	return out.String(), log.String(), err
}

func showValues(t *testing.T, p Process, args ...string) map[string]optionValue {
	t.Helper()
	text, _, err := execute(t, p, append([]string{"show", "-o", "json"}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	var r report
	if err := json.Unmarshal([]byte(text), &struct {
		Values *[]optionValue `json:"values"`
	}{&r.Values}); err != nil {
		t.Fatal(err)
	}
	values := map[string]optionValue{}
	for _, v := range r.Values {
		values[v.Name] = v
	}
	return values
}

// istioOptions is Istio's table of options: flag, shorthand, variable, default, and a test value.
var istioOptions = []struct{ flag, short, variable, otherwise, try string }{
	{"envoy-port", "p", "", "15001", "16001"},
	{"inbound-capture-port", "z", "INBOUND_CAPTURE_PORT", "15006", "16006"},
	{"inbound-tunnel-port", "e", "INBOUND_TUNNEL_PORT", "15008", "16008"},
	{"proxy-uid", "u", "PROXY_UID", "1337", "1338,7"},
	{"proxy-gid", "g", "PROXY_GID", "1337", "1339"},
	{"istio-inbound-interception-mode", "m", "ISTIO_INBOUND_INTERCEPTION_MODE", "REDIRECT", "TPROXY"},
	{"istio-inbound-ports", "b", "ISTIO_INBOUND_PORTS", "", "80,90-99"},
	{"istio-local-exclude-ports", "d", "ISTIO_LOCAL_EXCLUDE_PORTS", "", "15020"},
	{"istio-service-cidr", "i", "ISTIO_SERVICE_CIDR", "", "*"},
	{"istio-service-exclude-cidr", "x", "ISTIO_SERVICE_EXCLUDE_CIDR", "", "10.0.0.0/8"},
	{"istio-outbound-ports", "q", "ISTIO_OUTBOUND_PORTS", "", "3306"},
	{"istio-local-outbound-ports-exclude", "o", "ISTIO_LOCAL_OUTBOUND_PORTS_EXCLUDE", "", "3307"},
	{"istio-exclude-interfaces", "c", "ISTIO_EXCLUDE_INTERFACES", "", "eth1"},
	{"kube-virt-interfaces", "k", "KUBE_VIRT_INTERFACES", "", "vif0"},
	{"istio-inbound-tproxy-mark", "t", "ISTIO_INBOUND_TPROXY_MARK", "1337", "7"},
	{"istio-inbound-tproxy-route-table", "r", "ISTIO_INBOUND_TPROXY_ROUTE_TABLE", "133", "134"},
	{"redirect-dns", "", "REDIRECT_DNS", "false", "true"},
	{"redirect-dns", "", "ISTIO_META_DNS_CAPTURE", "false", "true"},
	{"capture-all-dns", "", "CAPTURE_ALL_DNS", "false", "true"},
	{"drop-invalid", "", "DROP_INVALID", "false", "true"},
	{"drop-invalid", "", "INVALID_DROP", "false", "true"},
	{"dual-stack", "", "DUAL_STACK", "false", "true"},
	{"dual-stack", "", "ISTIO_DUAL_STACK", "false", "true"},
	{"ipv6", "", "PILOTFISH_IPV6", "auto", "reject"},
	{"", "", "ISTIO_OUTBOUND_OWNER_GROUPS", "*", "5,6"},
	{"", "", "ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE", "", "7"},
	{"", "", "ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR", "127.0.0.1/32", "127.0.0.0/8"},
}

func TestOptionsHaveIstioFlagsVariablesAndDefaults(t *testing.T) {
	resolv := map[string]string{"/etc/resolv.conf": "nameserver 10.0.0.10\n"}
	for _, c := range istioOptions {
		name := c.flag
		if name == "" {
			name = c.variable
		}
		if got := showValues(t, newMachine(t, nil, resolv))[name]; got.Value != c.otherwise {
			t.Errorf("%s is %q by default, want %q", name, got.Value, c.otherwise)
		}
		if c.variable != "" {
			vars := map[string]string{c.variable: c.try}
			if got := showValues(t, newMachine(t, vars, resolv))[name]; got.Value != c.try || got.Source != "environment "+c.variable {
				t.Errorf("%s by %s is %q (%s), want %q", name, c.variable, got.Value, got.Source, c.try)
			}
			if c.flag != "" && c.otherwise != "" {
				if got := showValues(t, newMachine(t, vars, resolv), "--"+c.flag+"="+c.otherwise)[name]; got.Value != c.otherwise || got.Source != sourceFlag {
					t.Errorf("%s by flag and %s is %q (%s), want the flag's %q", name, c.variable, got.Value, got.Source, c.otherwise)
				}
			}
		}
		if c.flag == "" {
			continue
		}
		if f := Command(Process{}).Flags().Lookup(c.flag); f == nil || f.Shorthand != c.short {
			t.Errorf("flag --%s with shorthand %q: %+v", c.flag, c.short, f)
		}
		if got := showValues(t, newMachine(t, nil, resolv), "--"+c.flag+"="+c.try)[name]; got.Value != c.try {
			t.Errorf("--%s %s is %q", c.flag, c.try, got.Value)
		}
	}
}

func TestIstioSwitchFlagsExist(t *testing.T) {
	f := Command(Process{}).Flags()
	for name, otherwise := range map[string]string{
		"dry-run": "false", "skip-rule-apply": "false", "run-validation": "false", "reconcile": "false", "cleanup-only": "false",
		"force-apply": "false", "native-nftables": "false", "cni-mode": "false", "network-namespace": "", "force-iptables-binary": "",
		"iptables-probe-port": "15002", "probe-timeout": "5s",
	} {
		if flag := f.Lookup(name); flag == nil || flag.DefValue != otherwise {
			t.Errorf("--%s: %+v, want the default %q", name, flag, otherwise)
		}
	}
	if f.ShorthandLookup("n").Name != "dry-run" {
		t.Error("-n is not --dry-run")
	}
}

// The arguments are those that Istio's injector writes into the init container.
func TestInjectedCommandLineIsAccepted(t *testing.T) {
	text, _, err := execute(t, newMachine(t, nil, nil), "-p", "15001", "-z", "15006", "-u", "1337", "-m", "REDIRECT", "-i", "*", "-x", "",
		"-b", "*", "-d", "15090,15021,15020", "--log_output_level=default:info", "--dry-run")
	if err != nil || !strings.Contains(text, `tcp dport 15021 counter return comment "inbound/exclude-port-15021"`) {
		t.Errorf("%v\n%s", err, text)
	}
}

func TestInvalidOptionsAreReportedTogetherWithRemedy(t *testing.T) {
	p := newMachine(t, map[string]string{"ISTIO_LOCAL_EXCLUDE_PORTS": "80,x", "ISTIO_OUTBOUND_OWNER_GROUPS": "*,5"}, map[string]string{"/etc/passwd": "", "/etc/group": ""})
	for _, c := range [][]string{
		{"-z", "70000", `--inbound-capture-port: "70000" is not a port: use a number from 1 to 65535`},
		{"-i", "*,10.0.0.0/8", `--istio-service-cidr: "*" cannot be combined with other entries`},
		{"-b", "*,80", `--istio-inbound-ports: "*" cannot be combined with other entries`},
		{"-u", "envoy", `--proxy-uid: looking up user "envoy"`},
		{"-u", "-1", `--proxy-uid: "-1" is not a user: use a number`},
		{"-b", "90-80", `"90-80" is not a port range: the first port is greater than the last`},
		{"-c", "an-interface-of-many-letters", `"an-interface-of-many-letters" is not an interface name: use at most 15 characters`},
		{"--dual-stack", "--ipv6", "reject", `--ipv6 "reject": contradicts --dual-stack`},
		{"-q", "*", `--istio-outbound-ports: "*" is not a port`},
		{"-m", "TPROXY", "-t", "x", `--istio-inbound-tproxy-mark: "x" is not a packet mark`},
		{"-x", "10.1.2.3", `"10.1.2.3" is not a CIDR`},
	} {
		args, want := c[:len(c)-1], c[len(c)-1]
		_, _, err := execute(t, p, args...)
		var exit interface{ ProcessExitCode() int }
		if !errors.As(err, &exit) || exit.ProcessExitCode() != exitUsage || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is refused with %v, want %s", args, err, want)
			continue
		}
		for _, of := range []string{`environment ISTIO_LOCAL_EXCLUDE_PORTS: --istio-local-exclude-ports: "x" is not a port`, `ISTIO_OUTBOUND_OWNER_GROUPS: "*" cannot be combined with other entries`} {
			if !strings.Contains(err.Error(), of) {
				t.Errorf("%q: the error lacks the other problem %s: %v", args, of, err)
			}
		}
	}
}

// istio-iptables starts the pod with each of these values.
func TestValuesThatIstioToleratesAreWarnings(t *testing.T) {
	for _, c := range []struct {
		args          []string
		env           map[string]string
		option, value string
		warning       string
	}{
		{[]string{"-i", "10.96.0.1/12,10.97.0.0/12"}, nil, "istio-service-cidr", "10.96.0.0/12", `--istio-service-cidr: "10.96.0.1/12" has host bits; the network 10.96.0.0/12 is used`},
		{[]string{"-x", "fd00::1/64"}, nil, "istio-service-exclude-cidr", "fd00::/64", "has host bits"},
		{[]string{"-x", "::ffff:10.1.2.3/112"}, nil, "istio-service-exclude-cidr", "10.1.0.0/16", "IPv4-mapped"},
		{nil, map[string]string{"ISTIO_SERVICE_CIDR": "10.1.2.3/8"}, "istio-service-cidr", "10.0.0.0/8", "has host bits"},
		{nil, map[string]string{"ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR": "127.0.0.1/8"}, "ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR", "127.0.0.0/8", "has host bits"},
		{[]string{"-b", "*", "-d", "0,15020"}, nil, "istio-local-exclude-ports", "15020", "port 0 has no effect"},
		{[]string{"-b", ":1024,60000:"}, nil, "istio-inbound-ports", "1-1024,60000-65535", ""},
		{[]string{"-m", "redirect"}, nil, "istio-inbound-interception-mode", "REDIRECT", `"redirect" is not an interception mode; REDIRECT is used`},
		{[]string{"-t", "x"}, nil, "istio-inbound-tproxy-mark", "1337", "no effect without TPROXY"},
		{[]string{"-m", "TPROXY", "-b", "*", "-t", "1338"}, nil, "istio-inbound-tproxy-mark", "1337", "1338 cannot be used"},
		{[]string{"-m", "TPROXY", "-b", "*", "-r", "254"}, nil, "istio-inbound-tproxy-route-table", "133", "254 cannot be used"},
		{[]string{"-m", "TPROXY", "-b", "*", "-c", "lo,net1"}, nil, "istio-exclude-interfaces", "net1", "lo is ignored"},
		{[]string{"-k", "lo,tap0"}, nil, "kube-virt-interfaces", "tap0", "lo is ignored"},
		{[]string{"-k", "tap0", "-c", "tap0"}, nil, "kube-virt-interfaces", "tap0", "is also in --istio-exclude-interfaces"},
		{[]string{"-c", "net+"}, nil, "istio-exclude-interfaces", "", `"net+" has no effect`},
		{[]string{"-p", "15006"}, nil, "envoy-port", "15006", "--envoy-port and --inbound-capture-port are both 15006"},
		{nil, map[string]string{"REDIRECT_DNS": "yes please"}, "redirect-dns", "false", `environment REDIRECT_DNS: --redirect-dns: "yes please" is not a boolean`},
		{nil, map[string]string{"REDIRECT_DNS": "true", "ISTIO_META_DNS_CAPTURE": "false"}, "redirect-dns", "false", ""},
		{nil, map[string]string{"DNS_PORT": "tcp://10.96.0.10:53"}, "dns-port", "15053", "the default is used"},
		{nil, map[string]string{"DNS_PROXY_ADDR": "15053"}, "DNS_PROXY_ADDR", "", "the default is used"},
	} {
		p := newMachine(t, c.env, map[string]string{"/etc/resolv.conf": "nameserver 10.0.0.10\n"})
		if got := showValues(t, p, c.args...)[c.option]; got.Value != c.value {
			t.Errorf("%q %v: %s is %q, want %q", c.args, c.env, c.option, got.Value, c.value)
		}
		text, _, err := execute(t, p, append([]string{"show", "-o", "json"}, c.args...)...)
		var got struct{ Warnings []string }
		if err := errors.Join(err, json.Unmarshal([]byte(text), &got)); err != nil || !strings.Contains(strings.Join(got.Warnings, "\n"), c.warning) {
			t.Errorf("%q %v: error %v, want the warning %s in %q", c.args, c.env, err, c.warning, got.Warnings)
		}
	}
}

func TestUsersGroupsAndResolversAreLookedUp(t *testing.T) {
	p := newMachine(t, map[string]string{"ENVOY_USER": "envoy", "ISTIO_OUTBOUND_OWNER_GROUPS": "wheel,12"}, map[string]string{
		"/etc/passwd":      "root:x:0:0:root:/root:/bin/sh\nenvoy:x:4242:99::/:/bin/false\n",
		"/etc/group":       "root:x:0:\nwheel:x:10:root\n",
		"/etc/resolv.conf": "# of the node\nsearch a b\nnameserver 10.0.0.10\nnameserver fe80::1%eth0\n",
	})
	got := showValues(t, p, "--redirect-dns")
	for name, want := range map[string]optionValue{
		"proxy-uid":                   {"proxy-uid", "4242", "user envoy"},
		"proxy-gid":                   {"proxy-gid", "4242", "as --proxy-uid"},
		"dns-servers":                 {"dns-servers", "10.0.0.10,fe80::1", sourceResolv},
		"ISTIO_OUTBOUND_OWNER_GROUPS": {"ISTIO_OUTBOUND_OWNER_GROUPS", "10,12", "environment ISTIO_OUTBOUND_OWNER_GROUPS"},
	} {
		if got[name] != want {
			t.Errorf("%s: %v, want %v", name, got[name], want)
		}
	}
	if _, _, err := execute(t, newMachine(t, nil, nil), "show", "--redirect-dns"); err == nil || !strings.Contains(err.Error(), "--capture-all-dns") {
		t.Errorf("without resolv.conf: %v", err)
	}
}

func TestResolverCountIsLimited(t *testing.T) {
	text := ""
	for i := range 10_000 {
		text += fmt.Sprintf("nameserver 10.0.%d.%d\n", i>>8, i&255)
	}
	got := showValues(t, newMachine(t, nil, map[string]string{"/etc/resolv.conf": text}), "--redirect-dns")["dns-servers"].Value
	if n := strings.Count(got, ",") + 1; n != maxResolvers {
		t.Errorf("%d resolvers are captured", n)
	}
}

func TestMissingPrivilegesAreReportedBeforeChanges(t *testing.T) {
	p := newMachine(t, nil, map[string]string{"/proc/self/status": "Name:\tx\nCapEff:\t00000000a80405fb\n"})
	_, _, err := execute(t, p, "-m", "TPROXY", "-b", "*")
	if err == nil || !strings.Contains(err.Error(), "TPROXY: this process lacks the privilege CAP_NET_ADMIN") {
		t.Errorf("got %v", err)
	}
}

func TestSavedConfigurationExplainsElsewhere(t *testing.T) {
	text, _, err := execute(t, newMachine(t, map[string]string{"ISTIO_SERVICE_CIDR": "*"}, nil), "show", "-o", "yaml", "--addresses", "10.0.0.5", "-u", "77")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "saved.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	elsewhere := newMachine(t, map[string]string{"ISTIO_SERVICE_CIDR": "10.0.0.0/8"}, nil)
	for _, c := range []struct{ args, want string }{
		{"--from 10.0.0.5 --uid 1000 --to 11.2.3.4:443/tcp", "It is redirected to port 15001 of this pod: all other outbound connections are captured (outbound/all)."},
		{"--uid 77 --to 11.2.3.4:443", "the proxy's own traffic is not captured again (outbound/proxy-uid-77)"},
		{"--to 10.0.0.5:80", "traffic between applications of the pod is not captured (outbound/local-ipv4)"},
		{"--from 10.9.9.9 --to 10.0.0.5:80", "inbound tcp from 10.9.9.9:40000 to 10.0.0.5:80 by eth0"},
		{"--to 11.2.3.4:443 -o json --all", `"end": "redirected"`},
		{"--to 11.2.3.4:443 --all", "no: different user"},
	} {
		out, _, err := execute(t, elsewhere, append([]string{"explain", "--config", file}, strings.Fields(c.args)...)...)
		if err != nil || !strings.Contains(out, c.want) {
			t.Errorf("explain %s: %v\n%s\nwant %s", c.args, err, out, c.want)
		}
	}
}

func TestPacketDirectionFromOwnerInterfaceAndAddresses(t *testing.T) {
	common := []string{"explain", "-b", "*", "-i", "*", "-k", "vif0", "--addresses", "10.0.0.5,fd00::5"}
	tproxy := "-m TPROXY -u 1337 -g 1337 --uid 0 --gid 1337 "
	for args, want := range map[string]string{
		"--from 10.9.9.9 --to 10.0.0.5:80":                         "inbound tcp from 10.9.9.9:40000",
		"--from 10.9.9.9 --to 10.2.3.4:80":                         "outbound tcp from 10.9.9.9:40000",
		"--from 192.168.9.9 --by vif0 --to 10.2.3.4:80":            "(virtual/all)",
		"--from 192.168.9.9 --by vif0 --to 10.2.3.4:80 --uid 7":    "(outbound/all)",
		"--from fd11::9 --by vif0 --to [fd22::1]:80 --ipv6 reject": "(refuse/virtual/all)",
		tproxy + "--from 10.9.9.9 --mark 1337 --to 10.0.0.5:80":    "outbound tcp from 10.9.9.9:40000 to 10.0.0.5:80 by lo, sent by uid 0, gid 1337",
		tproxy + "--to 10.0.0.5:80":                                "is delivered to port 15006 of this pod with unchanged addresses",
		"--to 0.0.0.0:80":                                          "to 127.0.0.1:80 by lo",
		"--to [::]:80 --dual-stack":                                "from [::1]:40000 to [::1]:80 by lo",
	} {
		out, _, err := execute(t, newMachine(t, nil, nil), append(common, strings.Fields(args)...)...)
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("explain %s: %v\n%s\nwant %s", args, err, out, want)
		}
	}
}

func TestSavedConfigurationWithAnUnknownOptionIsRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "saved.yaml")
	if err := os.WriteFile(file, []byte("options:\n  istio-inbound-port: '*'\n  redirect-dns: true\n  envoy-port: 15101\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, _, err := execute(t, newMachine(t, nil, nil), "show", "--config", file)
	if err == nil || !strings.Contains(err.Error(), `unknown option "istio-inbound-port"`) {
		t.Errorf("got %v", err)
	}
}

// In usage texts, pflag interprets a backquoted word as the name of the flag's value.
func TestFlagUsageHasNoBackquotes(t *testing.T) {
	c := Command(Process{})
	for _, sub := range append(c.Commands(), c) {
		sub.Flags().VisitAll(func(f *pflag.Flag) {
			if strings.Contains(f.Usage, "`") {
				t.Errorf("%s --%s: %s", sub.Name(), f.Name, f.Usage)
			}
		})
	}
}

func TestInvalidExplainRequestsAreRejected(t *testing.T) {
	for args, want := range map[string]string{
		"":                             "--to is missing",
		"--to 10.0.0.1":                "write an address and a port",
		"--to 10.0.0.1:80/sctp":        "write tcp or udp as the protocol",
		"--to 10.0.0.1:80 --from ::2":  "different address families",
		"--to 10.0.0.1:80 --from x":    "write an address, with or without a port",
		"--to 10.0.0.1:80 --state odd": "use new, established, related or invalid",
		"--to 10.0.0.1:80 --uid x":     `--uid "x"`,
		"more":                         `unexpected argument "more"; usage: `,
		"--to 10.0.0.1:80 -o xml":      `output format "xml" is not known`,
		"--config /nowhere":            "no such file",

		"--to 10.0.0.1:0":                        "a port from 1 to 65535",
		"--to 10.0.0.1:80 --inbound --uid 1":     "omit --uid and --gid",
		"--to 10.0.0.1:80 -b 80-":                `"80-" is not a port range: use two numbers`,
		"--to 10.0.0.1:80 -b -80":                `"-80" is not a port range: use two numbers`,
		"--to 10.0.0.1:80 --dry-run-format text": "unknown flag",
	} {
		_, _, err := execute(t, newMachine(t, nil, nil), append([]string{"explain"}, strings.Fields(args)...)...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("explain %s: %v, want %s", args, err, want)
		}
	}
}

func TestDryRunPrintsEachFormatAndToFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "rules")
	p := newMachine(t, map[string]string{"DRY_RUN_FILE_PATH": file, "DRY_RUN": "true"}, nil)
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "table inet pilotfish"},
		{[]string{"--force-iptables-binary", "legacy"}, "# iptables-restore --noflush"},
		{[]string{"--dry-run-format", "iptables", "-m", "TPROXY", "--dual-stack"}, "# ip -6 rule add priority 1337 fwmark 1337 lookup 133"},
		{[]string{"--dry-run-format", "prose"}, "outbound/all: all other outbound connections are captured"},
	} {
		text, _, err := execute(t, p, append([]string{"-b", "*", "-i", "*"}, c.args...)...)
		saved, _ := os.ReadFile(file)
		if err != nil || !strings.Contains(text, c.want) || string(saved) != text {
			t.Errorf("%q: %v\n%s\nwant %s, in the file too:\n%s", c.args, err, text, c.want, saved)
		}
	}
}

func FuzzSavedConfigurationIsReadOrRefused(f *testing.F) {
	f.Add([]byte("options:\n  istio-service-cidr: '*'\n"))
	f.Add([]byte(`{"options":{"proxy-uid":"1337","istio-inbound-ports":"80,90-99"}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		saved, err := parseSaved("saved", text)
		if err != nil {
			return
		}
		r := resolver{process: Process{Root: t.TempDir()}, flags: Command(Process{}).Flags(), saved: saved}
		if out, err := r.resolve(); err == nil {
			if _, err := iptables.Compile(out.options); err != nil {
				t.Errorf("options %v are resolved, but do not compile: %v", saved, err)
			}
		}
	})
}
