package inspect

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

const outlierBootstrap = `
admin: {address: {socket_address: {address: 127.0.0.1, port_value: 0}}}
static_resources:
  listeners:
  - name: in
    address: {socket_address: {address: 127.0.0.1, port_value: %d}}
    filter_chains:
    - filters:
      - name: http
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: in
          route_config: {virtual_hosts: [{name: all, domains: ["*"], routes: [{match: {prefix: /}, route: {cluster: both}}]}]}
          http_filters: [{name: router, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}]
  clusters:
  - name: both
    type: STATIC
    outlier_detection: {consecutive_5xx: 1, interval: 0.1s, base_ejection_time: 600s, max_ejection_percent: 50}
    load_assignment: {cluster_name: both, endpoints: [{lb_endpoints: [%s, %s]}]}
`

// Envoy ejects a failing endpoint although EDS reports the endpoint as healthy.
func TestEndpointHealthIsEnvoysView(t *testing.T) {
	for _, version := range testenv.EnvoyVersions() {
		t.Run(version, func(t *testing.T) {
			port := testenv.FreePort(t)
			good, bad := startServer(t, http.StatusOK), startServer(t, http.StatusInternalServerError)
			admin := startEnvoy(t, version, fmt.Sprintf(outlierBootstrap, port, endpointOf(good), endpointOf(bad)))
			testenv.Eventually(t, "the table displays the failing endpoint as ejected", func() error {
				if answer, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/", port)); err == nil {
					answer.Body.Close()
				}
				all, err := admin.Resources(context.Background())
				if err != nil {
					return err
				}
				var table bytes.Buffer
				if err := WriteTable(&table, "endpoints", map[string][]Resource{xds.EndpointType: all[xds.EndpointType]}); err != nil {
					return err
				}
				for address, want := range map[string]string{good: "HEALTHY", bad: "EJECTED"} {
					found := false
					for line := range strings.Lines(table.String()) {
						fields := strings.Fields(line)
						found = found || len(fields) > 1 && fields[0] == address && fields[1] == want
					}
					if !found {
						return fmt.Errorf("%s is not %s in\n%s", address, want, table.String())
					}
				}
				return nil
			})
		})
	}
}

// startServer returns the address of a server that always responds with a status.
func startServer(t *testing.T, status int) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

func endpointOf(address string) string {
	host, port, _ := net.SplitHostPort(address)
	return fmt.Sprintf("{endpoint: {address: {socket_address: {address: %s, port_value: %s}}}}", host, port)
}

// startEnvoy starts an Envoy with a YAML bootstrap and returns a client of its admin interface.
func startEnvoy(t *testing.T, version, bootstrap string) *Admin {
	dir := t.TempDir()
	file, at := filepath.Join(dir, "bootstrap.yaml"), filepath.Join(dir, "admin")
	if err := os.WriteFile(file, []byte(bootstrap), 0o600); err != nil {
		t.Fatal(err)
	}
	log := &testenv.Buffer{}
	cmd := exec.Command(testenv.EnvoyOf(t, version), "-c", file, "--disable-hot-restart", "--concurrency", "1", "--admin-address-path", at, "-l", "warning")
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(log)
		}
	})
	var address []byte
	testenv.Eventually(t, "Envoy "+version+" starts", func() (err error) {
		if address, err = os.ReadFile(at); err == nil && len(address) == 0 {
			err = fmt.Errorf("%s is empty", at)
		}
		return err
	})
	return &Admin{HTTP: &http.Client{Timeout: 10 * time.Second}, Base: "http://" + string(address)}
}
