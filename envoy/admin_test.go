package envoy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

func TestAdminReportsInfoOfEachEnvoyVersion(t *testing.T) {
	for _, v := range []string{testenv.EnvoyVersion, testenv.OldEnvoyVersion} {
		t.Run(v, func(t *testing.T) {
			p, admin := startEnvoy(t, staticBootstrap, func(c *Config) { c.Path = testenv.EnvoyOf(t, v) })
			waitReady(t, p, admin)
			ctx := t.Context()
			if state, err := admin.State(ctx); state != "LIVE" || err != nil {
				t.Errorf("Ready = %q, %v", state, err)
			}
			if info, err := admin.ServerInfo(ctx); err != nil || info.Version != v || info.State != "LIVE" || info.Concurrency != 1 {
				t.Errorf("ServerInfo = %+v, %v", info, err)
			}
			stats, err := admin.Stats(ctx, `^listener_manager\.(workers_started|total_listeners_active)$`)
			if err != nil || len(stats) != 2 || stats["listener_manager.workers_started"] != 1 {
				t.Errorf("Stats = %v, %v", stats, err)
			}
			counters, err := admin.Counters(ctx, `^listener_manager\.(listener_create_success|total_listeners_active)$`)
			if err != nil || len(counters) != 1 || counters["listener_manager.listener_create_success"] != 1 { // the other is a gauge
				t.Errorf("Counters = %v, %v", counters, err)
			}
			if dump, err := admin.ConfigDump(ctx, ""); err != nil || !strings.Contains(string(dump), `"echo"`) {
				t.Errorf("ConfigDump = %.100s, %v", dump, err)
			}
			if certs, err := admin.Certs(ctx); err != nil || !strings.Contains(string(certs), "certificates") {
				t.Errorf("Certs = %s, %v", certs, err)
			}
			if err := errors.Join(admin.SetLogLevel(ctx, "info"), admin.SetLogLevel(ctx, "upstream:debug,config:trace")); err != nil {
				t.Error(err)
			}
			if err := admin.SetLogLevel(ctx, "loud"); err == nil {
				t.Error("an unknown log level was accepted")
			}
		})
	}
}

func TestQuitEndsEnvoy(t *testing.T) {
	p, admin := startEnvoy(t, staticBootstrap)
	waitReady(t, p, admin)
	if err := admin.Quit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if e := p.Exit(); e.Reason != Exited || e.ExitCode() != 0 {
		t.Errorf("Exit = %+v", e)
	}
	_, err := admin.State(t.Context())
	if !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, syscall.ENOENT) {
		t.Errorf("afterwards Ready = %v", err)
	}
}

// Each drain runs on its own Envoy, because a second drain would cancel the first.
func TestDrainFollowsItsOptions(t *testing.T) {
	bootstrap := strings.Replace(staticBootstrap, "- name: echo", "- name: echo\n    traffic_direction: INBOUND", 1)
	outbound := strings.Replace(staticBootstrap, "- name: echo", "- name: echo\n    traffic_direction: OUTBOUND", 1)
	for _, c := range []struct {
		name, bootstrap string
		drain           DrainOptions
		closed          bool
	}{
		{"all", bootstrap, DrainOptions{}, true},
		{"inbound only", bootstrap, DrainOptions{InboundOnly: true}, true},
		{"inbound only, outbound listener", outbound, DrainOptions{InboundOnly: true}, false},
		{"kept open", bootstrap, DrainOptions{Graceful: true, SkipExit: true}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, admin := startEnvoy(t, c.bootstrap)
			waitReady(t, p, admin)
			if err := admin.DrainListeners(t.Context(), c.drain); err != nil {
				t.Fatal(err)
			}
			stopped := func() bool {
				stats, err := admin.Stats(t.Context(), `^listener_manager\.listener_stopped$`)
				return err == nil && stats["listener_manager.listener_stopped"] > 0
			}
			if c.closed {
				eventually(t, "a stopped listener", stopped)
			} else if stopped() {
				t.Error("the listener was stopped")
			}
		})
	}
}

func TestInvalidAdminResponsesAreErrors(t *testing.T) {
	release := make(chan struct{})
	mux := http.NewServeMux()
	mux.HandleFunc("/ready", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, maxResponse+1)) })
	mux.HandleFunc("/server_info", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, "{torn") })
	mux.HandleFunc("/stats", func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
	})
	mux.HandleFunc("/quitquitquit", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no such luck\nmore", http.StatusTeapot) })
	server := httptest.NewServer(mux)
	defer server.Close()
	defer close(release)
	admin := NewAdmin(strings.TrimPrefix(server.URL, "http://"))
	defer admin.Close()

	if _, err := admin.State(t.Context()); err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Errorf("too long: %v", err)
	}
	if _, err := admin.ServerInfo(t.Context()); err == nil || !strings.Contains(err.Error(), admin.Address()) {
		t.Errorf("broken: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := admin.Stats(ctx, ""); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("late: %v", err)
	}
	ctx, cancelCounters := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancelCounters()
	if _, err := admin.Counters(ctx, ""); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("late counters: %v", err)
	}
	var status *StatusError
	if err := admin.Quit(t.Context()); !errors.As(err, &status) || status.Status != http.StatusTeapot || status.Body != "no such luck" {
		t.Errorf("refused: %v", err)
	}
}

func TestAdminSupportsEveryAddressForm(t *testing.T) {
	t.Chdir(t.TempDir())
	socket, err := net.Listen("unix", "admin.sock")
	if err != nil {
		t.Fatal(err)
	}
	tcp, err := net.Listen("tcp", "127.41.1.2:0")
	if err != nil {
		t.Fatal(err)
	}
	live := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "LIVE") })}
	defer func() { _ = live.Close() }()
	go func() { _ = live.Serve(socket) }()
	go func() { _ = live.Serve(tcp) }()
	here, _ := os.Getwd()
	for _, addr := range []string{"unix:admin.sock", "./admin.sock", filepath.Join(here, "admin.sock"), "unix://" + filepath.Join(here, "admin.sock"), tcp.Addr().String()} {
		admin := NewAdmin(addr)
		if state, err := admin.State(t.Context()); state != "LIVE" || err != nil {
			t.Errorf("%s: %q, %v", addr, state, err)
		}
		if counters, err := admin.Counters(t.Context(), ""); len(counters) != 0 || err != nil {
			t.Errorf("%s: %v, %v", addr, counters, err)
		}
		admin.Close()
	}
}

func TestRedactedConfigDumpHasSameStructure(t *testing.T) {
	bootstrap := strings.Replace(staticBootstrap, "admin:", `node: {id: a, cluster: b, metadata: {DB_PASSWORD: very-hidden, TEAM: books}}
admin:`, 1)
	p, admin := startEnvoy(t, bootstrap)
	waitReady(t, p, admin)
	var out bytes.Buffer
	if err := admin.RedactedConfigDump(t.Context(), "", 8<<20, &out); err != nil {
		t.Fatal(err)
	}
	if text := out.String(); strings.Contains(text, "very-hidden") || !strings.Contains(text, "books") || !strings.Contains(text, `"echo"`) {
		t.Errorf("the dump: %s", text)
	}
	if !json.Valid(out.Bytes()) {
		t.Error("the redacted dump is not JSON")
	}
	if err := admin.RedactedConfigDump(t.Context(), "", 100, &out); err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Errorf("a dump larger than the limit: %v", err)
	}
}
