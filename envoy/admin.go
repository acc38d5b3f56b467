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
	// Answers longer than these are refused rather than read: they would cost the agent more memory than it has.
	mostAnswer = 1 << 20
	mostDump   = 64 << 20
)

// Admin talks to an Envoy's admin interface. Each call takes at most 5 seconds, less if its context ends sooner, and a
// bounded amount of memory. It is safe for concurrent use.
type Admin struct {
	addr   string
	client *http.Client
}

// NewAdmin makes a client for "host:port", or for a unix socket by its path ("/run/admin.sock", "./admin.sock",
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
		// One stays for as long as Envoy does: a process at rest is not woken to close it.
		MaxIdleConnsPerHost: 1,
		DisableCompression:  true,
	}
	return &Admin{addr: addr, client: &http.Client{Transport: transport}}
}

func socketPath(addr string) (string, bool) {
	if path, ok := strings.CutPrefix(addr, "unix:"); ok {
		return strings.TrimPrefix(path, "//"), true
	}
	return addr, strings.HasPrefix(addr, "/") || strings.HasPrefix(addr, ".")
}

// Close closes idle connections.
func (a *Admin) Close() { a.client.CloseIdleConnections() }

// Address is what the client was made for.
func (a *Admin) Address() string { return a.addr }

// StatusError is an answer of the admin interface that is not 200.
type StatusError struct {
	Path   string
	Status int
	Body   string
}

func (e *StatusError) Error() string {
	return fmt.Sprintf("Envoy's admin answered %s with %d: %s", e.Path, e.Status, e.Body)
}

// Ready gives the state that /ready tells: LIVE, PRE_INITIALIZING, INITIALIZING or DRAINING.
func (a *Admin) Ready(ctx context.Context) (state string, err error) {
	body, err := a.do(ctx, http.MethodGet, "/ready", nil, mostAnswer)
	var status *StatusError
	if errors.As(err, &status) && status.Status == http.StatusServiceUnavailable {
		return status.Body, nil
	}
	return strings.TrimSpace(string(body)), err
}

// ServerInfo is what Envoy tells of itself.
type ServerInfo struct {
	Version     string
	State       string
	Uptime      time.Duration
	Concurrency int
	// BaseID and RestartEpoch are those of HotRestart.
	BaseID       uint32
	RestartEpoch int
}

// ServerInfo asks for version, state, age and number of workers.
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
	if err := a.getJSON(ctx, "/server_info", nil, mostAnswer, &wire); err != nil {
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

// Drain says how to drain listeners.
type Drain struct {
	// InboundOnly leaves listeners that are not marked as inbound alone.
	InboundOnly bool
	// Graceful keeps accepting connections for the drain time while it asks clients to go.
	Graceful bool
	// SkipExit keeps the listeners open after the drain time too.
	SkipExit bool
}

// DrainListeners begins to drain. Envoy answers at once and never ends by itself afterwards.
func (a *Admin) DrainListeners(ctx context.Context, d Drain) error {
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
	_, err := a.do(ctx, http.MethodPost, path, nil, mostAnswer)
	return err
}

// Stats gives counters and gauges whose names match the RE2 expression; all for an empty one.
func (a *Admin) Stats(ctx context.Context, filter string) (map[string]uint64, error) {
	query := url.Values{"format": {"json"}}
	if filter != "" {
		query.Set("filter", filter)
	}
	var wire struct {
		Stats []struct {
			Name  string `json:"name"`
			Value any    `json:"value"` // histograms have none, text readouts have a string
		} `json:"stats"`
	}
	if err := a.getJSON(ctx, "/stats", query, mostDump, &wire); err != nil {
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

// Certs gives the certificates that Envoy has, as Envoy's own JSON.
func (a *Admin) Certs(ctx context.Context) (json.RawMessage, error) {
	return a.do(ctx, http.MethodGet, "/certs", nil, mostDump)
}

// ConfigDump gives the configuration that is in force, as Envoy's own JSON. Resource ("dynamic_listeners", say) narrows it
// to one field of the dump; empty gives all, endpoints too.
func (a *Admin) ConfigDump(ctx context.Context, resource string) (json.RawMessage, error) {
	query := url.Values{"include_eds": {""}}
	if resource != "" {
		query.Set("resource", resource)
	}
	return a.do(ctx, http.MethodGet, "/config_dump", query, mostDump)
}

// RedactedConfigDump writes a dump as ConfigDump gives it, without its secrets and without endpoints. A dump that is larger
// than most is an error, and what was written of it then is no JSON.
func (a *Admin) RedactedConfigDump(ctx context.Context, resource string, most int64, to io.Writer) error {
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
		body, _ := io.ReadAll(io.LimitReader(resp.Body, mostVersionOutput))
		return &StatusError{Path: "/config_dump", Status: resp.StatusCode, Body: firstLine(string(body))}
	}
	limited := &io.LimitedReader{R: resp.Body, N: most}
	err = redact.JSON(to, limited)
	if err != nil && limited.N <= 0 {
		return fmt.Errorf("the configuration of Envoy is larger than %d bytes", most)
	}
	return err
}

// SetLogLevel changes levels at run time: "info" for all components, or "upstream:debug,config:trace" for some.
func (a *Admin) SetLogLevel(ctx context.Context, level string) error {
	query := url.Values{"level": {level}}
	if strings.Contains(level, ":") {
		query = url.Values{"paths": {level}}
	}
	_, err := a.do(ctx, http.MethodPost, "/logging", query, mostAnswer)
	return err
}

// Quit asks Envoy to exit. It cuts all connections.
func (a *Admin) Quit(ctx context.Context) error {
	_, err := a.do(ctx, http.MethodPost, "/quitquitquit", nil, mostAnswer)
	return err
}

func (a *Admin) getJSON(ctx context.Context, path string, query url.Values, most int64, into any) error {
	body, err := a.do(ctx, http.MethodGet, path, query, most)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("reading the answer of Envoy's admin (%s) to %s: %w", a.addr, path, err)
	}
	return nil
}

// do calls the admin interface and reads the whole answer, up to most bytes.
func (a *Admin) do(ctx context.Context, method, path string, query url.Values, most int64) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, adminTimeout)
	defer cancel()
	resp, err := a.send(ctx, method, path, query)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, most+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("reading the answer of Envoy's admin (%s) to %s: %w", a.addr, path, err)
	case int64(len(body)) > most:
		return nil, fmt.Errorf("the answer of Envoy's admin (%s) to %s is larger than %d bytes", a.addr, path, most)
	case resp.StatusCode != http.StatusOK:
		return nil, &StatusError{Path: path, Status: resp.StatusCode, Body: firstLine(string(body))}
	}
	return body, nil
}

// NotListening says whether a call failed because nobody listens on the admin address: Envoy has not got that far, or is
// gone.
func NotListening(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ENOENT)
}

// withoutURL drops the made-up URL from an HTTP client's error.
func withoutURL(err error) error {
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
		return nil, fmt.Errorf("asking Envoy's admin for %s: %w", path, err)
	}
	resp, err := a.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("asking Envoy's admin (%s) for %s: %w", a.addr, path, withoutURL(err))
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
