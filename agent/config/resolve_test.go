package config

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pilotfish-mesh/pilotfish/bootstrap"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/internal/testpki"
	"github.com/pilotfish-mesh/pilotfish/sds"
)

func (c *Config) setting(name string) Setting {
	for _, s := range c.Settings {
		if s.Name == name {
			return s
		}
	}
	return Setting{}
}

func TestEachSourceOverridesEarlierSources(t *testing.T) {
	files := map[string]string{
		"etc/istio/config/mesh": "trustDomain: example.org\ndefaultConfig:\n  discoveryAddress: mesh.example:15012\n  drainDuration: 10s\n" +
			"  terminationDrainDuration: 11s\n  concurrency: 3\n  proxyMetadata: {ISTIO_META_A: mesh, ISTIO_META_B: mesh}\n",
		"etc/istio/pod/annotations": "proxy.istio.io/config=\"terminationDrainDuration: 33s\\nconcurrency: 0\\nproxyMetadata:\\n  ISTIO_META_B: pod\\n\"\n" +
			"status.sidecar.istio.io/port=\"16020\"\n",
		"etc/istio/pod/labels": "app=\"reviews\"\npod-template-hash=\"xyz\"\n",
	}
	testenv.InDir(t, files)
	in := env(`PROXY_CONFIG={"drainDuration":"22s","terminationDrainDuration":"22s"}`, "POD_NAMESPACE=books",
		`ISTIO_METAJSON_LABELS={"app":"static","version":"v1"}`, "ISTIO_META_C=env", `ISTIO_METAJSON_OTHER={"D":["x"]}`)
	in.Flags = Flags{ServiceCluster: "shop", Changed: map[string]bool{"serviceCluster": true}}
	c := resolve(t, in)

	want := map[string]Setting{
		"discoveryAddress":         {Value: "mesh.example:15012", Source: "mesh file ./etc/istio/config/mesh"},
		"drainDuration":            {Value: "22s", Source: "environment PROXY_CONFIG"},
		"terminationDrainDuration": {Value: "33s", Source: "annotation proxy.istio.io/config"},
		"statusPort":               {Value: "16020", Source: "annotation status.sidecar.istio.io/port"},
		"proxyAdminPort":           {Value: "15000", Source: "default"},
		"serviceCluster":           {Value: "shop", Source: "flag --serviceCluster"},
		"envoy.concurrency":        {Value: "0", Source: "annotation proxy.istio.io/config"},
		"trustDomain":              {Value: "example.org", Source: "mesh file ./etc/istio/config/mesh"},
		"namespace":                {Value: "books", Source: "environment POD_NAMESPACE"},
		"metadata.A":               {Value: "mesh", Source: "proxyMetadata ISTIO_META_A"},
		"metadata.B":               {Value: "pod", Source: "proxyMetadata ISTIO_META_B"},
		"metadata.C":               {Value: "env", Source: "environment ISTIO_META_C"},
		"label app":                {Value: "reviews", Source: "file ./etc/istio/pod/labels"},
		"label version":            {Value: "v1", Source: "environment ISTIO_METAJSON_LABELS"},
		"label pod-template-hash":  {},
	}
	for name, w := range want {
		got := c.setting(name)
		if got.Value != w.Value || got.Source != w.Source {
			t.Errorf("%s: %q from %q, want %q from %q", name, got.Value, got.Source, w.Value, w.Source)
		}
	}
	if c.Shutdown.Linger != 33*time.Second || c.Proxy.GetStatusPort() != 16020 || c.Identity.ClusterID != "" {
		t.Errorf("the configuration differs from the list of settings: %+v", c.Shutdown)
	}
	// The labels of the pod have precedence over these in the control plane.
	if static := c.Identity.Metadata["STATIC_LABELS"]; fmt.Sprint(static) != "map[app:static version:v1]" {
		t.Errorf("the node metadata for labels that are not on the pod is %v", static)
	}
}

func TestDefaultsMatchIstio(t *testing.T) {
	testenv.InDir(t, nil)
	c := resolve(t, env("POD_NAME=p", "POD_NAMESPACE=n"))
	if c.Identity.Type != bootstrap.Sidecar || c.Identity.Domain != "n.svc.cluster.local" || c.Identity.TrustDomain != "cluster.local" {
		t.Errorf("identity: %+v", c.Identity)
	}
	if got, want := c.Identity.SPIFFEID(), "spiffe://cluster.local/ns/n/sa/default"; got != want {
		t.Errorf("SPIFFE ID %s, want %s", got, want)
	}
	wantCP := ControlPlane{
		Address: "istiod.istio-system.svc:15012", RootFile: "./var/run/secrets/istio/root-cert.pem",
		ServerName: "istiod.istio-system.svc", TokenFile: "./var/run/secrets/tokens/istio-token",
		Socket: "./etc/istio/proxy/XDS", KeepaliveInterval: 30 * time.Second, KeepaliveTimeout: 10 * time.Second,
		Headers: map[string]string{},
	}
	if diff := cmp.Diff(wantCP, c.ControlPlane); diff != "" {
		t.Errorf("control plane: %s", diff)
	}
	wantCerts := Certificates{
		Address: wantCP.Address, RootFile: wantCP.RootFile, ServerName: wantCP.ServerName, TokenFile: wantCP.TokenFile,
		Key: sds.RSA2048, TTL: 24 * time.Hour, GraceRatio: 0.5, GraceJitter: 0.01,
		Socket: "./var/run/secrets/workload-spiffe-uds/socket", Headers: map[string]string{},
		CRLFile: "/var/run/secrets/istio/crl/ca-crl.pem", Debounce: 100 * time.Millisecond,
	}
	if diff := cmp.Diff(wantCerts, c.Certificates); diff != "" {
		t.Errorf("certificates: %s", diff)
	}
	if want := (Shutdown{Deadline: 28 * time.Second, Linger: 5 * time.Second, Quiet: time.Second, Stop: 2 * time.Second}); c.Shutdown != want {
		t.Errorf("shutdown: %+v, want %+v", c.Shutdown, want)
	}
}

func TestIstioVariables(t *testing.T) {
	testenv.InDir(t, map[string]string{"etc/certs/cert-chain.pem": ""})
	c := resolve(t, env("CA_ADDR=ca.example:443", "CA_ROOT_CA=SYSTEM", "XDS_ROOT_CA=./roots.pem", "ISTIOD_SAN=istiod.example",
		"JWT_POLICY=first-party-jwt", "ECC_SIGNATURE_ALGORITHM=ECDSA", "SECRET_TTL=1h", "SECRET_GRACE_PERIOD_RATIO=0.2",
		"ISTIO_CPU_LIMIT=1500m", "XDS_HEADER_x-team=a", "CA_HEADER_x-ca=b", "ISTIO_DELTA_XDS=false", "ENVOY_STATUS_PORT=1",
		"EXIT_ON_ZERO_ACTIVE_CONNECTIONS=true", "ISTIO_META_CLUSTER_ID=c1", "WORKLOAD_IDENTITY_SOCKET_FILE=other", "OUTPUT_CERTS=."))
	switch {
	case c.Certificates.Address != "ca.example:443", c.Certificates.RootFile != "SYSTEM", c.Certificates.ServerName != "ca.example",
		c.Certificates.Key != sds.ECDSAP256, c.Certificates.TTL != time.Hour, c.Certificates.GraceRatio != 0.2,
		c.Certificates.Headers["x-ca"] != "b", c.Certificates.Files != "./etc/certs",
		c.Certificates.Socket != "./var/run/secrets/workload-spiffe-uds/other":
		t.Errorf("certificates: %+v", c.Certificates)
	case c.ControlPlane.RootFile != "./roots.pem", c.ControlPlane.ServerName != "istiod.example",
		c.ControlPlane.TokenFile != "./var/run/secrets/kubernetes.io/serviceaccount/token",
		c.ControlPlane.Headers["x-team"] != "a", !c.ControlPlane.SotW:
		t.Errorf("control plane: %+v", c.ControlPlane)
	case c.Envoy.Concurrency != 2, c.Envoy.ReadinessPort != 1, c.Identity.ClusterID != "c1":
		t.Errorf("envoy: %+v", c.Envoy)
	case !c.Shutdown.WhenIdle, c.Shutdown.Deadline != time.Hour, c.Shutdown.Minimum != 5*time.Second:
		t.Errorf("the shutdown does not wait until idle: %+v", c.Shutdown)
	}
	if len(c.Warnings) != 0 || c.Certificates.Output != (sds.Output{Dir: ".", Mode: 0o600}) {
		t.Errorf("warnings: %q, output: %+v", c.Warnings, c.Certificates.Output)
	}
	for _, s := range c.Settings {
		if s.Value == "a" || s.Value == "b" {
			t.Errorf("the value of a header, which may be secret, is shown: %+v", s)
		}
	}
}

func TestPlaintextIsByPolicyOrPort(t *testing.T) {
	testenv.InDir(t, nil)
	for config, want := range map[string]bool{
		`{discoveryAddress: "a:15010"}`:                               true,
		`{discoveryAddress: "a:15012"}`:                               false,
		`{discoveryAddress: "a:15012", controlPlaneAuthPolicy: NONE}`: true,
	} {
		if got := resolve(t, env("PROXY_CONFIG="+config)).ControlPlane.Plaintext; got != want {
			t.Errorf("%s: plaintext %v, want %v", config, got, want)
		}
	}
}

func TestInstanceIPIsFirstAddress(t *testing.T) {
	testenv.InDir(t, nil)
	in := env()
	in.Interfaces = func() ([]netip.Addr, error) {
		return []netip.Addr{netip.MustParseAddr("10.1.1.1"), netip.MustParseAddr("fd00::1")}, nil
	}
	if got, want := resolve(t, in).Identity.IPs, []netip.Addr{netip.MustParseAddr("10.1.1.1"), netip.MustParseAddr("fd00::1")}; !slices.Equal(got, want) {
		t.Errorf("addresses %v, want %v", got, want)
	}
	in.Env = []string{"INSTANCE_IP=127.77.3.1"}
	if got, want := resolve(t, in).Identity.IPs, []netip.Addr{netip.MustParseAddr("127.77.3.1")}; !slices.Equal(got, want) {
		t.Errorf("a loopback address is not the only one: %v, want %v", got, want)
	}
}

func TestAgentWaitsForFirstAddress(t *testing.T) {
	testenv.InDir(t, nil)
	none := func() ([]netip.Addr, error) { return nil, nil }
	asked := false
	come := Inputs{Interfaces: none, AwaitAddress: func() []netip.Addr { asked = true; return []netip.Addr{netip.MustParseAddr("10.1.1.1")} }}
	if got := resolve(t, come).Identity.IPs; len(got) != 1 || !asked {
		t.Errorf("the address that became available later is not used: %v", got)
	}
	asked = false
	come.Env = []string{"INSTANCE_IP=10.2.2.2"}
	if got := resolve(t, come).Identity.IPs; len(got) != 1 || asked {
		t.Errorf("the agent waits although it has an address (waited %v): %v", asked, got)
	}
	for want, env := range map[error][]string{ErrNoAddress: nil, nil: {"ENVOY_STATUS_PORT=0"}} { // a retry does not fix the second
		if _, err := Resolve(Inputs{Interfaces: none, Env: env}); err == nil || errors.Is(err, ErrNoAddress) != (want != nil) {
			t.Errorf("%q: %v, want %v", env, err, want)
		}
	}
}

func TestInvalidValuesAreReportedWithRemedy(t *testing.T) {
	cases := map[string]struct {
		env, file string
		want      []string
	}{
		"port":             {"ENVOY_PROMETHEUS_PORT=0", "", []string{"ENVOY_PROMETHEUS_PORT", `"0"`, "65535"}},
		"key":              {"ECC_SIGNATURE_ALGORITHM=ED25519", "", []string{"ECC_SIGNATURE_ALGORITHM", `"ED25519"`, "ECDSA"}},
		"address":          {"PROXY_BIND_ADDRESS=here", "", []string{"PROXY_BIND_ADDRESS", `"here"`, "IP address"}},
		"socket":           {"WORKLOAD_IDENTITY_SOCKET_FILE=../x", "", []string{"WORKLOAD_IDENTITY_SOCKET_FILE", `"../x"`}},
		"name":             {"POD_NAME=a~b", "", []string{"POD_NAME", `"a~b"`}},
		"CA":               {"CA_ADDR=ca", "", []string{"CA_ADDR", `"ca"`, "host:port"}},
		"two uses":         {"ENVOY_STATUS_PORT=15090", "", []string{"ENVOY_STATUS_PORT", "ENVOY_PROMETHEUS_PORT", "15090"}},
		"discovery":        {`PROXY_CONFIG={discoveryAddress: x}`, "", []string{"discoveryAddress", "PROXY_CONFIG", `"x"`, "host:port"}},
		"wrong type":       {`PROXY_CONFIG={drainDuration: 5}`, "", []string{"PROXY_CONFIG", "drainDuration", "5", "5s"}},
		"drain":            {`PROXY_CONFIG={drainDuration: -5s}`, "", []string{"drainDuration", "PROXY_CONFIG", "-5s", "negative"}},
		"host":             {`PROXY_CONFIG={discoveryAddress: "a b:15012"}`, "", []string{"discoveryAddress", `"a b:15012"`, "host:port"}},
		"wrong enum":       {`PROXY_CONFIG={interceptionMode: ALL}`, "", []string{"interceptionMode", "ALL", "REDIRECT"}},
		"not YAML":         {`PROXY_CONFIG={`, "", []string{"PROXY_CONFIG"}},
		"mesh file":        {"", "defaultConfig:\n  proxyStatsMatcher:\n    inclusionPrefixes: all\n", []string{"line 3", "defaultConfig.proxyStatsMatcher.inclusionPrefixes", "all", "list"}},
		"mesh file's root": {"", "trustDomain: x\nenableTracing: y\n", []string{"line 2", "enableTracing", "true or false"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			testenv.InDir(t, map[string]string{"etc/istio/config/mesh": tc.file})
			_, err := Resolve(env(tc.env))
			if err == nil {
				t.Fatal("the invalid value was accepted")
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the error does not contain %s: %v", want, err)
				}
			}
		})
	}
}

// The pod's injector may be newer than its proxy.
func TestUnknownAPIFieldsWarn(t *testing.T) {
	testenv.InDir(t, map[string]string{
		"etc/istio/config/mesh":     "trustDomain: x\nrootNamespaces: y\ndefaultConfig:\n  newer: {a: 1}\n",
		"etc/istio/pod/annotations": `proxy.istio.io/config="drainDurations: 1s\nterminationDrainDuration: 1m\n"`,
	})
	c := resolve(t, env(`PROXY_CONFIG={concurency: 2, statusPort: 16020}`, "INSTANCE_IP=10.0.0.1"))
	if c.Identity.TrustDomain != "x" || c.Proxy.GetStatusPort() != 16020 || c.Shutdown.Linger != time.Minute {
		t.Errorf("the known fields have no effect: %+v", c.Proxy)
	}
	want := []string{
		"mesh configuration ./etc/istio/config/mesh: line 4: defaultConfig.newer: unknown field; the field has no effect",
		"mesh configuration ./etc/istio/config/mesh: line 2: rootNamespaces: unknown field; did you mean rootNamespace?; the field has no effect",
		"environment PROXY_CONFIG: concurency: unknown field; did you mean concurrency?; the field has no effect",
		"annotation proxy.istio.io/config: line 1: drainDurations: unknown field; did you mean drainDuration?; the field has no effect",
	}
	if !slices.Equal(c.Warnings, want) {
		t.Errorf("warnings %q, want %q", c.Warnings, want)
	}
}

func TestEffectiveVariablesCauseNoWarning(t *testing.T) {
	testenv.InDir(t, nil)
	c := resolve(t, env(fmt.Sprintf(`PROXY_CONFIG={privateKeyProvider: {cryptomb: {pollDelay: 10ms, fallback: true}}, caCertificatesPem: [%q]}`, testpki.New(t, "root").PEM())))
	if p := c.Certificates.KeyProvider; p == nil || p.PollDelay != 10*time.Millisecond || len(c.Certificates.Anchors) != 1 || len(c.Warnings) != 0 {
		t.Errorf("%+v, %+v, warnings %q", p, c.Certificates.Anchors, c.Warnings)
	}
}

func TestAllInvalidValuesAreReportedTogether(t *testing.T) {
	testenv.InDir(t, nil)
	_, err := Resolve(env("DNS_KEEP_NAMES=x", "ISTIO_META_DNS_CAPTURE=true", "PRE_DRAIN_DELAY=y", "STATUS_PORT_USERS=z"))
	for _, want := range []string{"DNS_KEEP_NAMES", "PRE_DRAIN_DELAY", "STATUS_PORT_USERS"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not contain %s: %v", want, err)
		}
	}
}

func TestCPUsAreRoundedUp(t *testing.T) {
	for text, want := range map[string]int{"1": 1, "2": 2, "1.2": 2, "500m": 1, "1001m": 2, "0": 0} {
		if got, err := parseCPUs(text); err != nil || got != want {
			t.Errorf("%s: %d %v, want %d", text, got, err, want)
		}
	}
}

func FuzzProxyConfigIsReadOrRefused(f *testing.F) {
	for _, seed := range []string{"", "concurrency: 2", "{drainDuration: 5s}", "proxyMetadata: {A: b}", "tracing: {sampling: x}", "1: 2", "- a", "runtimeValues: {a: 1}"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r := &resolver{env: newEnvironment(nil), merger: newProxyConfigMerger()}
		if r.mergeProxyConfigYAML(text, "fuzz") == nil {
			r.merger.settings()
		}
	})
}

func FuzzDownwardFileIsReadOrRefused(f *testing.F) {
	for _, seed := range []string{"", "a=\"b\"\n", "a=\"b\\nc\"\nd=\"\"", "a=b", "=\"x\"", "a"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		_, _ = parsePodInfo(text)
	})
}
