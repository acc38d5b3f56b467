package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/pilotfish-mesh/pilotfish/cni/agentapi"
	"github.com/pilotfish-mesh/pilotfish/internal/health"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// serve runs a server and returns a client of its socket.
func serve(t *testing.T, c ServerConfig) *http.Client {
	t.Helper()
	c.RunDir = t.TempDir()
	if c.Logger == nil {
		c.Logger = quiet
	}
	s, err := NewServer(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Run(ctx) }()
	socket := filepath.Join(c.RunDir, agentapi.SocketName)
	if info, err := os.Stat(socket); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket: %v, %v", info, err)
	}
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		cancel()
		<-done
		if _, err := os.Stat(socket); !errors.Is(err, os.ErrNotExist) {
			t.Error("the socket file was not removed")
		}
	})
	return &http.Client{Transport: transport}
}

func get(t *testing.T, client *http.Client, path string) (int, string) {
	t.Helper()
	response, err := client.Get("http://agent" + path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

func post(t *testing.T, client *http.Client, path string, body any) int {
	t.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	response, err := client.Post("http://agent"+path, "application/json", bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	return response.StatusCode
}

func TestPluginReceivesThePodOrAnError(t *testing.T) {
	m := NewMetrics(nil, nil)
	client := serve(t, ServerConfig{Metrics: m, Pod: func(_ context.Context, _, name, uid string) (*agentapi.Pod, error) {
		switch name {
		case "gone":
			return nil, ErrNoSuchPod
		case "unknowable":
			return nil, errors.New("the API server is away")
		}
		p := pod(name, uid)
		return &p, nil
	}})
	for path, want := range map[string]struct {
		code int
		text string
	}{
		"?namespace=shop&name=web&uid=7":     {200, `"uid":"7"`},
		"?namespace=shop&name=gone":          {404, "no such pod"},
		"?namespace=shop&name=unknowable":    {503, "the API server is away"},
		"?name=web":                          {400, "namespace"},
		"?namespace=shop&name=%00&uid=%2F..": {200, `"uid":"/.."`},
	} {
		if code, text := get(t, client, agentapi.PodPath+path); code != want.code || !strings.Contains(text, want.text) {
			t.Errorf("%s: %d %s", path, code, text)
		}
	}
	if n := testutil.ToFloat64(m.queries.WithLabelValues("found")); n != 2 {
		t.Errorf("%v pods were found by the metric", n)
	}
}

func TestResultsAreCountedWithLimitedCardinality(t *testing.T) {
	m := NewMetrics(nil, nil)
	var told []agentapi.Result
	client := serve(t, ServerConfig{Metrics: m, OnResult: func(r agentapi.Result) { told = append(told, r) }})
	for _, r := range []agentapi.Result{
		{Command: "ADD", Outcome: agentapi.Captured, Seconds: .004, UID: "u"},
		{Command: "ADD", Outcome: agentapi.Failed, Seconds: .5},
		{Command: "rm -rf", Outcome: "x", Seconds: -1},
		{Command: "rm -rf /", Outcome: "y", Seconds: 1e300},
	} {
		if code := post(t, client, agentapi.ResultPath, r); code != http.StatusNoContent {
			t.Errorf("%+v: %d", r, code)
		}
	}
	if a, b := testutil.ToFloat64(m.commands.WithLabelValues("ADD", "captured")), testutil.ToFloat64(m.commands.WithLabelValues("other", "other")); a != 1 || b != 2 {
		t.Errorf("the counters are %v and %v", a, b)
	}
	if n := testutil.CollectAndCount(m.seconds); n != 2 {
		t.Errorf("%d histograms", n)
	}
	if len(told) != 4 || told[0].UID != "u" {
		t.Errorf("told %+v", told)
	}
}

func TestPluginsLogIsForwardedAndLimited(t *testing.T) {
	out := &testenv.Buffer{}
	client := serve(t, ServerConfig{Metrics: NewMetrics(nil, nil), Logger: slog.New(slog.NewTextHandler(out, nil))})
	entries := []agentapi.LogEntry{
		{Level: "WARN", Message: "something is odd", Attributes: map[string]json.RawMessage{"pod": json.RawMessage(`"shop/web"`), "n": json.RawMessage(`3`)}},
		{Level: "DEBUG", Message: "too much detail"},
		{Level: "nonsense", Message: strings.Repeat("a", 1<<20)},
	}
	if code := post(t, client, agentapi.LogPath, entries); code != http.StatusNoContent {
		t.Error(code)
	}
	text := out.String()
	if !strings.Contains(text, `level=WARN msg="something is odd" component=cni-plugin n=3 pod=shop/web`) {
		t.Error(text[:min(len(text), 500)])
	}
	if strings.Contains(text, "too much detail") || len(text) > 4*maxText {
		t.Errorf("%d bytes were written", len(text))
	}
	if code := post(t, client, agentapi.LogPath, strings.Repeat("a", agentapi.MaxBody)); code != http.StatusBadRequest {
		t.Errorf("status for an endless log request: %d", code)
	}
}

func TestStatusReportsTheAgentsHealth(t *testing.T) {
	now := health.Condition{Reason: "the node's pods have not been listed yet"}
	client := serve(t, ServerConfig{Metrics: NewMetrics(nil, nil), Health: func() health.Condition { return now }})
	if code, text := get(t, client, agentapi.StatusPath); code != 503 || !strings.Contains(text, "not been listed yet") {
		t.Errorf("%d %s", code, text)
	}
	now = health.Healthy
	if code, _ := get(t, client, agentapi.StatusPath); code != 200 {
		t.Error(code)
	}
}

func TestSecondAgentDoesNotReplaceTheSocket(t *testing.T) {
	c := ServerConfig{RunDir: t.TempDir(), Metrics: NewMetrics(nil, nil), Logger: quiet}
	first, err := NewServer(c)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = first.listener.Close() }()
	if _, err := NewServer(c); err == nil {
		t.Error("a second agent can listen on the same socket")
	}
}

func TestRemovedSocketIsRecreated(t *testing.T) {
	c := ServerConfig{RunDir: filepath.Join(t.TempDir(), "run"), Metrics: NewMetrics(nil, nil), Health: func() health.Condition { return health.Healthy },
		Recheck: time.Millisecond, Logger: quiet}
	s, err := NewServer(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Run(ctx) }()
	defer func() { cancel(); <-done }()
	for range 2 {
		if err := os.Rename(c.RunDir, filepath.Join(t.TempDir(), "lost")); err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, "an answer", func() error {
			client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(c.RunDir, agentapi.SocketName))
			}}}
			response, err := client.Get("http://agent" + agentapi.StatusPath)
			if err == nil {
				_ = response.Body.Close()
			}
			return err
		})
	}
}

func TestMetricNamesAreComplete(t *testing.T) {
	m := NewMetrics(NewCache(CacheConfig{Logger: quiet}), func() health.Condition { return health.Healthy })
	for _, vector := range []*prometheus.CounterVec{m.Installs, m.Conflicts, m.Checks, m.Events, m.queries} {
		vector.WithLabelValues("x").Inc()
	}
	m.Repairs.WithLabelValues("x", "y").Inc()
	m.count(&agentapi.Result{Command: "ADD", Outcome: agentapi.Captured})
	families, err := m.Gatherer().Gather()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range families {
		if n := f.GetName(); !strings.HasPrefix(n, "go_") && !strings.HasPrefix(n, "process_") {
			names = append(names, n)
		}
	}
	if got, want := strings.Join(names, " "), strings.Join(MetricNames(), " "); got != want {
		t.Errorf("registered metrics\n%s, MetricNames returns\n%s", got, want)
	}
}
