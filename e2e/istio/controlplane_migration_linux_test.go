package istio

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// TestEnvoyMigratesToIstiodAndBack: Envoy is not restarted, and has the configuration of the current control plane.
// istiod sends complete route configurations; while Envoy is connected to it, a listener is removed. Afterwards Envoy
// 1.37 to 1.39 receives complete route configurations from our control plane too. Before the migration it does not,
// even after our control plane restarts.
func TestEnvoyMigratesToIstiodAndBack(t *testing.T) {
	t.Parallel()
	for _, version := range testenv.EnvoyVersions() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			m := newMovable(t, version)
			m.checkAnswers(t, map[string]int{"/ours": 418, "/istiod": 200}, 418)
			envoy := m.web.envoy(t)
			there := func(elsewhere bool) {
				t.Helper()
				m.moveTo(t, elsewhere)
				if elsewhere {
					m.checkAnswers(t, map[string]int{"/ours": 200, "/istiod": 451}, 200)
				} else {
					m.checkAnswers(t, map[string]int{"/ours": 418, "/istiod": 200}, 418)
				}
				m.web.accepted(t)
				if now := m.web.envoy(t); now != envoy {
					t.Fatalf("Envoy was process %s, and is process %s", envoy, now)
				}
			}
			kept := func(want bool) {
				t.Helper()
				if got := strings.Contains(m.ours.output.String(), "may have had route configurations with inline virtual hosts"); got != want {
					t.Errorf("it is kept to whole route configurations: %v, want %v", got, want)
				}
			}
			there(false)
			kept(false)
			there(true)
			m.istiod.write(t, "policies/all.yaml", directResponseDoc("/istiod", 451))
			m.waitRouteRemoved(t)
			there(false)
			kept(version == testenv.MidEnvoyVersion)
			there(true)
		})
	}
}

// singleService is the address of a service of a port that no other has.
const singleService = "10.96.0.20:9090"

// waitRouteRemoved waits until the pod's Envoy has no listener for that service any more, nor its route configuration.
func (m *movable) waitRouteRemoved(t *testing.T) {
	t.Helper()
	testenv.Eventually(t, "Envoy lets go of the route configuration", func() error {
		dump, err := m.web.get("http://127.0.0.1:15000/config_dump?resource=dynamic_route_configs")
		if err == nil && strings.Contains(string(dump), `"9090"`) {
			err = errors.New("it is there")
		}
		return err
	})
}

// movable is a pod that is at one of two control planes, of one authority.
type movable struct {
	ours   *plane
	istiod *istiod
	web    *pod
	kube   *kube
}

func newMovable(t *testing.T, version string) *movable {
	n := newNode(t, "10.157.0.1")
	reviews := &pod{name: "reviews", address: netip.MustParseAddr(reviewsAddress)}
	reviews.namespace = n.sandbox(t, reviews.address)
	reviews.application(t, "reviews")

	m := &movable{ours: newPlane(t, n), istiod: &istiod{}, kube: cluster()}
	m.ours.put(t, "moved", directResponseDoc("/ours", 418)+workloadEntries+singleServiceDocs+`---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: only, namespace: books}
spec: {hosts: [only.example], http: [{directResponse: {status: 418}}]}
`)
	m.web = newPodAt(t, m.ours, "web", webAddress).startAs(t, testenv.Bin(t, "pilotfish-agent"), testenv.EnvoyOf(t, version),
		"ISTIO_META_AUTO_REGISTER_GROUP=", `PROXY_CONFIG={"drainDuration":"1s"}`) // istiod knows of no groups here, and would end at a report of health
	m.web.application(t, "web")
	m.web.waitReady(t, n)
	token, err := os.ReadFile(filepath.Join(m.web.dir, tokenPath))
	if err != nil {
		t.Fatal(err)
	}
	m.kube.tokens[string(token)] = "books:web"
	for _, p := range m.kube.lists["pods"] { // of which one has no sidecar
		delete(p["metadata"].(object)["labels"].(object), "security.istio.io/tlsMode")
	}
	return m
}

// moveTo ends the control plane that there is, and starts one at its address.
func (m *movable) moveTo(t *testing.T, elsewhere bool) {
	t.Helper()
	for _, at := range []struct {
		cmd   *exec.Cmd
		ended <-chan struct{}
	}{{m.ours.cmd, m.ours.ended}, {m.istiod.cmd, m.istiod.ended}} {
		if at.cmd != nil {
			_ = at.cmd.Process.Kill()
			<-at.ended
		}
	}
	if !elsewhere {
		m.ours.start(t)
		return
	}
	policies := directResponseDoc("/istiod", 451) + singleServiceDocs
	if m.istiod.cmd == nil {
		m.istiod = newIstiod(t, m.ours.node, m.kube, policies, "ROOT_CA_DIR="+m.ours.writeIstiodCA(t))
		return
	}
	m.istiod.write(t, "policies/all.yaml", policies)
	m.istiod.start(t)
}

// writeIstiodCA writes the authority as istiod reads one.
func (p *plane) writeIstiodCA(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, from := range map[string]string{"ca-cert.pem": "root-cert.pem", "cert-chain.pem": "root-cert.pem", "root-cert.pem": "root-cert.pem", "ca-key.pem": "root-key.pem"} {
		data, err := os.ReadFile(filepath.Join(p.path("state"), "authority", from))
		if err = errors.Join(err, os.WriteFile(filepath.Join(dir, name), data, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// checkAnswers waits until the pod's application gets a status for each path of the one service, and one from the other.
func (m *movable) checkAnswers(t *testing.T, paths map[string]int, other int) {
	t.Helper()
	answers := func(url, host string, want int) {
		testenv.Eventually(t, fmt.Sprintf("%s answers %d", url, want), func() error {
			code, body, err := m.web.request(url, "Host", host)
			if err == nil && code != want {
				err = fmt.Errorf("%d %s", code, body)
			}
			return err
		})
	}
	for path, want := range paths {
		answers("http://"+reviewsService+":9080"+path, "reviews:9080", want)
	}
	answers("http://"+singleService, "only.example", other)
}

// directResponseDoc is a rule by which a path of the service is answered with a status.
func directResponseDoc(path string, status int) string {
	return fmt.Sprintf(`
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: reviews, namespace: books}
spec:
  hosts: [reviews.books.svc.cluster.local]
  http:
  - {match: [{uri: {exact: %s}}], directResponse: {status: %d}}
  - route: [{destination: {host: reviews.books.svc.cluster.local}}]
`, path, status)
}

// singleServiceDocs is that service, of which the pod without a sidecar is the endpoint.
const singleServiceDocs = `---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: only, namespace: books}
spec:
  hosts: [only.example]
  addresses: [10.96.0.20]
  resolution: STATIC
  ports: [{number: 9090, name: http, protocol: HTTP, targetPort: 9080}]
  endpoints: [{address: ` + reviewsAddress + `}]
`

const workloadEntries = `---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: reviews, namespace: books}
spec: {address: ` + reviewsAddress + `, labels: {app: reviews}}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: web, namespace: books}
spec: {address: ` + webAddress + `, labels: {app: web}, serviceAccount: web}
`
