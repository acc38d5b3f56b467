package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"
	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/agent/config"
)

type greeting struct{ Name string }

// startControl runs a control socket in its own directory until the test ends or stop is called.
func startControl(t *testing.T, add func(*controlServer)) (dir string, stop func()) {
	t.Helper()
	dir = t.TempDir()
	c := newControlServer(&config.Config{Proxy: &meshv1.ProxyConfig{ConfigPath: dir}}, slog.New(slog.DiscardHandler))
	add(c)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.run(ctx) }()
	stop = func() {
		cancel()
		if err, ok := <-done; ok && err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(func() { cancel() })
	eventually(t, "the socket", func() error { _, err := os.Stat(filepath.Join(dir, "control")); return err })
	return dir, stop
}

func TestRequestsUseControlSocket(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	dir, stop := startControl(t, func(c *controlServer) {
		c.Handle("POST /greet", jsonHandler(func(_ context.Context, g greeting) (greeting, error) {
			switch g.Name {
			case "":
				return g, errors.New("nobody to greet")
			case "busy":
				return g, httpError{errors.New("not now"), http.StatusConflict}
			}
			return greeting{"hello " + g.Name}, nil
		}))
	})
	client := DialControl(dir)
	var got greeting
	if err := client.Call(t.Context(), "POST", "/greet", greeting{"Ada"}, &got); err != nil || got.Name != "hello Ada" {
		t.Errorf("%v, %v", got, err)
	}
	for want, order := range map[string]any{
		"nobody to greet": greeting{},
		"not now":         greeting{"busy"},
		"unknown field":   map[string]string{"Nam": "x"},
		"too large":       greeting{strings.Repeat("x", maxRequestBody)},
	} {
		if err := client.Call(t.Context(), "POST", "/greet", order, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	if err := client.Call(t.Context(), "POST", "/what", nil, nil); err == nil || !strings.Contains(err.Error(), "another version") {
		t.Errorf("a request that the agent does not support: %v", err)
	}
	stop()
	if _, err := os.Stat(filepath.Join(dir, "control")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left behind (%v)", err)
	}
	if err := client.Call(t.Context(), "POST", "/greet", greeting{"Ada"}, nil); err == nil || !strings.Contains(err.Error(), "--config-path") {
		t.Errorf("without an agent: %v", err)
	}
}

func TestControlSocketIsPrivate(t *testing.T) {
	dir, stop := startControl(t, func(*controlServer) {})
	defer stop()
	info, err := os.Stat(filepath.Join(dir, "control"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v: want mode 0600", info, err)
	}
	if err := DialControl(dir).explainDialError(fmt.Errorf("dial: %w", syscall.EACCES)); !strings.Contains(err.Error(), "as root") {
		t.Errorf("the remedy is missing: %v", err)
	}
}
