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

// partsVersions are the Envoys that take virtual hosts over the stream that everything comes over.
var partsVersions = []string{testenv.EnvoyVersion, testenv.MidEnvoyVersion}

func apartRoutes(name string) *routev3.RouteConfiguration {
	return &routev3.RouteConfiguration{Name: name, Vhds: &routev3.Vhds{ConfigSource: ads()}}
}

// host is a virtual host of a route configuration that answers by itself.
func host(routes, domain, answer string) *routev3.VirtualHost {
	h := route("", "").VirtualHosts[0]
	h.Name, h.Domains = routes+"/"+domain, []string{domain}
	h.Routes[0].Action = &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{Status: 200, Body: &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: answer}}}}
	return h
}

func (r resources) hosts(t testing.TB, hosts ...*routev3.VirtualHost) resources {
	t.Helper()
	for _, h := range hosts {
		r = r.with(t, h, h.GetName())
	}
	return r
}

// get sends a request for a host to a listener, and gives the answer or the status.
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

func answers(t testing.TB, address string, want map[string]string) {
	t.Helper()
	testenv.Eventually(t, "the virtual hosts are as they should be", func() error {
		for hostname, text := range want {
			if got := get(address, hostname); got != text {
				return fmt.Errorf("%s gives %q, want %q", hostname, got, text)
			}
		}
		return nil
	})
}

func eachPartsEnvoy(t *testing.T, first func(listen string) resources, test func(t *testing.T, p *plane, e *envoytest.Envoy, address string)) {
	for _, version := range partsVersions {
		t.Run(version, func(t *testing.T) { partsEnvoy(t, version, first, test) })
	}
}

func partsEnvoy(t *testing.T, version string, first func(listen string) resources, test func(t *testing.T, p *plane, e *envoytest.Envoy, address string)) {
	hostname, port := freeAddress()
	world := first("").with(t, listener(t, "l1", hostname, port, "r1"), "l1")
	p := startPlane(t, "127.0.0.1:0", world)
	p.world = world
	e := p.envoy(version, "DELTA_GRPC", "--drain-time-s", "1")
	test(t, p, e, fmt.Sprintf("%s:%d", hostname, port))
}

func twoHosts(t testing.TB) func(string) resources {
	return func(string) resources {
		return resources{}.with(t, apartRoutes("r1"), "r1").hosts(t, host("r1", "a.test", "a1"), host("r1", "b.test", "b1"))
	}
}

func TestEnvoyFollowsVirtualHostsThatChangeByThemselves(t *testing.T) {
	eachPartsEnvoy(t, twoHosts(t), func(t *testing.T, p *plane, e *envoytest.Envoy, address string) {
		answers(t, address, map[string]string{"a.test": "a1", "b.test": "b1", "c.test": "404"})
		p.inSync()
		before := stat(t, e, "http.l1.rds.r1.update_success")
		p.change(VirtualHostType+" r1/a.test", p.world.hosts(t, host("r1", "a.test", "a2")))
		answers(t, address, map[string]string{"a.test": "a2", "b.test": "b1"})
		p.change(VirtualHostType+" r1/c.test", p.world.hosts(t, host("r1", "c.test", "c1")))
		answers(t, address, map[string]string{"a.test": "a2", "b.test": "b1", "c.test": "c1"})
		p.change(VirtualHostType+" r1/b.test", p.world.without(t, VirtualHostType, "r1/b.test"))
		answers(t, address, map[string]string{"a.test": "a2", "b.test": "404", "c.test": "c1"})
		p.inSync()
		if after := stat(t, e, "http.l1.rds.r1.update_success"); after != before {
			t.Errorf("the route configuration itself was loaded %d times more", after-before)
		}
		moved := p.world.without(t, VirtualHostType, "r1/a.test").hosts(t, host("r1", "a.test", "new"))
		moved[VirtualHostType]["r1/z"] = resources{}.hosts(t, &routev3.VirtualHost{Name: "r1/z", Domains: []string{"a.test"}, Routes: host("r1", "x", "moved").Routes})[VirtualHostType]["r1/z"]
		delete(moved[VirtualHostType], "r1/a.test")
		p.change(VirtualHostType, moved) // the domain goes from one virtual host to another
		answers(t, address, map[string]string{"a.test": "moved", "c.test": "c1"})
		p.inSync()
	})
}

func TestEnvoyKeepsItsVirtualHostsOverAReconnect(t *testing.T) {
	eachPartsEnvoy(t, twoHosts(t), func(t *testing.T, p *plane, e *envoytest.Envoy, address string) {
		answers(t, address, map[string]string{"a.test": "a1", "b.test": "b1"})
		testenv.Eventually(t, "the route configuration is there once more, behind its virtual hosts", func() error {
			if n := stat(t, e, "http.l1.rds.r1.update_success"); n < 2 {
				return fmt.Errorf("it came %d times", n)
			}
			return nil
		})
		p.inSync()
		p.stop()
		answers(t, address, map[string]string{"a.test": "a1", "b.test": "b1"})
		before := stat(t, e, "http.l1.rds.vhds.r1.update_success")
		again := startPlane(t, p.addr, p.world)
		again.world = p.world
		again.inSync()
		answers(t, address, map[string]string{"a.test": "a1", "b.test": "b1"})
		if after := stat(t, e, "http.l1.rds.vhds.r1.update_success"); after != before || before == 0 {
			t.Errorf("virtual hosts that Envoy has were sent again, in %d responses", after-before)
		}
		again.stop()
		changed := p.world.hosts(t, host("r1", "a.test", "a2"), host("r1", "c.test", "c1")).without(t, VirtualHostType, "r1/b.test")
		third := startPlane(t, p.addr, changed)
		answers(t, address, map[string]string{"a.test": "a2", "b.test": "404", "c.test": "c1"})
		third.inSync()
	})
}

// unasked waits until one Envoy no longer asks for any route configuration, and is not thought to have any virtual hosts.
func (p *plane) unasked() {
	p.t.Helper()
	testenv.Eventually(p.t, "Envoy no longer asks for the route configuration", func() error {
		for _, ts := range p.Clients()[0].Types {
			if ts.TypeURL == RouteType && len(ts.Names) > 0 {
				return fmt.Errorf("it asks for %v", ts.Names)
			}
			if ts.TypeURL == VirtualHostType && ts.Resources > 0 {
				return fmt.Errorf("it counts %d virtual hosts", ts.Resources)
			}
		}
		return nil
	})
}

func TestEnvoyHasItsVirtualHostsWhenAListenerComesBack(t *testing.T) {
	eachPartsEnvoy(t, twoHosts(t), func(t *testing.T, p *plane, e *envoytest.Envoy, address string) {
		answers(t, address, map[string]string{"a.test": "a1"})
		p.inSync()
		whole := p.world
		p.change(ListenerType, p.world.without(t, ListenerType, "l1"))
		answers(t, address, map[string]string{"a.test": "no answer"})
		p.unasked()
		p.change(ListenerType, whole)
		answers(t, address, map[string]string{"a.test": "a1", "b.test": "b1"})
		p.change(VirtualHostType+" r1/a.test", whole.hosts(t, host("r1", "a.test", "a2")))
		answers(t, address, map[string]string{"a.test": "a2", "b.test": "b1"})
		p.inSync()
	})
}

func TestListenerWithoutVirtualHostsIsReadyAtOnce(t *testing.T) {
	empty := func(string) resources { return resources{}.with(t, apartRoutes("r1"), "r1") }
	eachPartsEnvoy(t, empty, func(t *testing.T, p *plane, e *envoytest.Envoy, address string) {
		answers(t, address, map[string]string{"a.test": "404"})
		if late, err := e.Get("/stats?usedonly&filter=init_fetch_timeout"); err != nil || late != "" {
			t.Errorf("it waited as long as for something that never came: %s, %v", late, err)
		}
		p.change(VirtualHostType, p.world.hosts(t, host("r1", "a.test", "a1")))
		answers(t, address, map[string]string{"a.test": "a1"})
		p.inSync()
	})
}

// TestOneBadVirtualHostCostsNoOther: Envoy refuses all that come with a bad one, on its first sight of them and later.
func TestOneBadVirtualHostCostsNoOther(t *testing.T) {
	many := func(string) resources {
		r := resources{}.with(t, apartRoutes("r1"), "r1")
		for i := range 40 {
			r = r.hosts(t, host("r1", fmt.Sprintf("h%d.test", i), fmt.Sprint("v", i)))
		}
		bad := host("r1", "bad.test", "never")
		bad.Routes[0].Match.PathSpecifier = &routev3.RouteMatch_SafeRegex{}
		return r.hosts(t, bad)
	}
	eachPartsEnvoy(t, many, func(t *testing.T, p *plane, e *envoytest.Envoy, address string) {
		want := map[string]string{"bad.test": "404"}
		for i := range 40 {
			want[fmt.Sprintf("h%d.test", i)] = fmt.Sprint("v", i)
		}
		answers(t, address, want)
		testenv.Eventually(t, "the bad one is told", func() error {
			for _, ts := range p.Clients()[0].Types {
				if ts.TypeURL == VirtualHostType && ts.Rejected != nil && strings.Join(ts.Rejected.Resources, " ") == "r1/bad.test" {
					return nil
				}
			}
			return fmt.Errorf("%+v", p.Clients()[0].Types)
		})
		p.change(VirtualHostType+" r1/bad.test", p.world.hosts(t, host("r1", "bad.test", "good")))
		want["bad.test"] = "good"
		answers(t, address, want)
		p.inSync()
	})
}
