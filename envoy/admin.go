package envoy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/redact"
)

const (
	adminTimeout = 5 * time.Second
	// maxResponse limits the size of an admin response. maxDump limits the size of certificates, statistics and config
	// dumps. The client rejects larger responses, because they could exceed the agent's memory limit.
	maxResponse = 1 << 20
	maxDump     = 64 << 20
)

// Admin is a client of Envoy's admin interface. Each call fails after 5 seconds or when its context ends. The size of
// responses is limited. It is safe for concurrent use.
type Admin struct {
	addr            string
	network, target string // arguments for net.Dial
	client          *http.Client
}

// NewAdmin returns a client for "host:port", or for a unix socket by its path ("/run/admin.sock", "./admin.sock",
// "unix:admin.sock").
func NewAdmin(addr string) *Admin {
	network, target := "tcp", addr
	if path, ok := socketPath(addr); ok {
		network, target = "unix", path
	}
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, network, target)
		},
		// One idle connection stays open while Envoy runs. An idle timeout would save little, and its timer would wake
		// the agent.
		MaxIdleConnsPerHost: 1,
		DisableCompression:  true,
	}
	return &Admin{addr: addr, network: network, target: target, client: &http.Client{Transport: transport}}
}

func socketPath(addr string) (string, bool) {
	if path, ok := strings.CutPrefix(addr, "unix:"); ok {
		return strings.TrimPrefix(path, "//"), true
	}
	return addr, strings.HasPrefix(addr, "/") || strings.HasPrefix(addr, ".")
}

// Close closes idle connections.
func (a *Admin) Close() { a.client.CloseIdleConnections() }

// Address returns the address that was passed to NewAdmin.
func (a *Admin) Address() string { return a.addr }

// StatusError is a response of the admin interface with a status other than 200.
type StatusError struct {
	Path   string
	Status int
	Body   string
}

func (e *StatusError) Error() string {
	return fmt.Sprintf("Envoy's admin interface responded to %s with status %d: %s", e.Path, e.Status, e.Body)
}

// State returns the state that /ready reports: LIVE, PRE_INITIALIZING, INITIALIZING or DRAINING.
func (a *Admin) State(ctx context.Context) (state string, err error) {
	body, err := a.do(ctx, http.MethodGet, "/ready", nil, maxResponse)
	var status *StatusError
	if errors.As(err, &status) && status.Status == http.StatusServiceUnavailable {
		return status.Body, nil
	}
	return strings.TrimSpace(string(body)), err
}

// ServerInfo describes a running Envoy.
type ServerInfo struct {
	Version     string
	State       string
	Uptime      time.Duration
	Concurrency int
	// BaseID and RestartEpoch are Envoy's hot restart parameters, see HotRestart.
	BaseID       uint32
	RestartEpoch int
}

// ServerInfo returns Envoy's version, state, uptime, number of workers and hot restart parameters.
func (a *Admin) ServerInfo(ctx context.Context) (ServerInfo, error) {
	var wire struct {
		Version string `json:"version"`
		State   string `json:"state"`
		Uptime  string `json:"uptime_current_epoch"`
		Options struct {
			Concurrency  int    `json:"concurrency"`
			BaseID       uint32 `json:"base_id,string"`
			RestartEpoch int    `json:"restart_epoch"`
		} `json:"command_line_options"`
	}
	if err := a.getJSON(ctx, "/server_info", nil, maxResponse, &wire); err != nil {
		return ServerInfo{}, err
	}
	info := ServerInfo{Version: wire.Version, State: wire.State, Concurrency: wire.Options.Concurrency,
		BaseID: wire.Options.BaseID, RestartEpoch: wire.Options.RestartEpoch}
	if v, err := parseVersionOutput("version: " + wire.Version); err == nil {
		info.Version = v.String()
	}
	info.Uptime, _ = time.ParseDuration(wire.Uptime)
	return info, nil
}

// DrainOptions are the parameters of a drain.
type DrainOptions struct {
	// InboundOnly drains only listeners that are marked as inbound.
	InboundOnly bool
	// Graceful makes Envoy accept connections during the drain time, while it signals its clients to reconnect
	// elsewhere.
	Graceful bool
	// SkipExit leaves the listeners open after the drain time.
	SkipExit bool
}

// DrainListeners starts a drain. Envoy responds immediately and does not exit after the drain.
func (a *Admin) DrainListeners(ctx context.Context, d DrainOptions) error {
	var flags []string
	for _, f := range []struct {
		name string
		set  bool
	}{{"inboundonly", d.InboundOnly}, {"graceful", d.Graceful}, {"skip_exit", d.SkipExit}} {
		if f.set {
			flags = append(flags, f.name)
		}
	}
	path := "/drain_listeners"
	if len(flags) > 0 {
		path += "?" + strings.Join(flags, "&")
	}
	_, err := a.do(ctx, http.MethodPost, path, nil, maxResponse)
	return err
}

// Stats returns the counters and gauges whose names match the RE2 expression filter. An empty filter matches all.
func (a *Admin) Stats(ctx context.Context, filter string) (map[string]uint64, error) {
	query := url.Values{"format": {"json"}}
	if filter != "" {
		query.Set("filter", filter)
	}
	var wire struct {
		Stats []struct {
			Name  string `json:"name"`
			Value any    `json:"value"` // histograms have no value, text readouts a string
		} `json:"stats"`
	}
	if err := a.getJSON(ctx, "/stats", query, maxDump, &wire); err != nil {
		return nil, err
	}
	stats := make(map[string]uint64, len(wire.Stats))
	for _, s := range wire.Stats {
		if v, ok := s.Value.(float64); ok {
			stats[s.Name] = uint64(v)
		}
	}
	return stats, nil
}

// Certs returns Envoy's certificates: the JSON response to /certs.
func (a *Admin) Certs(ctx context.Context) (json.RawMessage, error) {
	return a.do(ctx, http.MethodGet, "/certs", nil, maxDump)
}

// ConfigDump returns Envoy's current configuration: the JSON response to /config_dump. resource selects one field of
// the dump, for example "dynamic_listeners". If it is empty, the dump contains everything, including endpoints.
func (a *Admin) ConfigDump(ctx context.Context, resource string) (json.RawMessage, error) {
	query := url.Values{"include_eds": {""}}
	if resource != "" {
		query.Set("resource", resource)
	}
	return a.do(ctx, http.MethodGet, "/config_dump", query, maxDump)
}

// RedactedConfigDump writes Envoy's current configuration like ConfigDump, but with secrets redacted and without
// endpoints. If the dump exceeds limit, it returns an error, and the partial output is not valid JSON.
func (a *Admin) RedactedConfigDump(ctx context.Context, resource string, limit int64, to io.Writer) error {
	query := url.Values{}
	if resource != "" {
		query.Set("resource", resource)
	}
	ctx, cancel := context.WithTimeout(ctx, adminTimeout)
	defer cancel()
	resp, err := a.send(ctx, http.MethodGet, "/config_dump", query)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(resp.Body, maxVersionOutput))
		return &StatusError{Path: "/config_dump", Status: resp.StatusCode, Body: firstLine(string(body))}
	}
	limited := &io.LimitedReader{R: resp.Body, N: limit}
	err = redact.JSON(to, limited)
	if err != nil && limited.N <= 0 {
		return fmt.Errorf("the configuration of Envoy is larger than %d bytes", limit)
	}
	return err
}

// SetLogLevel changes log levels: "info" for all components, or "upstream:debug,config:trace" for some.
func (a *Admin) SetLogLevel(ctx context.Context, level string) error {
	query := url.Values{"level": {level}}
	if strings.Contains(level, ":") {
		query = url.Values{"paths": {level}}
	}
	_, err := a.do(ctx, http.MethodPost, "/logging", query, maxResponse)
	return err
}

// Quit requests Envoy to exit. Envoy then closes all connections.
func (a *Admin) Quit(ctx context.Context) error {
	_, err := a.do(ctx, http.MethodPost, "/quitquitquit", nil, maxResponse)
	return err
}

func (a *Admin) getJSON(ctx context.Context, path string, query url.Values, limit int64, into any) error {
	body, err := a.do(ctx, http.MethodGet, path, query, limit)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("reading the response of Envoy's admin interface (%s) to %s: %w", a.addr, path, err)
	}
	return nil
}

// do sends a request and returns the body of the response. It returns an error if the body exceeds limit bytes, and a
// *StatusError if the status is not 200.
func (a *Admin) do(ctx context.Context, method, path string, query url.Values, limit int64) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, adminTimeout)
	defer cancel()
	resp, err := a.send(ctx, method, path, query)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("reading the response of Envoy's admin interface (%s) to %s: %w", a.addr, path, err)
	case int64(len(body)) > limit:
		return nil, fmt.Errorf("the response of Envoy's admin interface (%s) to %s is larger than %d bytes", a.addr, path, limit)
	case resp.StatusCode != http.StatusOK:
		return nil, &StatusError{Path: path, Status: resp.StatusCode, Body: firstLine(string(body))}
	}
	return body, nil
}

// IsNotListening reports whether a call failed because no process listens on the admin address: Envoy has not opened it
// yet, or has exited.
func IsNotListening(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ENOENT)
}

// unwrapURLError removes the placeholder URL from an HTTP client's error.
func unwrapURLError(err error) error {
	var urlErr *url.Error
	if errors.As(err, &urlErr) {
		return urlErr.Err
	}
	return err
}

func (a *Admin) send(ctx context.Context, method, path string, query url.Values) (*http.Response, error) {
	target := "http://envoy-admin" + path
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, target, nil)
	if err != nil {
		return nil, fmt.Errorf("requesting %s from Envoy's admin interface: %w", path, err)
	}
	resp, err := a.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("requesting %s from Envoy's admin interface (%s): %w", path, a.addr, unwrapURLError(err))
	}
	return resp, nil
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	if len(line) > 200 {
		line = strings.ToValidUTF8(line[:200], "") + "…"
	}
	return line
}
