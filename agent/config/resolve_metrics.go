package config

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
	scrapeVariable     = "ISTIO_PROMETHEUS_ANNOTATIONS"
	httpsPortsVariable = "METRICS_HTTPS_PORTS"
	// maxScrapeText is the maximum length of scrapeVariable. The kernel's limit for one variable is smaller.
	maxScrapeText = 1 << 20
	// maxTargets is the maximum number of scrape targets.
	maxTargets = 16

	defaultMetricsPort = 80
	defaultMetricsPath = "/metrics"
)

// reservedPorts are the ports that agent and Envoy use by default. They cannot be scrape targets of the application.
var reservedPorts = []int64{15000, 15001, 15004, 15006, 15008, 15020, 15021, 15053, 15090}

// scrapeAnnotations is the JSON form of the pod's prometheus.io annotations, written by Istio's injector. It contains
// either one target (Port and Path) or several (Targets).
type scrapeAnnotations struct {
	Scrape  string         `json:"scrape"`
	Port    portText       `json:"port"`
	Path    string         `json:"path"`
	Targets []scrapeTarget `json:"targets"`
}

type scrapeTarget struct {
	Port portText `json:"port"`
	Path string   `json:"path"`
}

// portText is a port number. In JSON it is a string or a number.
type portText string

// UnmarshalJSON accepts a string or a number.
func (p *portText) UnmarshalJSON(data []byte) error {
	var text string
	if len(data) > 0 && data[0] != '"' {
		*p = portText(bytes.TrimSpace(data))
		return nil
	}
	if err := json.Unmarshal(data, &text); err != nil {
		return err
	}
	*p = portText(strings.TrimSpace(text))
	return nil
}

// resolveMetrics resolves which metrics /metrics serves in addition to the agent's own, and which clients may scrape
// them.
func (r *resolver) resolveMetrics() {
	c := &r.config.Metrics
	c.Envoy = r.env.boolean("metrics.envoy", "PILOT_AGENT_MERGE_ENVOY_STATS", true)
	c.OnlyLoopback = r.env.boolean("metrics.onlyLoopback", "METRICS_LOCALHOST_ACCESS_ONLY", false)
	c.SecurePort = r.resolveOptionalPort("metrics.securePort", "ENVOY_SECURE_METRICS_PORT")
	c.SecureMergedPort = r.resolveOptionalPort("metrics.secureMergedPort", "ENVOY_SECURE_MERGED_METRICS_PORT")
	c.AllowReservedNames = r.env.boolean("metrics.allowReservedNames", "METRICS_ALLOW_RESERVED_NAMES", false)
	c.MaxApplicationBytes = parseVariable(r.env, "metrics.maxApplicationBytes", "METRICS_MAX_APPLICATION_BYTES", 64<<20,
		"write a number of bytes, such as 67108864", func(s string) (int64, error) {
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
		r.env.warn("environment %s has no effect: only a sidecar has an application whose metrics the agent scrapes", scrapeVariable)
		return
	}
	targets, err := readScrapeTargets(text)
	if err != nil {
		r.env.addValueError(scrapeVariable, text, err.Error())
		return
	}
	if len(targets) > maxTargets {
		r.env.warn("environment %s: the value has %d targets; only the first %d are scraped", scrapeVariable, len(targets), maxTargets)
		targets = targets[:maxTargets]
	}
	https := r.httpsPorts()
	for _, t := range targets {
		r.addMetricsTarget(t, https)
	}
}

// resolveOptionalPort returns a port, or 0 if it is not configured. It adds an error if another listener of the proxy
// uses the port.
func (r *resolver) resolveOptionalPort(name, variable string) uint32 {
	port := parseVariable(r.env, name, variable, 0, "write a port from 1 to 65535, or 0 for none", func(s string) (uint32, error) {
		return parsePortNumber(s, 0)
	})
	if port != 0 && slices.Contains(r.proxyPorts(), int64(port)) {
		r.env.addValueError(variable, strconv.Itoa(int(port)), "another listener of the proxy uses this port; choose a different one")
	}
	return port
}

// proxyPorts returns the ports on which the agent and Envoy are configured to listen.
func (r *resolver) proxyPorts() []int64 {
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

// readScrapeTargets parses the value of scrapeVariable. It ignores unknown fields, which newer injectors may add.
func readScrapeTargets(text string) ([]scrapeTarget, error) {
	if len(text) > maxScrapeText {
		return nil, fmt.Errorf("the value is longer than %d bytes", maxScrapeText)
	}
	var a scrapeAnnotations
	if err := json.Unmarshal([]byte(text), &a); err != nil {
		return nil, fmt.Errorf(`%w; write the value as {"scrape":"true","port":"8080","path":"/metrics"}`, describeJSONError(err))
	}
	if a.Scrape == "false" {
		return nil, nil
	}
	targets := a.Targets
	if len(targets) == 0 {
		targets = []scrapeTarget{{a.Port, a.Path}}
	}
	for i := range targets {
		if err := targets[i].complete(); err != nil {
			return nil, err
		}
	}
	return targets, nil
}

// complete sets the defaults of the target's empty fields. It returns an error for an invalid port.
func (t *scrapeTarget) complete() error {
	if t.Port == "" {
		t.Port = portText(strconv.Itoa(defaultMetricsPort))
	}
	port, err := parsePort(string(t.Port))
	if err != nil {
		return fmt.Errorf("port %q: write a port from 1 to 65535", t.Port)
	}
	t.Port = portText(strconv.Itoa(int(port))) // normalizes 08080 to 8080
	switch {
	case t.Path == "":
		t.Path = defaultMetricsPath
	case !strings.HasPrefix(t.Path, "/"):
		t.Path = "/" + t.Path
	}
	return nil
}

// hasValidPath reports whether the path is valid in a URL.
func (t *scrapeTarget) hasValidPath() bool {
	u, err := url.ParseRequestURI(t.Path)
	return err == nil && u.Host == ""
}

// httpsPorts returns the ports in METRICS_HTTPS_PORTS, whose targets are scraped over HTTPS.
func (r *resolver) httpsPorts() []string {
	var ports []string
	for port := range strings.SplitSeq(r.env.vars[httpsPortsVariable], ",") {
		if port = strings.TrimSpace(port); port == "" {
			continue
		}
		n, err := parsePort(port)
		if err != nil {
			r.env.addValueError(httpsPortsVariable, r.env.vars[httpsPortsVariable], "write ports separated by commas, such as 8443,9443")
			return nil
		}
		ports = append(ports, strconv.Itoa(int(n)))
	}
	return ports
}

// addMetricsTarget adds one target. The agent's status port is an error, because the agent would scrape itself. Other
// targets that cannot be scraped are only skipped: an annotation should not prevent the pod's start.
func (r *resolver) addMetricsTarget(t scrapeTarget, https []string) {
	port, _ := strconv.ParseInt(string(t.Port), 10, 32)
	switch {
	case port == int64(r.config.Proxy.GetStatusPort()):
		r.env.addValueError(scrapeVariable, r.env.vars[scrapeVariable],
			fmt.Sprintf("port %d is the status port of the agent, which would scrape itself: write the application's port in prometheus.io/port, and inject the pod only once", port))
		return
	case slices.Contains(reservedPorts, port), slices.Contains(r.proxyPorts(), port):
		r.env.warn("environment %s: port %d belongs to the proxy, not to the application; its metrics are not merged", scrapeVariable, port)
		return
	case !t.hasValidPath():
		r.env.warn("environment %s: path %q: write a path such as %s; the target is not scraped", scrapeVariable, t.Path, defaultMetricsPath)
		return
	}
	host := "localhost"
	if address, _ := r.config.Identity.Metadata["APP_ADDRESS"].(string); address != "" {
		host = address // the application runs in another network namespace
	}
	scheme := "http"
	if slices.Contains(https, string(t.Port)) {
		scheme = "https"
	}
	path, _, _ := strings.Cut(t.Path, "?") // a query may contain secrets
	app := status.Application{Name: string(t.Port) + path, URL: scheme + "://" + net.JoinHostPort(host, string(t.Port)) + t.Path}
	if slices.ContainsFunc(r.config.Metrics.Applications, func(a status.Application) bool { return a.URL == app.URL }) {
		return // duplicate
	}
	for n := 2; slices.ContainsFunc(r.config.Metrics.Applications, func(a status.Application) bool { return a.Name == app.Name }); n++ {
		app.Name = fmt.Sprintf("%s%s#%d", t.Port, path, n)
	}
	r.config.Metrics.Applications = append(r.config.Metrics.Applications, app)
	r.env.addSetting("metrics.application", scheme+" "+app.Name, "environment "+scrapeVariable)
}
