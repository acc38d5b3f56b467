package controlplane_test

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/controlplane"
	"github.com/pilotfish-mesh/pilotfish/internal/envoytest"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

const dbDocuments = `
apiVersion: v1
kind: Service
metadata: {name: db}
spec:
  selector: {app: db}
  ports: [{name: tcp, port: 5432}]
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: db}
spec: {address: NET.20, labels: {app: db}}
---
apiVersion: v1
kind: Service
metadata: {name: late}
spec:
  selector: {app: ratings}
  ports: [{name: http, port: 9080}]
`

// openScoped is a bookshop whose caller holds what it uses, and has a database on 127.x.y.2:5432.
func openScoped(t *testing.T, network string) *bookshop {
	t.Helper()
	return openScopedWith(t, network, testenv.EnvoyVersion, 0)
}

func openScopedWith(t *testing.T, network, envoyVersion string, timeout time.Duration) *bookshop {
	t.Helper()
	b := &bookshop{t: t, network: network, dir: t.TempDir()}
	workloads := []string{}
	for i, w := range []string{"reviews-v1", "reviews-v2", "ratings-v1"} {
		workloads = append(workloads, b.workload(w, fmt.Sprintf("%s.%d", network, 10+i)))
	}
	write(t, filepath.Join(b.dir, "services.yaml"), serviceDocuments)
	write(t, filepath.Join(b.dir, "workloads.yaml"), strings.Join(workloads, "---"))
	db, _, _ := strings.Cut(dbDocuments, "---\napiVersion: v1\n")
	write(t, filepath.Join(b.dir, "db.yaml"), strings.ReplaceAll(db, "NET", network))
	greet(t, network+".20:5432")
	b.route("v1")
	b.cfg = controlplane.Config{ConfigDirs: []string{b.dir}, StateDir: filepath.Join(t.TempDir(), "state"), Address: network + ".1", AutomaticScope: true}
	b.cfg.OnDemandTimeout, b.envoyVersion = timeout, envoyVersion
	b.plane = start(t, b.cfg)
	b.startEnvoy()
	return b
}

func (b *bookshop) startEnvoy() {
	b.t.Helper()
	at := b.plane.PlainAddr()
	with := strings.Replace(bootstrap, "INTERCEPTION_MODE: NONE", fmt.Sprintf(`INTERCEPTION_MODE: NONE, UPSTREAM_LISTENERS: "db.default.svc.cluster.local:5432=%s.2:5432"`, b.network), 1)
	b.envoy = envoytest.Start(b.t, testenv.EnvoyOf(b.t, b.envoyVersion), b.t.TempDir(), fmt.Sprintf(with, b.network+".2", b.network+".3", at.Addr(), at.Port()))
	testenv.Eventually(b.t, "Envoy listens", func() error {
		listeners, err := b.envoy.Get("/listeners")
		if err == nil && !strings.Contains(listeners, ":5432") {
			err = errors.New(listeners)
		}
		if err != nil {
			return err
		}
		// A connection to the other one would ask for its cluster.
		conn, err := net.Dial("tcp", b.network+".2:15080")
		if err == nil {
			_ = conn.Close()
		}
		return err
	})
}

// greet is a server that speaks first.
func greet(t *testing.T, address string) {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte("hello\n"))
			_ = c.Close()
		}
	}()
}

// holds says which of the services' clusters the Envoy has.
func (b *bookshop) holds() string {
	b.t.Helper()
	text, err := b.envoy.Get("/clusters")
	if err != nil {
		b.t.Fatal(err)
	}
	var names []string
	for line := range strings.Lines(text) {
		if name, _, _ := strings.Cut(line, "::"); strings.HasPrefix(name, "outbound|") && strings.Contains(line, "::added_via_api::") {
			names = append(names, strings.TrimSuffix(strings.TrimPrefix(name, "outbound|"), ".default.svc.cluster.local"))
		}
	}
	return strings.Join(names, " ")
}

// at once: the very first request is answered.
func (b *bookshop) atOnce(host, want string) {
	b.t.Helper()
	if got, err := b.call(host); err != nil || got != want {
		b.t.Errorf("a request for %s is answered by %q, %v", host, got, err)
	}
}

func TestSidecarHoldsWhatItsWorkloadUses(t *testing.T) {
	b := openScoped(t, "127.172.100")
	if got := b.holds(); got != "" {
		t.Fatalf("before any request it holds %s", got)
	}
	b.atOnce("reviews", "reviews-v1")
	if got := b.holds(); got != "9080|v1|reviews" {
		t.Errorf("after one request it holds %s", got)
	}
	var all sync.WaitGroup
	for range 20 { // all at the same time are for a cluster that is not there yet
		all.Go(func() { b.atOnce("ratings", "ratings-v1") })
	}
	all.Wait()

	conn, err := net.Dial("tcp", b.network+".2:5432")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if line, err := bufio.NewReader(conn).ReadString('\n'); line != "hello\n" {
		t.Errorf("the first connection to the database gets %q, %v", line, err)
	}

	// What an edit leads to is there when the edit is.
	b.route("v2")
	testenv.Eventually(t, "the edit is in force, and no request fails", func() error {
		got, err := b.call("reviews")
		if err != nil {
			t.Fatal(err)
		}
		if got != "reviews-v2" {
			return errors.New(got)
		}
		return nil
	})

	// A service that comes later is there for the first request for it.
	write(t, filepath.Join(b.dir, "db.yaml"), strings.ReplaceAll(dbDocuments, "NET", b.network))
	b.answers("late", "ratings-v1")
}

func TestWhatASidecarHoldsOutlivesTheControlPlaneAndItself(t *testing.T) {
	b := openScoped(t, "127.172.101")
	b.atOnce("reviews", "reviews-v1")
	b.atOnce("ratings", "ratings-v1")
	held := b.holds()

	b.plane.stop()
	b.atOnce("reviews", "reviews-v1")
	b.plane = start(t, b.cfg)
	testenv.Eventually(t, "it is connected again", func() error {
		if n := len(b.plane.Status().Clients); n != 1 {
			return fmt.Errorf("%d clients", n)
		}
		return nil
	})
	b.route("v2") // asked of the new control plane
	b.answers("reviews", "reviews-v2")
	b.atOnce("ratings", "ratings-v1")
	if got := b.holds(); !strings.Contains(got, "v1|reviews") || !strings.Contains(got, "|ratings") {
		t.Errorf("after the restart it holds %s, and before %s", got, held)
	}
	// Endpoints of what it came back with are followed.
	write(t, filepath.Join(b.dir, "workloads.yaml"), b.workload("ratings-v9", b.network+".30")+"---"+b.workload("reviews-v9", b.network+".31"))
	b.answers("ratings", "ratings-v9")

	if err := b.envoy.Stop(); err != nil {
		t.Fatal(err)
	}
	b.startEnvoy()
	if got := b.holds(); !strings.Contains(got, "v2|reviews") || !strings.Contains(got, "|ratings") {
		t.Errorf("a new Envoy of the workload starts with %s", got)
	}
}

func TestServiceThatGoesAndComesBackIsFoundAgain(t *testing.T) {
	b := openScoped(t, "127.172.102")
	b.atOnce("ratings", "ratings-v1")
	write(t, filepath.Join(b.dir, "services.yaml"), strings.Replace(serviceDocuments, "metadata: {name: ratings}", "metadata: {name: grades}", 1))
	b.answers("grades", "ratings-v1")
	write(t, filepath.Join(b.dir, "services.yaml"), serviceDocuments)
	b.answers("ratings", "ratings-v1")
	b.atOnce("ratings", "ratings-v1")
}
