package testcluster

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// Options configures a cluster.
type Options struct {
	// APIServerFlags are appended to the command line of the API server, such as "--feature-gates=ClusterTrustBundle=true".
	APIServerFlags []string
	// AuditPolicy is an audit policy in YAML. If it is empty, the API server logs no requests.
	AuditPolicy string
}

// Cluster is a running cluster. Its methods can be called concurrently.
type Cluster struct {
	// URL is the address of the API server, https://127.0.0.1:PORT.
	URL string
	// Kubeconfig is the path of a kubeconfig file for an administrator.
	Kubeconfig string
	// CAFile is the path of the root certificate of the API server.
	CAFile string

	*client     // an administrator's
	options     Options
	dir         string
	bin         string
	credentials *credentials
	cleaner     *cleaner
	releasePort func()

	mu         sync.Mutex
	components map[string]*process // running, by name
}

// The components of a cluster, in the order in which they start.
const (
	Etcd        = "etcd"
	APIServer   = "kube-apiserver"
	Controllers = "kube-controller-manager"
)

// readyTimeout limits the start of a component. It is generous because only failing tests wait this long.
const readyTimeout = 3 * time.Minute

// Start starts a cluster that stops when the test ends.
func Start(t testing.TB, options Options) *Cluster {
	t.Helper()
	c, err := start(programs(t), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(c.describeFailures())
		}
		c.stop()
	})
	return c
}

var shared struct {
	mu      sync.Mutex
	started bool
	cluster *Cluster
	err     error
}

// Shared returns the cluster that all tests of the process share. The first call starts it. It stops with the process,
// or in Tests.Run.
func Shared(t testing.TB) *Cluster {
	t.Helper()
	bin := programs(t)
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if !shared.started {
		shared.started = true
		shared.cluster, shared.err = start(bin, Options{})
	}
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	c := shared.cluster
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(c.describeFailures())
		}
	})
	return c
}

// Tests runs the tests of a package and then stops the shared cluster, so that no process or goroutine remains:
// func TestMain(m *testing.M) { goleak.VerifyTestMain(testcluster.Tests{M: m}) }
type Tests struct{ *testing.M }

// Run runs the tests and returns the exit code.
func (m Tests) Run() int {
	code := m.M.Run()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.cluster != nil {
		shared.cluster.stop()
		shared.cluster = nil
	}
	return code
}

// programs returns the folder of the components. If they are not built, it skips the test.
func programs(t testing.TB) string {
	t.Helper()
	out, err := exec.Command(filepath.Join(testenv.Root(), "scripts", "kubernetes.sh"), "--print").Output()
	if err != nil {
		t.Fatal(err)
	}
	dir := strings.TrimSpace(string(out))
	if _, err := os.Stat(filepath.Join(dir, "controlplane")); err != nil {
		t.Skip("Kubernetes is not built: run `make apiserver`")
	}
	return dir
}

func start(bin string, options Options) (c *Cluster, err error) {
	dir, err := os.MkdirTemp("", "pf-cluster") // short, because it contains a socket
	if err != nil {
		return nil, err
	}
	c = &Cluster{options: options, dir: dir, bin: bin, components: map[string]*process{}, releasePort: func() {}}
	defer func() {
		if err != nil {
			err = fmt.Errorf("starting Kubernetes for tests: %w\n%s", err, c.describeFailures())
			c.stop()
		}
	}()
	if c.cleaner, err = startCleaner(dir); err != nil {
		return nil, err
	}
	port, release, err := testenv.ReservePort()
	if err != nil {
		return nil, err
	}
	c.releasePort = release
	c.URL = fmt.Sprintf("https://127.0.0.1:%d", port)
	if c.credentials, err = writeCredentials(dir, c.URL); err != nil {
		return nil, err
	}
	c.CAFile, c.Kubeconfig = c.path("ca.crt"), c.path("admin.kubeconfig")
	if c.client, err = c.credentials.newClient(c.URL, c.credentials.admin); err != nil {
		return nil, err
	}
	return c, errors.Join(c.write("audit.yaml", c.options.AuditPolicy), c.startAll(port))
}

func (c *Cluster) startAll(port int) error {
	for _, name := range []string{Etcd, APIServer, Controllers} {
		if err := c.startComponent(name, port); err != nil {
			return err
		}
	}
	return nil
}

// stop kills all components and removes the files of the cluster.
func (c *Cluster) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, p := range c.components {
		p.kill()
		delete(c.components, name)
	}
	if c.client != nil {
		c.client.http.CloseIdleConnections()
	}
	c.releasePort()
	_ = os.RemoveAll(c.dir)
	if c.cleaner != nil {
		c.cleaner.stop()
	}
}

func (c *Cluster) path(name string) string { return filepath.Join(c.dir, name) }

func (c *Cluster) write(name, text string) error {
	return os.WriteFile(c.path(name), []byte(text), 0o600)
}

// describeFailures returns the end of the log of each component that ended by itself.
func (c *Cluster) describeFailures() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var text strings.Builder
	for name, p := range c.components {
		if p.hasEnded() {
			fmt.Fprintf(&text, "%s ended (%v):\n%s\n", name, p.err, p.readLogEnd())
		}
	}
	return text.String()
}

// isHTTPStatus reports whether err is a response with one of the HTTP statuses.
func isHTTPStatus(err error, codes ...int) bool {
	var status *StatusError
	if !errors.As(err, &status) {
		return false
	}
	for _, code := range codes {
		if status.Code == code {
			return true
		}
	}
	return false
}

// IsNotFound reports whether err is a response with the status 404.
func IsNotFound(err error) bool { return isHTTPStatus(err, http.StatusNotFound) }
