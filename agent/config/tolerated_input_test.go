package config

import (
	"errors"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/envoy"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// Istio's agent starts with each of these values, so this agent must, too. A warning names the value. The variables with
// a setting of their own are in TestIstioVariablesHaveDefaultEffectAndError.
func TestInvalidInputThatIstioToleratesIsAWarning(t *testing.T) {
	for name, tc := range map[string]struct {
		env, annotations string
		want             string
	}{
		"metadata":              {env: "ISTIO_METAJSON_X=[1]", want: "ISTIO_METAJSON_X"},
		"labels":                {env: "ISTIO_METAJSON_LABELS={\"a\": 1}", want: "ISTIO_METAJSON_LABELS"},
		"flush interval":        {env: "PROXY_CONFIG={fileFlushInterval: -5s}", want: "fileFlushInterval (environment PROXY_CONFIG): -5s"},
		"drain":                 {env: "PROXY_CONFIG={terminationDrainDuration: -5s}", want: "terminationDrainDuration: -5s"},
		"concurrency":           {env: "PROXY_CONFIG={concurrency: -1}", want: "concurrency (environment PROXY_CONFIG): -1"},
		"statsd without a port": {env: "PROXY_CONFIG={statsdUdpAddress: statsd}", want: `statsdUdpAddress (environment PROXY_CONFIG): "statsd"`},
		"roots":                 {env: "PROXY_CONFIG={caCertificatesPem: [x]}", want: "caCertificatesPem[0] (environment PROXY_CONFIG)"},
		"header of gRPC":        {env: "XDS_HEADER_grpc-timeout=1", want: "XDS_HEADER_grpc-timeout"},
		"status port":           {annotations: "status.sidecar.istio.io/port=\"http\"\n", want: `status.sidecar.istio.io/port: "http"`},
		"large status port":     {annotations: "status.sidecar.istio.io/port=\"70000\"\n", want: "70000"},
		"annotations":           {annotations: "a=b\n", want: "is not a quoted string"},
		"eviction interval":     {annotations: "sidecar.istio.io/statsEvictionInterval=\"11s\"\n", want: "not a multiple of the flush interval"},
		"binary header is sent": {env: "XDS_HEADER_trace-bin=\x00"},
	} {
		t.Run(name, func(t *testing.T) {
			testenv.InDir(t, map[string]string{"etc/istio/pod/annotations": tc.annotations})
			c := resolve(t, env(tc.env))
			if tc.want == "" && len(c.Warnings) == 0 {
				return
			}
			if len(c.Warnings) != 1 || !strings.Contains(c.Warnings[0], tc.want) {
				t.Errorf("warnings %q, want one with %q", c.Warnings, tc.want)
			}
			if c.Proxy.GetStatusPort() != 15020 {
				t.Errorf("status port %d", c.Proxy.GetStatusPort())
			}
		})
	}
}

func TestInvalidReadinessProbeStopsMachinesButNotPods(t *testing.T) {
	testenv.InDir(t, nil)
	const probe = "PROXY_CONFIG={readinessProbe: {exec: {}}}"
	if _, err := Resolve(env(probe)); err == nil || !strings.Contains(err.Error(), "exec has no command") {
		t.Errorf("on a machine: error %v", err)
	}
	c := resolve(t, env(probe, "KUBERNETES_SERVICE_HOST=10.0.0.1"))
	if c.HealthCheck != nil || len(c.Warnings) != 1 || !strings.Contains(c.Warnings[0], "exec has no command") {
		t.Errorf("in a pod: %+v, warnings %q", c.HealthCheck, c.Warnings)
	}
}

func TestInvalidInstanceIPIsIgnored(t *testing.T) {
	testenv.InDir(t, nil)
	in := Inputs{Env: []string{"INSTANCE_IP=here"}, Interfaces: func() ([]netip.Addr, error) {
		return []netip.Addr{netip.MustParseAddr("10.1.1.1")}, nil
	}}
	c := resolve(t, in)
	if len(c.Identity.IPs) != 1 || len(c.Warnings) != 1 || !strings.Contains(c.Warnings[0], `INSTANCE_IP: "here"`) {
		t.Errorf("addresses %v, warnings %q", c.Identity.IPs, c.Warnings)
	}
}

func TestAddressesOfExcludedInterfacesAreNotTheProxys(t *testing.T) {
	a, b, other := netip.MustParseAddr("10.1.1.1"), netip.MustParseAddr("10.2.2.2"), netip.MustParseAddr("10.3.3.3")
	in := Inputs{
		Env:        []string{"INSTANCE_IP=10.1.1.1"},
		Interfaces: func() ([]netip.Addr, error) { return []netip.Addr{a, b, other}, nil },
		InterfaceAddresses: func(name string) ([]netip.Addr, error) {
			switch name {
			case "net1":
				return []netip.Addr{b}, nil
			case "eth0":
				return []netip.Addr{a}, nil
			}
			return nil, errors.New("no such network interface")
		},
	}
	for annotation, want := range map[string][]netip.Addr{
		"":                  {a, b, other},
		"net1":              {a, other},
		"net1, gone9":       {a, other},
		"eth0,net1":         {a, other}, // INSTANCE_IP stays the first address
		"kubernetes-router": {a, b, other},
	} {
		testenv.InDir(t, map[string]string{"etc/istio/pod/annotations": "traffic.sidecar.istio.io/excludeInterfaces=\"" + annotation + "\"\n"})
		c := resolve(t, in)
		if !slices.Equal(c.Identity.IPs, want) {
			t.Errorf("%q: addresses %v, want %v", annotation, c.Identity.IPs, want)
		}
		if unknown := strings.Contains(annotation, "gone9") || strings.Contains(annotation, "router"); unknown != (len(c.Warnings) == 1) {
			t.Errorf("%q: warnings %q", annotation, c.Warnings)
		}
	}
}

func TestStatsdNameIsResolvedAtStart(t *testing.T) {
	testenv.InDir(t, nil)
	in := env("PROXY_CONFIG={statsdUdpAddress: \"statsd.obs:8125\"}")
	in.LookupHost = func(host string) ([]netip.Addr, error) {
		if host != "statsd.obs" {
			return nil, errors.New("no such host")
		}
		return []netip.Addr{netip.MustParseAddr("fd00::5"), netip.MustParseAddr("10.4.4.4")}, nil
	}
	if got := resolve(t, in).Proxy.GetStatsdUdpAddress(); got != "10.4.4.4:8125" {
		t.Errorf("address %q", got)
	}
	in.Env = append(in.Env, "PROXY_CONFIG={statsdUdpAddress: \"gone:8125\"}")
	c := resolve(t, in)
	if c.Proxy.GetStatsdUdpAddress() != "" || len(c.Warnings) != 1 || !strings.Contains(c.Warnings[0], "no such host") {
		t.Errorf("an unknown name: %q, warnings %q", c.Proxy.GetStatsdUdpAddress(), c.Warnings)
	}
	in = env("HOST_IP=10.0.0.9", "PROXY_CONFIG={statsdUdpAddress: \"$(HOST_IP):8125\"}")
	if got := resolve(t, in).Proxy.GetStatsdUdpAddress(); got != "10.0.0.9:8125" {
		t.Errorf("with HOST_IP: address %q", got)
	}
}

func TestFirstPartyPolicyUsesTheThirdPartyTokenIfItExists(t *testing.T) {
	testenv.InDir(t, nil)
	if got := resolve(t, env("JWT_POLICY=first-party-jwt")).ControlPlane.TokenFile; got != firstPartyToken {
		t.Errorf("token %s", got)
	}
	testenv.InDir(t, map[string]string{thirdPartyToken: "x"})
	if got := resolve(t, env("JWT_POLICY=first-party-jwt")).ControlPlane.TokenFile; got != thirdPartyToken {
		t.Errorf("with both: token %s", got)
	}
}

func TestBinaryPathIsBelowFlagAndVariable(t *testing.T) {
	testenv.InDir(t, map[string]string{"etc/istio/pod/annotations": "proxy.istio.io/config=\"binaryPath: /opt/a/envoy\"\n"})
	c := resolve(t, env())
	if s := c.setting("envoy.path"); c.Envoy.ConfiguredPath != "/opt/a/envoy" || s.Source != "binaryPath (annotation proxy.istio.io/config)" {
		t.Errorf("%q, %+v", c.Envoy.ConfiguredPath, s)
	}
	if _, err := envoy.Find(t.Context(), c.Envoy.FindOptions()); err == nil || !strings.Contains(err.Error(), "/opt/a/envoy from binaryPath of ProxyConfig: no such file") {
		t.Errorf("a missing binary: %v", err)
	}
	if s := resolve(t, env("ENVOY_PATH=/opt/b/envoy")).setting("envoy.path"); s.Value != "/opt/b/envoy" {
		t.Errorf("with ENVOY_PATH: %+v", s)
	}
	testenv.InDir(t, nil)
	_, missing := os.Stat(istioBinaryPath)
	got := resolve(t, env("PROXY_CONFIG={binaryPath: "+istioBinaryPath+"}")).Envoy.ConfiguredPath
	if (got == "") != (missing != nil) {
		t.Errorf("Istio's default: %q, although the file's error is %v", got, missing)
	}
}
