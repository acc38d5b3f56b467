package peers

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/envoytest"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/xdsproxy"
)

const plane = "github.com/envoyproxy/go-control-plane"

// buildTool builds a program of a module in go.mod without changes.
func buildTool(t testing.TB, pkg string) string {
	t.Helper()
	path, err := exec.Command("go", "tool", "-n", pkg).CombinedOutput() // prints where the built program is
	if err != nil {
		t.Fatalf("building %s: %v\n%s", pkg, err, path)
	}
	return strings.TrimSpace(string(path))
}

// sample is a bootstrap of go-control-plane's, with the relay in the place of the control plane.
func sample(t testing.TB, name string, mangle *strings.Replacer) string {
	t.Helper()
	dir, err := exec.Command("go", "list", "-mod=mod", "-m", "-f", "{{.Dir}}", plane).Output()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "sample", name))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "dynamic_resources:") // without its admin interface
	return mangle.Replace("dynamic_resources:" + rest)
}

// TestGoControlPlanesOwnTestPassesThroughTheRelay runs that project's end-to-end test, which changes configuration and
// sends requests through Envoy, with the relay between the two.
func TestGoControlPlanesOwnTestPassesThroughTheRelay(t *testing.T) {
	program := buildTool(t, plane+"/pkg/test/main")
	for i, c := range []struct {
		name, bootstrap string
		flags           []string
	}{
		{"SotW", "bootstrap-ads.yaml", []string{"-xds=ads"}},
		{"SotW, certificates over the same stream", "bootstrap-ads.yaml", []string{"-xds=ads", "-tls"}},
		{"delta", "bootstrap-delta-ads.yaml", []string{"-xds=delta-ads"}},
		{"delta, certificates over the same stream", "bootstrap-delta-ads.yaml", []string{"-xds=delta-ads", "-tls"}},
		{"SotW, with endpoints in a linear cache", "bootstrap-ads.yaml", []string{"-xds=ads", "-mux"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			base := 19100 + 40*i
			backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }))
			t.Cleanup(backend.Close)
			_, port, _ := net.SplitHostPort(backend.Listener.Addr().String())

			dir := t.TempDir()
			relay := startRelay(t, xdsproxy.Config{
				Socket: dir + "/XDS", Upstreams: []string{fmt.Sprintf("127.0.0.1:%d", base)}, Server: xdsproxy.Server{Plaintext: true},
			})
			envoytest.Start(t, testenv.Envoy(t), dir, sample(t, c.bootstrap, strings.NewReplacer(
				"socket_address:\n                address: 127.0.0.1\n                port_value: 18000", "pipe: {path: ./XDS}",
				"port_value: 18090", fmt.Sprint("port_value: ", base+2))))
			output, err := "", error(nil)
			// Its requests have a timeout of 100 ms each, which TLS may exceed on a busy machine, without the relay
			// too.
			for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); {
				output, err = run(exec.Command(program, append(c.flags, "-clusters=20", "-http=4", "-scopedhttp=4", "-tcp=2", "-u=3", "-r=25", "-delay=100ms",
					fmt.Sprint("-port=", base), fmt.Sprint("-gateway=", base+1), fmt.Sprint("-als=", base+2), fmt.Sprint("-base=", base+5),
					"-upstream="+port, "-message=hello")...))
				if err == nil || !strings.Contains(output, "failed all requests in a run") {
					break
				}
			}
			if err != nil {
				t.Fatalf("%v\n%s", err, output)
			}
			status := relay.Status()
			if len(status.Types) < 4 {
				t.Errorf("the relay has seen few types: %+v", status.Types)
			}
			for _, kind := range status.Types {
				if kind.Acks < 1 || kind.Nacks > 0 {
					t.Errorf("%s: %d times accepted, %d times rejected", kind.TypeURL, kind.Acks, kind.Nacks)
				}
			}
		})
	}
}

// run runs a program to its end, which is this test's at the latest.
func run(cmd *exec.Cmd) (string, error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread() // the kernel kills the child with the thread that started it
	defer runtime.UnlockOSThread()
	output, err := cmd.CombinedOutput()
	return string(output), err
}

func startRelay(t testing.TB, c xdsproxy.Config) *xdsproxy.Relay {
	t.Helper()
	out := &testenv.Buffer{}
	c.Logger = slog.New(slog.NewTextHandler(out, nil))
	relay, err := xdsproxy.New(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the relay ended with: %v", err)
		}
		if t.Failed() {
			t.Logf("the relay said:\n%s", out)
		}
	})
	return relay
}
