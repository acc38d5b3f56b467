package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pilotfish-mesh/pilotfish/agent/config"
	"github.com/pilotfish-mesh/pilotfish/internal/probe"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// runHealthCheck runs a health check with scripted probe results and returns its reports. The script has one letter per
// period: w (healthy), u (unhealthy), p (the proxy is not ready).
func runHealthCheck(t *testing.T, c config.HealthCheck, story string) []string {
	t.Helper()
	var reports []string
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		start, i := time.Now(), 0
		now := func() string { return time.Since(start).String() }
		h := &healthCheck{
			config: c,
			logger: slog.New(slog.DiscardHandler),
			proxy: func() (bool, string) {
				if i == len(story) {
					cancel()
				} else if story[i] == 'p' {
					i++
					return false, "listeners are missing"
				}
				return true, ""
			},
			probe: func(ctx context.Context, _ probe.Spec) error {
				if ctx.Err() != nil {
					return ctx.Err()
				}
				i++
				if story[i-1] == 'u' {
					return errors.New("no database")
				}
				return nil
			},
			report: func(healthy bool, message string) {
				reports = append(reports, strings.TrimSpace(fmt.Sprint(now(), " ", healthy, " ", message)))
			},
		}
		if err := h.run(ctx); err != nil {
			t.Errorf("run = %v", err)
		}
	})
	return reports
}

func TestHealthIsReportedWhenItChanges(t *testing.T) {
	once := config.HealthCheck{Period: 10 * time.Second, SuccessThreshold: 1, FailureThreshold: 1}
	strict := config.HealthCheck{Period: time.Second, SuccessThreshold: 2, FailureThreshold: 3}
	delayed := once
	delayed.InitialDelay = 7 * time.Second
	for _, c := range []struct {
		name   string
		config config.HealthCheck
		story  string
		want   []string
	}{
		{"well from the start", once, "wwww", []string{"0s true"}},
		{"a change each", once, "wuuw", []string{"0s true", "10s false no database", "30s true"}},
		{"unwell from the start", once, "uuw", []string{"0s false no database", "20s true"}},
		{"delay", delayed, "ww", []string{"7s true"}},
		{"one failure of three", strict, "wwuuwuuw", []string{"1s true"}},
		{"thresholds", strict, "wwuuuwuww", []string{"1s true", "4s false no database", "8s true"}},
		{"the proxy starts", once, "ppppw", []string{"40s true"}},
		{"the proxy fails later", once, "wpw", []string{"0s true", "10s false the proxy is not ready: listeners are missing", "20s true"}},
		{"nothing", once, "", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := runHealthCheck(t, c.config, c.story); !slices.Equal(got, c.want) {
				t.Errorf("%s:\n got %q\nwant %q", c.story, got, c.want)
			}
		})
	}
}

func TestDrainIsReportedAtOnceAndEndsTheProbes(t *testing.T) {
	for _, c := range []struct {
		name   string
		result error
		want   []string
	}{
		{"well", nil, []string{"0s true ", "13s false the proxy is draining"}},
		{"unwell already", errors.New("no database"), []string{"0s false no database"}},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			draining, start, probes := make(chan struct{}), time.Now(), 0
			var reports []string
			h := &healthCheck{
				config:   config.HealthCheck{Period: 10 * time.Second, SuccessThreshold: 1, FailureThreshold: 1},
				logger:   slog.New(slog.DiscardHandler),
				proxy:    func() (bool, string) { return true, "" },
				draining: draining,
				probe:    func(context.Context, probe.Spec) error { probes++; return c.result },
				report: func(healthy bool, message string) {
					reports = append(reports, fmt.Sprint(time.Since(start), " ", healthy, " ", message))
				},
			}
			time.AfterFunc(13*time.Second, func() { close(draining) })
			time.AfterFunc(time.Minute, cancel)
			if err := h.run(ctx); err != nil || time.Since(start) != time.Minute {
				t.Errorf("%s: run = %v after %v", c.name, err, time.Since(start))
			}
			if !slices.Equal(reports, c.want) || probes != 2 {
				t.Errorf("%s: %q after %d probes, want %q", c.name, reports, probes, c.want)
			}
		})
	}
}

// The control plane may still consider the workload healthy, because of a report before a restart of the agent.
func TestDrainBeforeAnyVerdictIsReported(t *testing.T) {
	for name, c := range map[string]config.HealthCheck{
		"before the first probe": {InitialDelay: 40 * time.Second, Period: 10 * time.Second, SuccessThreshold: 1, FailureThreshold: 1},
		"before the threshold":   {Period: 10 * time.Second, SuccessThreshold: 9, FailureThreshold: 9},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			draining, start := make(chan struct{}), time.Now()
			var reports []string
			h := &healthCheck{
				config: c, logger: slog.New(slog.DiscardHandler), draining: draining,
				proxy:  func() (bool, string) { return true, "" },
				probe:  func(context.Context, probe.Spec) error { return nil },
				report: func(healthy bool, _ string) { reports = append(reports, fmt.Sprint(time.Since(start), " ", healthy)) },
			}
			time.AfterFunc(13*time.Second, func() { close(draining) })
			time.AfterFunc(time.Minute, cancel)
			if err := h.run(ctx); err != nil || !slices.Equal(reports, []string{"13s false"}) {
				t.Errorf("%s: %v, reports %q", name, err, reports)
			}
		})
	}
}

func TestReadinessProbeIsParsed(t *testing.T) {
	testenv.InDir(t, nil)
	for _, c := range []struct {
		name, yaml string
		want       config.HealthCheck
	}{
		{"http", `{httpGet: {port: 8080}}`,
			config.HealthCheck{Probe: probe.Spec{HTTP: &probe.HTTP{Host: "localhost", Port: 8080, Header: map[string][]string{}}, Timeout: time.Second}, Period: 10 * time.Second, SuccessThreshold: 1, FailureThreshold: 1}},
		{"all of http", `{initialDelaySeconds: 3, timeoutSeconds: 2, periodSeconds: 5, successThreshold: 4, failureThreshold: 6,
			httpGet: {host: 127.0.0.9, port: 8443, scheme: HTTPS, path: /ok, httpHeaders: [{name: a, value: b}, {name: A, value: c}]}}`,
			config.HealthCheck{Probe: probe.Spec{HTTP: &probe.HTTP{TLS: true, Host: "127.0.0.9", Port: 8443, Path: "/ok", Header: map[string][]string{"A": {"b", "c"}}}, Timeout: 2 * time.Second},
				InitialDelay: 3 * time.Second, Period: 5 * time.Second, SuccessThreshold: 4, FailureThreshold: 6}},
		{"tcp", `{tcpSocket: {port: 5432}}`,
			config.HealthCheck{Probe: probe.Spec{TCP: &probe.TCP{Host: "localhost", Port: 5432}, Timeout: time.Second}, Period: 10 * time.Second, SuccessThreshold: 1, FailureThreshold: 1}},
		{"grpc", `{grpc: {port: 9090, service: books}}`,
			config.HealthCheck{Probe: probe.Spec{GRPC: &probe.GRPC{Host: "localhost", Port: 9090, Service: "books"}, Timeout: time.Second}, Period: 10 * time.Second, SuccessThreshold: 1, FailureThreshold: 1}},
		{"exec", `{exec: {command: [check, -q]}}`,
			config.HealthCheck{Probe: probe.Spec{Exec: &probe.Exec{Command: []string{"check", "-q"}}, Timeout: time.Second}, Period: 10 * time.Second, SuccessThreshold: 1, FailureThreshold: 1}},
	} {
		got := resolve(t, env("PROXY_CONFIG={readinessProbe: "+c.yaml+"}"))
		if got.HealthCheck == nil {
			t.Fatalf("%s: nothing", c.name)
		}
		if diff := cmp.Diff(c.want, *got.HealthCheck); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
		if len(got.Warnings) != 0 {
			t.Errorf("%s: warnings %q", c.name, got.Warnings)
		}
	}
	if got := resolve(t, env("")); got.HealthCheck != nil {
		t.Errorf("an unrequested health check: %+v", got.HealthCheck)
	}
}

func TestInvalidReadinessProbeIsRejected(t *testing.T) {
	testenv.InDir(t, nil)
	for yaml, want := range map[string]string{
		"{}":                                "one of httpGet, tcpSocket, grpc and exec",
		"{httpGet: {path: /}}":              "port: 0",
		"{tcpSocket: {port: 70000}}":        "port: 70000",
		"{grpc: {service: x}}":              "port: 0",
		"{exec: {}}":                        "exec has no command",
		"{httpGet: {port: 1, scheme: ftp}}": `scheme: "ftp"`,
		"{periodSeconds: -1, tcpSocket: {port: 1}}":    "periodSeconds: -1",
		"{failureThreshold: -2, exec: {command: [x]}}": "failureThreshold: -2",
	} {
		_, err := config.Resolve(env("PROXY_CONFIG={readinessProbe: " + yaml + "}"))
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "readinessProbe (environment PROXY_CONFIG)") {
			t.Errorf("%s: %v, want %s", yaml, err, want)
		}
	}
}
