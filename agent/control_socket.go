package agent

import (
	"bytes"
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

	"github.com/pilotfish-mesh/pilotfish/agent/config"
	"github.com/pilotfish-mesh/pilotfish/internal/uds"
)

// ControlBaseURL is the base URL of requests on the control socket.
const ControlBaseURL = "http://agent"

const (
	// maxRequestBody is the maximum size of a request body.
	maxRequestBody  = 64 << 10
	maxResponseBody = 1 << 20
	// controlGracePeriod is how long the agent waits for active requests on the control socket when it stops.
	controlGracePeriod = 500 * time.Millisecond
)

// controlServer serves the requests that change a running agent, on a unix socket that only root and the agent's user
// may open. It also serves the status port's requests and debug pages.
type controlServer struct {
	socket string
	logger *slog.Logger
	mux    *http.ServeMux
}

func newControlServer(c *config.Config, logger *slog.Logger) *controlServer {
	return &controlServer{
		socket: config.ControlPath(c.Proxy.GetConfigPath()),
		logger: logger.With("part", "control"),
		mux:    http.NewServeMux(),
	}
}

// Handle registers a handler for a pattern of http.ServeMux. It must be called before the agent runs. The size of
// request bodies is limited. There is no response timeout; the request's context ends when the client disconnects.
func (c *controlServer) Handle(pattern string, h http.Handler) { c.mux.Handle(pattern, h) }

func (c *controlServer) component() component {
	return component{name: "control", run: c.run, restart: true}
}

func (c *controlServer) run(ctx context.Context) error {
	listener, err := uds.Listen(c.socket, 0o600)
	if err != nil {
		return err
	}
	users := uds.Users{uint32(os.Geteuid()), 0}
	server := &http.Server{
		Handler:           http.MaxBytesHandler(c.mux, maxRequestBody),
		ReadHeaderTimeout: 5 * time.Second,
		IdleTimeout:       10 * time.Second,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(c.logger.Handler(), slog.LevelDebug),
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(uds.FilterPeers(listener, users, c.logger)) }()
	select {
	case err := <-served:
		return fmt.Errorf("control socket %s: %w", c.socket, err)
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), controlGracePeriod)
	defer cancel()
	if server.Shutdown(grace) != nil {
		_ = server.Close()
	}
	<-served
	return nil
}

// jsonHandler returns a handler that decodes the JSON request body, calls do, and encodes the result as JSON. For an
// error, the handler responds with status 400, or with the status that the error's method HTTPStatus returns.
func jsonHandler[In, Out any](do func(context.Context, In) (Out, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var in In
		d := json.NewDecoder(r.Body)
		d.DisallowUnknownFields()
		if err := d.Decode(&in); err != nil && !errors.Is(err, io.EOF) {
			writeError(w, fmt.Errorf("reading the request: %w", err))
			return
		}
		out, err := do(r.Context(), in)
		if err != nil {
			writeError(w, err)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(out)
	})
}

// httpError is an error with its own HTTP status, for example 409 for a request that is not possible now.
type httpError struct {
	error
	status int
}

func (r httpError) Unwrap() error { return r.error }

// HTTPStatus returns the status of the response.
func (r httpError) HTTPStatus() int { return r.status }

func writeError(w http.ResponseWriter, err error) {
	status := http.StatusBadRequest
	var r interface{ HTTPStatus() int }
	if errors.As(err, &r) {
		status = r.HTTPStatus()
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, err.Error())
}

// ControlClient is a client of a running agent's control socket.
type ControlClient struct {
	socket string
	http   *http.Client
}

// DialControl returns a client for the agent that runs with configPath. The client connects when a request is sent.
func DialControl(configPath string) *ControlClient {
	c := &ControlClient{socket: config.ControlPath(configPath)}
	c.http = &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", c.socket)
		},
	}}
	return c
}

// HTTPClient returns an HTTP client that sends all requests to the control socket. timeout applies to each request.
func (c *ControlClient) HTTPClient(timeout time.Duration) *http.Client {
	return &http.Client{Transport: c.http.Transport, Timeout: timeout}
}

// IsReachable reports whether an agent accepts connections on its control socket.
func (c *ControlClient) IsReachable(ctx context.Context) bool {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", c.socket)
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

// Call sends in as JSON and decodes the response into out; either may be nil. Only ctx limits the duration.
func (c *ControlClient) Call(ctx context.Context, method, path string, in, out any) error {
	body := io.Reader(http.NoBody)
	if in != nil {
		text, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("encoding the request: %w", err)
		}
		body = bytes.NewReader(text)
	}
	request, err := http.NewRequestWithContext(ctx, method, ControlBaseURL+path, body)
	if err != nil {
		return err
	}
	response, err := c.http.Do(request)
	if err != nil {
		return c.explainDialError(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxResponseBody))
	switch {
	case err != nil:
		return fmt.Errorf("reading the agent's response: %w", err)
	case response.StatusCode == http.StatusNotFound:
		return fmt.Errorf("the agent at %s does not support %s %s: the agent runs another version of pilotfish", c.socket, method, path)
	case response.StatusCode >= http.StatusInternalServerError:
		return errors.New(strings.TrimSpace(string(text)))
	case response.StatusCode != http.StatusOK:
		return fmt.Errorf("the agent refuses the request: %s", strings.TrimSpace(string(text)))
	case out == nil:
		return nil
	}
	if err := json.Unmarshal(text, out); err != nil {
		return fmt.Errorf("reading the agent's response: %w", err)
	}
	return nil
}

// explainDialError returns an error with the remedy for an agent that cannot be reached.
func (c *ControlClient) explainDialError(err error) error {
	var call *url.Error
	if errors.As(err, &call) {
		err = call.Err
	}
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("no agent responds at %s: start the agent, run this command in its working directory, or set --config-path", c.socket)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("the agent at %s belongs to another user: run this command as that user or as root", c.socket)
	}
	return fmt.Errorf("connecting to the agent at %s: %w", c.socket, err)
}
