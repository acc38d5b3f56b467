package xds

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"github.com/pilotfish-mesh/pilotfish/internal/envoytest"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// vhdsVersions are the Envoy versions that support VHDS over ADS.
var vhdsVersions = []string{testenv.EnvoyVersion, testenv.MidEnvoyVersion}

func vhdsRoutes(name string) *routev3.RouteConfiguration {
	return &routev3.RouteConfiguration{Name: name, Vhds: &routev3.Vhds{ConfigSource: ads()}}
}

// newVirtualHost returns a virtual host of a route configuration with a direct response.
func newVirtualHost(routes, domain, answer string) *routev3.VirtualHost {
	h := route("", "").VirtualHosts[0]
	h.Name, h.Domains = routes+"/"+domain, []string{domain}
	h.Routes[0].Action = &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{Status: 200, Body: &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: answer}}}}
	return h
}

func (r envoyState) withVirtualHosts(t testing.TB, hosts ...*routev3.VirtualHost) envoyState {
	t.Helper()
	for _, h := range hosts {
		r = r.withResource(t, h, h.GetName())
	}
	return r
}

// get sends a request with the host name to a listener, and returns the body or the status.
func get(address, hostname string) string {
	r, err := http.NewRequest(http.MethodGet, "http://"+address+"/", nil)
	if err != nil {
		return err.Error()
	}
	r.Host = hostname
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(r)
	if err != nil {
		return "no answer"
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Sprint(response.StatusCode)
	}
	body, _ := io.ReadAll(response.Body)
	return string(body)
}

func expectBody(t testing.TB, address string, want map[string]string) {
	t.Helper()
	testenv.Eventually(t, "the virtual hosts are as they should be", func() error {
		for hostname, text := range want {
			if got := get(address, hostname); got != text {
				return fmt.Errorf("%s returned %q, want %q", hostname, got, text)
			}
		}
		return nil
	})
}

func forEachVHDSEnvoy(t *testing.T, first func(listen string) envoyState, test func(t *testing.T, p *envoyServer, e *envoytest.Envoy, address string)) {
	for _, version := range vhdsVersions {
		t.Run(version, func(t *testing.T) { newVHDSEnvoy(t, version, first, test) })
	}
}

func newVHDSEnvoy(t *testing.T, version string, first func(listen string) envoyState, test func(t *testing.T, p *envoyServer, e *envoytest.Envoy, address string)) {
	hostname, port := freeAddress()
	state := first("").withResource(t, listener(t, "l1", hostname, port, "r1"), "l1")
	p := startEnvoyServer(t, "127.0.0.1:0", state)
	p.state = state
	e := p.startEnvoy(version, "DELTA_GRPC", "--drain-time-s", "1")
	test(t, p, e, fmt.Sprintf("%s:%d", hostname, port))
}

func twoHosts(t testing.TB) func(string) envoyState {
	return func(string) envoyState {
		return envoyState{}.withResource(t, vhdsRoutes("r1"), "r1").withVirtualHosts(t, newVirtualHost("r1", "a.test", "a1"), newVirtualHost("r1", "b.test", "b1"))
	}
}

func TestEnvoyAppliesChangesOfSingleVirtualHosts(t *testing.T) {
	forEachVHDSEnvoy(t, twoHosts(t), func(t *testing.T, p *envoyServer, e *envoytest.Envoy, address string) {
		expectBody(t, address, map[string]string{"a.test": "a1", "b.test": "b1", "c.test": "404"})
		p.awaitSync()
		before := stat(t, e, "http.l1.rds.r1.update_success")
		p.change(VirtualHostType+" r1/a.test", p.state.withVirtualHosts(t, newVirtualHost("r1", "a.test", "a2")))
		expectBody(t, address, map[string]string{"a.test": "a2", "b.test": "b1"})
		p.change(VirtualHostType+" r1/c.test", p.state.withVirtualHosts(t, newVirtualHost("r1", "c.test", "c1")))
		expectBody(t, address, map[string]string{"a.test": "a2", "b.test": "b1", "c.test": "c1"})
		p.change(VirtualHostType+" r1/b.test", p.state.withoutResource(t, VirtualHostType, "r1/b.test"))
		expectBody(t, address, map[string]string{"a.test": "a2", "b.test": "404", "c.test": "c1"})
		p.awaitSync()
		if after := stat(t, e, "http.l1.rds.r1.update_success"); after != before {
			t.Errorf("Envoy loaded the route configuration itself %d more times", after-before)
		}
		moved := p.state.withoutResource(t, VirtualHostType, "r1/a.test").withVirtualHosts(t, newVirtualHost("r1", "a.test", "new"))
		moved[VirtualHostType]["r1/z"] = envoyState{}.withVirtualHosts(t, &routev3.VirtualHost{Name: "r1/z", Domains: []string{"a.test"}, Routes: newVirtualHost("r1", "x", "moved").Routes})[VirtualHostType]["r1/z"]
		delete(moved[VirtualHostType], "r1/a.test")
		p.change(VirtualHostType, moved) // the domain moves to another virtual host
		expectBody(t, address, map[string]string{"a.test": "moved", "c.test": "c1"})
		p.awaitSync()
	})
}

func TestEnvoyRetainsVirtualHostsAcrossReconnect(t *testing.T) {
	forEachVHDSEnvoy(t, twoHosts(t), func(t *testing.T, p *envoyServer, e *envoytest.Envoy, address string) {
		expectBody(t, address, map[string]string{"a.test": "a1", "b.test": "b1"})
		testenv.Eventually(t, "the server sends the route configuration again after its virtual hosts", func() error {
			if n := stat(t, e, "http.l1.rds.r1.update_success"); n < 2 {
				return fmt.Errorf("the route configuration was sent %d times", n)
			}
			return nil
		})
		p.awaitSync()
		p.stop()
		expectBody(t, address, map[string]string{"a.test": "a1", "b.test": "b1"})
		before := stat(t, e, "http.l1.rds.vhds.r1.update_success")
		again := startEnvoyServer(t, p.addr, p.state)
		again.state = p.state
		again.awaitSync()
		expectBody(t, address, map[string]string{"a.test": "a1", "b.test": "b1"})
		if after := stat(t, e, "http.l1.rds.vhds.r1.update_success"); after != before || before == 0 {
			t.Errorf("the server sent virtual hosts again that Envoy already has, in %d responses", after-before)
		}
		again.stop()
		changed := p.state.withVirtualHosts(t, newVirtualHost("r1", "a.test", "a2"), newVirtualHost("r1", "c.test", "c1")).withoutResource(t, VirtualHostType, "r1/b.test")
		third := startEnvoyServer(t, p.addr, changed)
		expectBody(t, address, map[string]string{"a.test": "a2", "b.test": "404", "c.test": "c1"})
		third.awaitSync()
	})
}

// awaitUnsubscribed waits until an Envoy has unsubscribed from all route configurations, and the server has no virtual
// hosts of it.
func (p *envoyServer) awaitUnsubscribed() {
	p.t.Helper()
	testenv.Eventually(p.t, "Envoy unsubscribes from the route configuration", func() error {
		for _, ts := range p.Clients()[0].Types {
			if ts.TypeURL == RouteType && len(ts.Names) > 0 {
				return fmt.Errorf("Envoy still subscribes to %v", ts.Names)
			}
			if ts.TypeURL == VirtualHostType && ts.Resources > 0 {
				return fmt.Errorf("the server counts %d virtual hosts of Envoy", ts.Resources)
			}
		}
		return nil
	})
}

func TestRestoredListenerHasItsVirtualHosts(t *testing.T) {
	forEachVHDSEnvoy(t, twoHosts(t), func(t *testing.T, p *envoyServer, e *envoytest.Envoy, address string) {
		expectBody(t, address, map[string]string{"a.test": "a1"})
		p.awaitSync()
		whole := p.state
		p.change(ListenerType, p.state.withoutResource(t, ListenerType, "l1"))
		expectBody(t, address, map[string]string{"a.test": "no answer"})
		p.awaitUnsubscribed()
		p.change(ListenerType, whole)
		expectBody(t, address, map[string]string{"a.test": "a1", "b.test": "b1"})
		p.change(VirtualHostType+" r1/a.test", whole.withVirtualHosts(t, newVirtualHost("r1", "a.test", "a2")))
		expectBody(t, address, map[string]string{"a.test": "a2", "b.test": "b1"})
		p.awaitSync()
	})
}

func TestListenerWithoutVirtualHostsIsReadyImmediately(t *testing.T) {
	empty := func(string) envoyState { return envoyState{}.withResource(t, vhdsRoutes("r1"), "r1") }
	forEachVHDSEnvoy(t, empty, func(t *testing.T, p *envoyServer, e *envoytest.Envoy, address string) {
		expectBody(t, address, map[string]string{"a.test": "404"})
		if late, err := e.Get("/stats?usedonly&filter=init_fetch_timeout"); err != nil || late != "" {
			t.Errorf("the request waited until the timeout: %s, %v", late, err)
		}
		p.change(VirtualHostType, p.state.withVirtualHosts(t, newVirtualHost("r1", "a.test", "a1")))
		expectBody(t, address, map[string]string{"a.test": "a1"})
		p.awaitSync()
	})
}

// TestBadVirtualHostDoesNotBlockOtherOnes: if one virtual host of a response is invalid, Envoy rejects all virtual
// hosts in it, including known ones.
func TestBadVirtualHostDoesNotBlockOtherOnes(t *testing.T) {
	many := func(string) envoyState {
		r := envoyState{}.withResource(t, vhdsRoutes("r1"), "r1")
		for i := range 40 {
			r = r.withVirtualHosts(t, newVirtualHost("r1", fmt.Sprintf("h%d.test", i), fmt.Sprint("v", i)))
		}
		bad := newVirtualHost("r1", "bad.test", "never")
		bad.Routes[0].Match.PathSpecifier = &routev3.RouteMatch_SafeRegex{}
		return r.withVirtualHosts(t, bad)
	}
	forEachVHDSEnvoy(t, many, func(t *testing.T, p *envoyServer, e *envoytest.Envoy, address string) {
		want := map[string]string{"bad.test": "404"}
		for i := range 40 {
			want[fmt.Sprintf("h%d.test", i)] = fmt.Sprint("v", i)
		}
		expectBody(t, address, want)
		testenv.Eventually(t, "the status reports the invalid virtual host", func() error {
			for _, ts := range p.Clients()[0].Types {
				if ts.TypeURL == VirtualHostType && ts.Rejected != nil && strings.Join(ts.Rejected.Resources, " ") == "r1/bad.test" {
					return nil
				}
			}
			return fmt.Errorf("%+v", p.Clients()[0].Types)
		})
		p.change(VirtualHostType+" r1/bad.test", p.state.withVirtualHosts(t, newVirtualHost("r1", "bad.test", "good")))
		want["bad.test"] = "good"
		expectBody(t, address, want)
		p.awaitSync()
	})
}
