package agent

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/pilotfish-mesh/pilotfish/internal/uds"
)

const (
	controlSocket = "control"
	// mostOrder is the largest body that an order may have, and mostReport the largest answer that a command reads.
	mostOrder  = 64 << 10
	mostReport = 1 << 20
	// controlGrace is how long answers that are under way may take once the agent ends.
	controlGrace = 500 * time.Millisecond
)

// control takes the orders that change a running agent, on a unix socket that only the agent's own user and root may
// open. On TCP there is no more than the status port's /drain and /quitquitquit.
type control struct {
	socket string
	logger *slog.Logger
	mux    *http.ServeMux
}

func newControl(c *Config, logger *slog.Logger) *control {
	return &control{
		socket: controlPath(c.Proxy.GetConfigPath()),
		logger: logger.With("part", "control"),
		mux:    http.NewServeMux(),
	}
}

// controlPath is the socket's place in an agent's directory.
func controlPath(configPath string) string {
	return socketPath(cmp.Or(configPath, defaultConfigPath), controlSocket)
}

// Handle adds what answers to a pattern of http.ServeMux. It is to be called before the agent runs. The body of a request
// is bounded; how long an answer takes is not, since an order may take its time: its context ends when the caller goes.
func (c *control) Handle(pattern string, h http.Handler) { c.mux.Handle(pattern, h) }

func (c *control) part() part { return part{name: "control", run: c.run, restart: true} }

func (c *control) run(ctx context.Context) error {
	listener, err := uds.Listen(c.socket, 0o600)
	if err != nil {
		return err
	}
	users := uds.Users{uint32(os.Geteuid()), 0}
	server := &http.Server{
		Handler:           http.MaxBytesHandler(c.mux, mostOrder),
		ReadHeaderTimeout: 5 * time.Second,
		IdleTimeout:       10 * time.Second,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(c.logger.Handler(), slog.LevelDebug),
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(uds.Only(listener, users, c.logger)) }()
	select {
	case err := <-served:
		return fmt.Errorf("control socket %s: %w", c.socket, err)
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), controlGrace)
	defer cancel()
	if server.Shutdown(grace) != nil {
		_ = server.Close()
	}
	<-served
	return nil
}

// answer turns a function into a handler: its JSON comes in as the order, what it gives goes out as JSON. An error is the
// caller's, and answered as 400, unless it is a refusal with a status of its own.
func answer[In, Out any](do func(context.Context, In) (Out, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var in In
		d := json.NewDecoder(r.Body)
		d.DisallowUnknownFields()
		if err := d.Decode(&in); err != nil && !errors.Is(err, io.EOF) {
			refuse(w, fmt.Errorf("reading the order: %w", err))
			return
		}
		out, err := do(r.Context(), in)
		if err != nil {
			refuse(w, err)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(out)
	})
}

// refusal is an error that an order is answered with under a status of its own: 409, say, for what cannot be done now.
type refusal struct {
	error
	status int
}

func (r refusal) Unwrap() error { return r.error }

func refuse(w http.ResponseWriter, err error) {
	status := http.StatusBadRequest
	var r refusal
	if errors.As(err, &r) {
		status = r.status
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, err.Error())
}

// addConfigPath is the flag by which a command finds the agent it speaks to.
func addConfigPath(f *pflag.FlagSet, path *string) {
	f.StringVar(path, "config-path", defaultConfigPath, "the running agent's configPath, where its control socket is")
}

// controlClient speaks to a running agent.
type controlClient struct {
	socket string
	http   *http.Client
}

// dialControl makes a client for the agent with that configPath. It connects with the first call.
func dialControl(configPath string) *controlClient {
	c := &controlClient{socket: controlPath(configPath)}
	c.http = &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", c.socket)
		},
	}}
	return c
}

// call gives an order as JSON, and reads the answer into out; either may be nil. The context bounds it.
func (c *controlClient) call(ctx context.Context, method, path string, in, out any) error {
	body := io.Reader(http.NoBody)
	if in != nil {
		text, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("writing the order: %w", err)
		}
		body = bytes.NewReader(text)
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://agent"+path, body)
	if err != nil {
		return err
	}
	response, err := c.http.Do(request)
	if err != nil {
		return c.explain(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, mostReport))
	switch {
	case err != nil:
		return fmt.Errorf("reading the agent's answer: %w", err)
	case response.StatusCode == http.StatusNotFound:
		return fmt.Errorf("the agent at %s does not know %s %s: it is of another version", c.socket, method, path)
	case response.StatusCode >= http.StatusInternalServerError:
		return errors.New(strings.TrimSpace(string(text)))
	case response.StatusCode != http.StatusOK:
		return fmt.Errorf("the agent refuses: %s", strings.TrimSpace(string(text)))
	case out == nil:
		return nil
	}
	if err := json.Unmarshal(text, out); err != nil {
		return fmt.Errorf("reading the agent's answer: %w", err)
	}
	return nil
}

// explain says what to do about an agent that cannot be reached.
func (c *controlClient) explain(err error) error {
	var call *url.Error
	if errors.As(err, &call) {
		err = call.Err
	}
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("no agent answers at %s: start it, or run this where it was started, or name its directory with --config-path", c.socket)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("the agent at %s belongs to another user: run this as that user or as root", c.socket)
	}
	return fmt.Errorf("asking the agent at %s: %w", c.socket, err)
}
