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

// TestEnvoyGoesToIstiodAndComesBack: it goes on running, and has what the control plane says that it is at. While it is at
// istiod, which sends route configurations whole, a listener goes. From then on one of 1.37 to 1.39 gets them whole from us too,
// and not before: not when our own control plane starts anew.
func TestEnvoyGoesToIstiodAndComesBack(t *testing.T) {
	t.Parallel()
	for _, version := range testenv.EnvoyVersions() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			m := newMovable(t, version)
			m.answers(t, map[string]int{"/ours": 418, "/istiod": 200}, 418)
			envoy := m.web.envoy(t)
			there := func(elsewhere bool) {
				t.Helper()
				m.moveTo(t, elsewhere)
				if elsewhere {
					m.answers(t, map[string]int{"/ours": 200, "/istiod": 451}, 200)
				} else {
					m.answers(t, map[string]int{"/ours": 418, "/istiod": 200}, 418)
				}
				m.web.accepted(t)
				if now := m.web.envoy(t); now != envoy {
					t.Fatalf("Envoy was process %s, and is process %s", envoy, now)
				}
			}
			kept := func(want bool) {
				t.Helper()
				if got := strings.Contains(m.ours.output.String(), "may have had route configurations whole"); got != want {
					t.Errorf("it is kept to whole route configurations: %v, want %v", got, want)
				}
			}
			there(false)
			kept(false)
			there(true)
			m.istiod.write(t, "policies/all.yaml", refusing("/istiod", 451))
			m.letsGo(t)
			there(false)
			kept(version == testenv.MidEnvoyVersion)
			there(true)
		})
	}
}

// only is the address of a service of a port that no other has.
const only = "10.96.0.20:9090"

// letsGo waits until the pod's Envoy has no listener for that service any more, nor its route configuration.
func (m *movable) letsGo(t *testing.T) {
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
	known  *kube
}

func newMovable(t *testing.T, version string) *movable {
	n := newNode(t, "10.157.0.1")
	reviews := &pod{name: "reviews", address: netip.MustParseAddr(reviewsAddress)}
	reviews.namespace = n.sandbox(t, reviews.address)
	reviews.application(t, "reviews")

	m := &movable{ours: newPlane(t, n), istiod: &istiod{}, known: cluster()}
	m.ours.put(t, "moved", refusing("/ours", 418)+workloadEntries+onlyThere+`---
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
	m.known.tokens[string(token)] = "books:web"
	for _, p := range m.known.lists["pods"] { // of which one has no sidecar
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
	policies := refusing("/istiod", 451) + onlyThere
	if m.istiod.cmd == nil {
		m.istiod = newIstiod(t, m.ours.node, m.known, policies, "ROOT_CA_DIR="+m.ours.forIstiod(t))
		return
	}
	m.istiod.write(t, "policies/all.yaml", policies)
	m.istiod.start(t)
}

// forIstiod writes the authority as istiod reads one.
func (p *plane) forIstiod(t *testing.T) (dir string) {
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

// answers waits until the pod's application gets a status for each path of the one service, and one from the other.
func (m *movable) answers(t *testing.T, paths map[string]int, other int) {
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
	answers("http://"+only, "only.example", other)
}

// refusing is a rule by which a path of the service is answered with a status.
func refusing(path string, status int) string {
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

// onlyThere is that service, of which the pod without a sidecar is the endpoint.
const onlyThere = `---
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
