package verify

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

const aListener = `
  - name: %s
    transparent: %v
    address: {socket_address: {address: "::", port_value: %d, ipv4_compat: true}}
    filter_chains:
    - filters:
      - name: tcp
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy
          stat_prefix: tcp
          cluster: nowhere
`

func aBootstrap(transparent bool) string {
	return `admin: {address: {socket_address: {address: 127.0.0.1, port_value: 15000}}}
static_resources:
  clusters:
  - {name: nowhere, type: STATIC}
  listeners:` + fmt.Sprintf(aListener, "outbound", false, 15001) + fmt.Sprintf(aListener, "inbound", transparent, 15006)
}

func TestRunningEnvoySeesNoTestPackets(t *testing.T) {
	for _, name := range []string{"all", "transparent"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rules := compile(t, choices()[name])
			ns, b := inForce(t, rules)
			bootstrap := filepath.Join(t.TempDir(), "envoy.yaml")
			if err := os.WriteFile(bootstrap, []byte(aBootstrap(name == "transparent")), 0o600); err != nil {
				t.Fatal(err)
			}
			ns.Start(t, exec.Command(testenv.Envoy(t), "-c", bootstrap, "--concurrency", "2", "--disable-hot-restart", "-l", "warn"))
			transport := &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (conn net.Conn, err error) {
				err = ns.Run(func() error { conn, err = net.Dial("tcp", "127.0.0.1:15000"); return err })
				return conn, err
			}}
			get := func(path string) (string, error) {
				resp, err := (&http.Client{Transport: transport}).Get("http://envoy" + path)
				if err != nil {
					return "", err
				}
				defer func() { _ = resp.Body.Close() }()
				text, err := io.ReadAll(resp.Body)
				if resp.StatusCode != http.StatusOK {
					err = fmt.Errorf("%s: %s", path, resp.Status)
				}
				return string(text), err
			}
			testenv.Eventually(t, "Envoy is ready", func() error { _, err := get("/ready"); return err })

			if r := report(t, ns, b, rules); !r.OK() || r.Proven() < 30 {
				t.Errorf("%s", r)
			}
			stats, err := get("/stats?filter=^listener\\..*downstream_cx_total")
			if err != nil {
				t.Fatal(err)
			}
			seen := regexp.MustCompile(`listener\.\S*1500[16]\.downstream_cx_total: (\d+)`).FindAllStringSubmatch(stats, -1)
			if len(seen) != 2 || seen[0][1] != "0" || seen[1][1] != "0" {
				t.Errorf("connections that Envoy saw:\n%s", stats)
			}
		})
	}
}
