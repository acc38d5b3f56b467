package agent

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// startMetricsServer starts an application with metrics, and returns its port.
func startMetricsServer(t *testing.T, https bool, kind, metrics string) (port string) {
	t.Helper()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/metrics" {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", kind)
		_, _ = io.WriteString(w, metrics)
	}))
	if https {
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	return u.Port()
}

func TestScrapeJoinsEnvoyApplicationsAndAgent(t *testing.T) {
	t.Parallel()
	const text, open = "text/plain; version=0.0.4", "application/openmetrics-text; version=1.0.0"
	first := startMetricsServer(t, false, open, "# TYPE go_goroutines gauge\ngo_goroutines 7\n# TYPE orders counter\norders_total 3\n# EOF\n")
	second := startMetricsServer(t, true, text, "# TYPE go_goroutines gauge\ngo_goroutines 9\n")
	s := newSetup(t, "127.105.1.1")
	s.env = append(s.env, "METRICS_HTTPS_PORTS="+second, "ENVOY_SECURE_MERGED_METRICS_PORT=15092", "ENVOY_SECURE_METRICS_PORT=15091",
		fmt.Sprintf(`ISTIO_PROMETHEUS_ANNOTATIONS={"scrape":"true","path":"","port":"","targets":[{"port":%q,"path":"/metrics"},{"port":%q,"path":""}]}`, first, second))
	r := s.startReady(t)
	_, body, err := r.http("GET", "15020/stats/prometheus")
	if err != nil {
		t.Fatal(err)
	}
	whole := func(where, body string) {
		t.Helper()
		parser := expfmt.NewTextParser(model.LegacyValidation)
		if _, err := parser.TextToMetricFamilies(strings.NewReader(body)); err != nil {
			t.Errorf("%s: %v", where, err)
		}
		for _, want := range []string{"\nenvoy_server_live 1\n", "\nistio_agent_go_goroutines ", "\norders_total 3\n",
			"\ngo_goroutines 7\ngo_goroutines{scrape_target=\"" + second + "/metrics\"} 9\n",
			`istio_agent_scrape_source_up{source="application",target="` + second + `/metrics"} 1`} {
			if !strings.Contains(body, want) {
				t.Errorf("%s lacks %q", where, want)
			}
		}
	}
	whole("the status port", body)
	for _, drainOnly := range []string{"downstream_cx_active", "downstream_rq_active", "downstream_cx_tx_bytes_buffered", "downstream_cx_total", "downstream_rq_total"} {
		if strings.Contains(body, drainOnly) {
			t.Errorf("the scrape contains statistics that only the drain needs: %s", drainOnly)
		}
		if _, direct, err := r.http("GET", "15000/stats/prometheus"); err != nil || !strings.Contains(direct, drainOnly) {
			t.Errorf("Envoy does not have the statistic %s, %v", drainOnly, err)
		}
	}

	if _, err := secureGet(s, 15092, nil); err == nil {
		t.Error("metrics for a client without a certificate")
	}
	for port, want := range map[int]string{15091: "envoy_server_live", 15092: "orders_total 3"} {
		got, err := secureGet(s, port, s.clientCertificate(t))
		if err != nil || !strings.Contains(got, want) {
			t.Errorf("port %d with a certificate of the mesh: %v, %.200q", port, err, got)
		}
		if port == 15092 {
			whole("the secure port", got)
		}
	}

	// Envoy is scraped through its admin interface, which responds until Envoy exits.
	if code, _, err := r.http("POST", "15020/drain"); err != nil || code != 200 {
		t.Fatalf("%d %v", code, err)
	}
	if _, body, err = r.http("GET", "15020/metrics"); err != nil {
		t.Fatal(err)
	}
	whole("while it drains", body)
}

// clientCertificate returns a client certificate of the mesh.
func (s *agentSetup) clientCertificate(t *testing.T) *tls.Certificate {
	t.Helper()
	key := newKey(t)
	id, _ := url.Parse("spiffe://cluster.local/ns/monitoring/sa/prometheus")
	leaf, _ := s.cp.sign(t, &x509.Certificate{URIs: []*url.URL{id}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, key)
	return &tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key}
}

func secureGet(s *agentSetup, port int, certificate *tls.Certificate) (string, error) {
	config := &tls.Config{InsecureSkipVerify: true} // the proxy's name is a SPIFFE ID
	if certificate != nil {
		config.Certificates = []tls.Certificate{*certificate}
	}
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}
	response, err := client.Get(fmt.Sprintf("https://%s:%d/stats/prometheus", s.address, port))
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, body)
	}
	return string(body), err
}
