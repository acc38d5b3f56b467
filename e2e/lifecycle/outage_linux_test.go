package lifecycle

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// outage is how long a control plane stays as bad as it is, at the least: long enough for an agent to notice by its
// keepalive, which the pods of these tests send often.
const outage = 4 * time.Second

// mesh is a shop and a caller far away from their control planes.
type mesh struct {
	*remotePlanes
	t          testing.TB
	planes     []*planeProcess
	client     *pod
	generation int
	env        map[string]string // of the agents, in addition to their common ones
}

// newMesh starts the shop and a client. The client's control planes are at the specified addresses.
func newMesh(t testing.TB, far *remotePlanes, discovery ...string) *mesh {
	t.Helper()
	return newMeshWith(t, far, nil, discovery...)
}

// newMeshWith does the same with further settings of the agents.
func newMeshWith(t testing.TB, far *remotePlanes, env map[string]string, discovery ...string) *mesh {
	t.Helper()
	m := &mesh{remotePlanes: far, t: t, env: env}
	for _, at := range m.inside {
		m.planes = append(m.planes, m.start(at))
	}
	// Of the two protocols the shop speaks the older one, and the caller the other.
	shop := m.newPod("shop", m.SecureAddr().String()).set(map[string]string{"ISTIO_DELTA_XDS": "false"})
	startApplication(t, shop)
	m.pods = append(m.pods, shop)
	m.publish(0)
	m.client = m.newPod("client", discovery...)
	m.client.set(map[string]string{"ISTIO_META_UPSTREAM_LISTENERS": "shop.default.svc.cluster.local:8083=" + m.client.upstream()})
	for _, p := range []*pod{shop, m.client} {
		p.start(t).waitReady(t)
	}
	m.waitFor(0)
	return m
}

func (m *mesh) newPod(app string, discovery ...string) *pod {
	m.t.Helper()
	p := newPod(m.t, m, app)
	config, err := json.Marshal(map[string]any{"discoveryAddress": strings.Join(discovery, ","), "concurrency": 1})
	if err != nil {
		m.t.Fatal(err)
	}
	return p.set(map[string]string{
		"PROXY_CONFIG": string(config), "CA_ADDR": m.SecureAddr().String(),
		"GRPC_KEEPALIVE_INTERVAL": "1s", "GRPC_KEEPALIVE_TIMEOUT": "1s",
	}).set(m.env)
}

// readGeneration is the generation of the configuration that the client's answers bear.
func (m *mesh) readGeneration() (int, error) {
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true,
		Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: m.client.proxy + ":15080"})}}
	resp, err := client.Get("http://shop:8080/")
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return 0, errors.New(resp.Status)
	}
	return strconv.Atoi(resp.Header.Get("x-generation"))
}

func (m *mesh) waitFor(generation int) {
	m.t.Helper()
	testenv.Eventually(m.t, fmt.Sprintf("generation %d of the configuration is in force", generation), func() error {
		got, err := m.readGeneration()
		if err == nil && got != generation {
			err = fmt.Errorf("it is %d", got)
		}
		return err
	})
}

// edit publishes the next generation.
func (m *mesh) edit() {
	m.t.Helper()
	m.generation++
	m.publish(m.generation)
}

// runUnderLoad does something to the control planes while requests are made. None may be lost, and what was edited meanwhile has
// to be in force afterwards.
func (m *mesh) runUnderLoad(what string, disturb func()) {
	m.t.Helper()
	proxy := m.client.proxy + ":15080"
	calls := startCallers([]callers{
		{"HTTP/1.1 kept alive", 2, func() caller { return newSidecarHTTP(proxy, "shop:8080/?wait=5ms", false) }},
		{"HTTP/1.1 new connections", 1, func() caller { return newSidecarHTTP(proxy, "shop:8080/?wait=5ms", true) }},
		{"gRPC streams", 1, func() caller { return newGRPC(m.t, proxy, "shop:8082", true) }},
		{"TCP", 1, func() caller { return &tcpCaller{address: m.client.upstream()} }},
		{"TCP new connections", 1, func() caller { return newTCPCaller(m.client.upstream()) }}, // each with a handshake between the proxies
	})
	disturb()
	m.waitFor(m.generation)
	served, lost := calls.end()
	if n, text := total(lost); n > 0 {
		m.t.Errorf("%s: %d requests were lost:%s", what, n, text)
	}
	for kind, n := range served {
		if n == 0 {
			m.t.Errorf("%s: no request of %s was served: the load proves nothing", what, kind)
		}
	}
	m.t.Logf("%s: served %v", what, served)
}

// compareWithUndisturbedRun compares what Envoy has with what one has that begins now.
func (m *mesh) compareWithUndisturbedRun() {
	m.t.Helper()
	disturbed := m.configuration()
	m.client.signal(m.t, syscall.SIGTERM)
	m.client.wait(m.t, 30*time.Second)
	if err := os.RemoveAll(filepath.Join(m.client.dir, "etc/istio/proxy")); err != nil {
		m.t.Fatal(err)
	}
	m.client.ended = make(chan struct{})
	m.client.start(m.t).waitReady(m.t)
	m.waitFor(m.generation)
	testenv.Eventually(m.t, "the configuration is that of an undisturbed run", func() error {
		if diff := cmp.Diff(m.configuration(), disturbed); diff != "" {
			return errors.New(diff)
		}
		return nil
	})
	if len(disturbed) < 5 {
		m.t.Errorf("the configuration proves little: %v", disturbed)
	}
}

// configuration is every resource that Envoy has got from a control plane, by type and name.
func (m *mesh) configuration() map[string]string {
	m.t.Helper()
	out, err := m.client.command(m.t, "request", "GET", "config_dump?include_eds").Output()
	if err != nil {
		m.t.Fatal(err)
	}
	var dump struct {
		Configs []map[string]json.RawMessage `json:"configs"`
	}
	if err := json.Unmarshal(out, &dump); err != nil {
		m.t.Fatal(err)
	}
	all := map[string]string{}
	for _, config := range dump.Configs {
		for field, list := range config {
			if strings.HasPrefix(field, "dynamic_") {
				collect(m.t, field, list, all)
			}
		}
	}
	return all
}

// collect adds the resources of one kind to all, without their update times and versions.
func collect(t testing.TB, kind string, list json.RawMessage, all map[string]string) {
	t.Helper()
	var entries []map[string]any
	if err := json.Unmarshal(list, &entries); err != nil {
		t.Fatalf("%s: %v", kind, err)
	}
	for _, entry := range entries {
		if state, ok := entry["active_state"].(map[string]any); ok {
			entry = state
		}
		for _, part := range []string{"cluster", "listener", "route_config", "endpoint_config"} {
			resource, ok := entry[part].(map[string]any)
			if !ok {
				continue
			}
			text, err := json.Marshal(resource)
			if err != nil {
				t.Fatal(err)
			}
			name, _ := resource["name"].(string)
			if part == "endpoint_config" {
				name, _ = resource["cluster_name"].(string)
			}
			all[kind+" "+name] = string(text)
		}
	}
}

// TestControlPlanesThatFailLoseNoRequest: what the old configuration would have served is served, and the end is that of
// a run without trouble.
func TestControlPlanesThatFailLoseNoRequest(t *testing.T) {
	far := newRemotePlanes(t)
	m := newMesh(t, far, netip.AddrPortFrom(far.inside[0], securePort).String(), netip.AddrPortFrom(far.inside[1], securePort).String())
	alone := func(f func()) { // with the other control plane away, there is only the first
		m.planes[1].kill()
		f()
		m.planes[1] = m.start(m.inside[1])
	}
	m.runUnderLoad("killed", func() {
		alone(func() {
			m.planes[0].kill()
			m.edit()
			time.Sleep(outage)
			m.planes[0] = m.start(m.inside[0])
		})
	})
	m.runUnderLoad("frozen", func() {
		alone(func() {
			m.planes[0].signal(syscall.SIGSTOP)
			m.edit()
			time.Sleep(outage)
			m.planes[0].signal(syscall.SIGCONT)
		})
	})
	m.runUnderLoad("cut off", func() {
		restore := m.cut()
		m.edit()
		time.Sleep(outage)
		restore()
	})
	m.runUnderLoad("slow", func() {
		restore := m.slow(10_000)
		m.edit()
		m.waitFor(m.generation) // slowly
		time.Sleep(outage)
		restore()
	})
	m.runUnderLoad("swapped for another", func() {
		for _, at := range slices.Concat(m.inside, m.inside) {
			i := slices.Index(m.inside, at)
			m.planes[i].kill()
			m.edit()
			m.waitFor(m.generation) // from the other
			time.Sleep(time.Second)
			m.planes[i] = m.start(at)
		}
	})
	m.compareWithUndisturbedRun()
}
