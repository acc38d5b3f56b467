package agent

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/bootstrap"
	"github.com/pilotfish-mesh/pilotfish/status"
)

const (
	scrapeVariable = "ISTIO_PROMETHEUS_ANNOTATIONS"
	httpsVariable  = "METRICS_HTTPS_PORTS"
	// longestScrapeText is more than the kernel lets into one variable, mostTargets more than a pod has containers.
	longestScrapeText = 1 << 20
	mostTargets       = 16

	defaultMetricsPort = 80
	defaultMetricsPath = "/metrics"
)

// reservedPorts are those of a proxy: what answers there are no metrics of an application.
var reservedPorts = []int64{15000, 15001, 15004, 15006, 15008, 15020, 15021, 15053, 15090}

// scrapeAnnotations are the pod's annotations about metrics as Istio's injector hands them on: one target, or several.
type scrapeAnnotations struct {
	Scrape  string         `json:"scrape"`
	Port    anyPort        `json:"port"`
	Path    string         `json:"path"`
	Targets []scrapeTarget `json:"targets"`
}

type scrapeTarget struct {
	Port anyPort `json:"port"`
	Path string  `json:"path"`
}

// anyPort is a port as text, or as a number.
type anyPort string

// UnmarshalJSON reads either.
func (p *anyPort) UnmarshalJSON(data []byte) error {
	var text string
	if len(data) > 0 && data[0] != '"' {
		*p = anyPort(bytes.TrimSpace(data))
		return nil
	}
	if err := json.Unmarshal(data, &text); err != nil {
		return err
	}
	*p = anyPort(strings.TrimSpace(text))
	return nil
}

// metrics says what is joined to the agent's own metrics, and who may have them.
func (r *resolver) metrics() {
	c := &r.config.Metrics
	c.Envoy = r.env.boolean("metrics.envoy", "PILOT_AGENT_MERGE_ENVOY_STATS", true)
	c.OnlyLoopback = r.env.boolean("metrics.onlyLoopback", "METRICS_LOCALHOST_ACCESS_ONLY", false)
	c.SecurePort = r.optionalPort("metrics.securePort", "ENVOY_SECURE_METRICS_PORT")
	c.SecureMergedPort = r.optionalPort("metrics.secureMergedPort", "ENVOY_SECURE_MERGED_METRICS_PORT")
	c.MaxApplicationBytes = parsed(r.env, "metrics.maxApplicationBytes", "METRICS_MAX_APPLICATION_BYTES", 64<<20,
		"write a number of bytes, as 67108864", func(s string) (int64, error) {
			n, err := strconv.ParseInt(s, 10, 64)
			if err == nil && n <= 0 {
				err = strconv.ErrRange
			}
			return n, err
		})
	text := strings.TrimSpace(r.env.vars[scrapeVariable])
	if text == "" {
		return
	}
	if r.config.Identity.Type != bootstrap.Sidecar {
		r.env.warn("%s has no effect: only a sidecar has an application beside it", scrapeVariable)
		return
	}
	targets, err := readScrapeTargets(text)
	if err != nil {
		r.env.refuse(scrapeVariable, text, err.Error())
		return
	}
	https := r.httpsPorts()
	for _, t := range targets {
		r.metricsTarget(t, https)
	}
}

// optionalPort is a port, or 0 for none. It is taken: no other may be the same.
func (r *resolver) optionalPort(name, variable string) uint32 {
	port := parsed(r.env, name, variable, 0, "write a port from 1 to 65535, or 0 for none", func(s string) (uint32, error) {
		n, err := strconv.ParseUint(s, 10, 16)
		return uint32(n), err
	})
	if port != 0 && slices.Contains(r.ownPorts(), int64(port)) {
		r.env.refuse(variable, strconv.Itoa(int(port)), "it is another port of the proxy already; give each a port of its own")
	}
	return port
}

// ownPorts are those that the agent and Envoy listen on by the configuration.
func (r *resolver) ownPorts() []int64 {
	ports := []int64{
		int64(r.config.Proxy.GetProxyAdminPort()), int64(r.config.Proxy.GetStatusPort()),
		int64(r.config.Envoy.ReadinessPort), int64(r.config.Envoy.PrometheusPort),
	}
	for _, p := range []uint32{r.config.Metrics.SecurePort, r.config.Metrics.SecureMergedPort} {
		if p != 0 {
			ports = append(ports, int64(p))
		}
	}
	return ports
}

// readScrapeTargets reads the variable. Fields that it does not know belong to newer injectors.
func readScrapeTargets(text string) ([]scrapeTarget, error) {
	if len(text) > longestScrapeText {
		return nil, fmt.Errorf("it is longer than %d bytes", longestScrapeText)
	}
	var a scrapeAnnotations
	if err := json.Unmarshal([]byte(text), &a); err != nil {
		return nil, fmt.Errorf(`%w; write it as {"scrape":"true","port":"8080","path":"/metrics"}`, err)
	}
	if a.Scrape == "false" {
		return nil, nil
	}
	targets := a.Targets
	if len(targets) == 0 {
		targets = []scrapeTarget{{a.Port, a.Path}}
	}
	if len(targets) > mostTargets {
		return nil, fmt.Errorf("it has %d targets and may have %d", len(targets), mostTargets)
	}
	for i := range targets {
		if err := targets[i].complete(); err != nil {
			return nil, err
		}
	}
	return targets, nil
}

// complete fills in what is left out, and refuses what could not be asked.
func (t *scrapeTarget) complete() error {
	if t.Port == "" {
		t.Port = anyPort(strconv.Itoa(defaultMetricsPort))
	}
	port, err := parsePort(string(t.Port))
	if err != nil {
		return fmt.Errorf("port %q: write a port from 1 to 65535", t.Port)
	}
	t.Port = anyPort(strconv.Itoa(int(port))) // 08080 is 8080
	switch {
	case t.Path == "":
		t.Path = defaultMetricsPath
	case !strings.HasPrefix(t.Path, "/"):
		t.Path = "/" + t.Path
	}
	if u, err := url.ParseRequestURI(t.Path); err != nil || u.Host != "" {
		return fmt.Errorf("path %q: write it as %s", t.Path, defaultMetricsPath)
	}
	return nil
}

// httpsPorts are the ports of targets that are asked over HTTPS.
func (r *resolver) httpsPorts() []string {
	var ports []string
	for port := range strings.SplitSeq(r.env.vars[httpsVariable], ",") {
		if port = strings.TrimSpace(port); port == "" {
			continue
		}
		n, err := parsePort(port)
		if err != nil {
			r.env.refuse(httpsVariable, r.env.vars[httpsVariable], "write ports, as 8443,9443")
			return nil
		}
		ports = append(ports, strconv.Itoa(int(n)))
	}
	return ports
}

// metricsTarget adds one target. The agent's own port would be a circle; a proxy's other port is left out, since a pod
// should not stay down for an annotation.
func (r *resolver) metricsTarget(t scrapeTarget, https []string) {
	port, _ := strconv.ParseInt(string(t.Port), 10, 32)
	switch {
	case port == int64(r.config.Proxy.GetStatusPort()):
		r.env.refuse(scrapeVariable, r.env.vars[scrapeVariable],
			fmt.Sprintf("port %d is the agent's own, which would ask itself: name the application's port in prometheus.io/port, and inject the pod once", port))
		return
	case slices.Contains(reservedPorts, port), slices.Contains(r.ownPorts(), port):
		r.env.warn("%s: port %d is the proxy's own, not the application's; its metrics are not joined", scrapeVariable, port)
		return
	}
	host := "localhost"
	if elsewhere, _ := r.config.Identity.Metadata["APP_ADDRESS"].(string); elsewhere != "" {
		host = elsewhere // it shares no network namespace with its proxy
	}
	scheme := "http"
	if slices.Contains(https, string(t.Port)) {
		scheme = "https"
	}
	path, _, _ := strings.Cut(t.Path, "?") // a query may hold what is not for everyone
	app := status.Application{Name: string(t.Port) + path, URL: scheme + "://" + net.JoinHostPort(host, string(t.Port)) + t.Path}
	if slices.ContainsFunc(r.config.Metrics.Applications, func(a status.Application) bool { return a.URL == app.URL }) {
		return // named twice
	}
	for n := 2; slices.ContainsFunc(r.config.Metrics.Applications, func(a status.Application) bool { return a.Name == app.Name }); n++ {
		app.Name = fmt.Sprintf("%s%s#%d", t.Port, path, n)
	}
	r.config.Metrics.Applications = append(r.config.Metrics.Applications, app)
	r.env.note("metrics.application", scheme+" "+app.Name, "environment "+scrapeVariable)
}
