package hostile

import (
	"compress/gzip"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/internal/testns"
)

// scrapeAttacks have an application put series of the mesh into the joined scrape of its pod.
var scrapeAttacks = []attack{
	{
		name:     "an application forges metrics of Envoy and the agent",
		position: application,
		limit:    "no series, type or help text with a name of theirs is the application's, in text and in OpenMetrics",
		service:  "the scrape has Envoy's metrics, the agent's, and the application's others, and counts what is left out",
		run:      forgeMetrics,
	},
	{
		name:     "an application's metrics never end",
		position: application,
		limit:    "384 MiB of the agent's memory while three scrapes read endless answers, and an end within 30 s",
		service:  "the scrape has Envoy's metrics, the agent's, and those of the application's other target",
		run:      sendEndlessMetrics,
	},
}

const forgedMetrics = `# HELP istio_requests_total forged
# TYPE istio_requests_total counter
istio_requests_total{destination_service="victim"} 666666
# TYPE envoy_cluster_upstream_cx_total counter
envoy_cluster_upstream_cx_total{cluster_name="victim"} 666666
# TYPE istio_agent_scrapes_total gauge
istio_agent_scrapes_total 666666
# TYPE pilotfish_forged gauge
pilotfish_forged 666666
# TYPE istio histogram
istio_bucket{le="+Inf"} 666666
istio_sum 666666
istio_count 666666
# TYPE own gauge
own 1
`

func forgeMetrics(t *testing.T) {
	pod := testns.New(t)
	l := listenIn(t, pod, "127.0.0.1:9100")
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		kind, end := "text/plain", ""
		if r.URL.Path == "/open" {
			kind, end = "application/openmetrics-text;version=1.0.0", "# EOF\n"
		}
		w.Header().Set("Content-Type", kind)
		fmt.Fprint(w, forgedMetrics+end)
	})}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	startScraped(t, pod, `[{"port":"9100","path":"/text"},{"port":"9100","path":"/open"}]`)
	for _, accept := range []string{"text/plain", "application/openmetrics-text;version=1.0.0"} {
		testenv.Eventually(t, "the scrape has all sources", func() error { return checkScrape(pod, accept) })
	}
}

// startScraped runs an agent with an Envoy in a pod whose application has targets of scrapes.
func startScraped(t *testing.T, pod *testns.Namespace, targets string) *exec.Cmd {
	t.Helper()
	dir, err := os.MkdirTemp("", "scrape") // t.TempDir's path is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.MkdirAll(filepath.Join(dir, "etc/istio/pod"), 0o755); err != nil {
		t.Fatal(err)
	}
	agent := exec.Command(testenv.Bin(t, "pilotfish-agent"), "proxy", "sidecar")
	agent.Dir = dir
	agent.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "ENVOY_PATH=" + testenv.Envoy(t), "INSTANCE_IP=127.0.0.1",
		"POD_NAME=app", "POD_NAMESPACE=default", `PROXY_CONFIG={"discoveryAddress":"127.0.0.1:1","concurrency":1}`,
		`ISTIO_PROMETHEUS_ANNOTATIONS={"scrape":"true","targets":` + targets + `}`,
	}
	pod.Start(t, agent)
	return agent
}

func sendEndlessMetrics(t *testing.T) {
	pod := testns.New(t)
	l := listenIn(t, pod, "127.0.0.1:9100")
	var served atomic.Int64
	endless := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/plain")
			for chunk := []byte(strings.Repeat(text, 1<<20/len(text))); r.Context().Err() == nil; {
				n, err := w.Write(chunk)
				served.Add(int64(n))
				if err != nil {
					return
				}
			}
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/good", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "own 1\n") })
	mux.HandleFunc("/samples", endless("endless 1\n"))
	mux.HandleFunc("/line", endless("x"))
	mux.HandleFunc("/compressed", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		packed := gzip.NewWriter(w)
		defer func() { _ = packed.Close() }()
		endless("# comment\n")(unpackedWriter{w, packed}, r)
	})
	server := &http.Server{Handler: mux}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	agent := startScraped(t, pod, `[{"port":"9100","path":"/good"},{"port":"9100","path":"/samples"},{"port":"9100","path":"/line"},{"port":"9100","path":"/compressed"}]`)
	scrape := func() error {
		start := time.Now()
		body, err := getIn(pod, "http://127.0.0.1:15020/metrics", "text/plain")
		if err != nil {
			return err
		}
		if took := time.Since(start); took > 30*time.Second {
			return fmt.Errorf("the scrape took %s", took)
		}
		for _, want := range []string{"envoy_server_live", "istio_agent_scrapes_total", "own "} {
			if !strings.Contains(body, want) {
				return fmt.Errorf("no %s in a scrape of %d bytes", want, len(body))
			}
		}
		return nil
	}
	testenv.Eventually(t, "the scrape has the other sources", scrape)
	ended := make(chan error)
	for range 3 {
		go func() { ended <- scrape() }()
	}
	for range 3 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	(&parserProcess{t: t, cmd: agent}).checkMemory(384 << 20)
	if n := served.Load(); n < 32<<20 {
		t.Errorf("the application sent %d MiB only, which is no attack", n>>20)
	}
}

// unpackedWriter writes the body of an answer through a packer.
type unpackedWriter struct {
	http.ResponseWriter
	body io.Writer
}

func (w unpackedWriter) Write(text []byte) (int, error) { return w.body.Write(text) }

// checkScrape returns an error unless the scrape of a pod has its sources without what the application forged.
func checkScrape(pod *testns.Namespace, accept string) error {
	body, err := getIn(pod, "http://127.0.0.1:15020/metrics", accept)
	if err != nil {
		return err
	}
	if strings.Contains(body, "666666") || strings.Contains(body, "forged") {
		return fmt.Errorf("forged metrics in\n%s", body)
	}
	for _, want := range []string{"envoy_server_live", "istio_agent_scrapes_total", "own ", `istio_agent_scrape_source_reserved_families{source="application",target="9100/text"} 5`} {
		if !strings.Contains(body, want) {
			return fmt.Errorf("no %s in\n%s", want, body)
		}
	}
	return nil
}

// listenIn listens in a namespace until the test ends.
func listenIn(t *testing.T, n *testns.Namespace, address string) net.Listener {
	t.Helper()
	var l net.Listener
	if err := n.Run(func() (err error) {
		l, err = net.Listen("tcp", address)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// getIn returns the body of a page that a client in a namespace gets.
func getIn(n *testns.Namespace, url, accept string) (string, error) {
	response, err := doIn(n, url, http.Header{"Accept": {accept}})
	if err != nil {
		return "", err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, body)
	}
	return string(body), err
}
