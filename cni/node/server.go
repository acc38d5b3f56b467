package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/pilotfish-mesh/pilotfish/cni/agentapi"
	"github.com/pilotfish-mesh/pilotfish/internal/health"
	"github.com/pilotfish-mesh/pilotfish/internal/uds"
)

const (
	// podTimeout is the timeout of the lookup for one pod request.
	podTimeout = 10 * time.Second
	// maxLines limits the log lines of one request from the plugin.
	maxLines = 1000
	// maxText limits the length of a log message or an attribute, in bytes.
	maxText = 8 << 10
)

// ServerConfig is the configuration of a Server.
type ServerConfig struct {
	RunDir string
	// Pod returns a pod, ErrNoSuchPod, or another error if the lookup failed.
	Pod func(ctx context.Context, namespace, name, uid string) (*agentapi.Pod, error)
	// Health reports whether the agent can serve pods to the plugin.
	Health  health.Check
	Metrics *Metrics
	// OnResult is called with the result of each CNI command. It must not block. It may be nil.
	OnResult func(agentapi.Result)
	// Recheck is the interval at which the server checks that the socket file exists; 0 means 5 s.
	Recheck time.Duration
	Logger  *slog.Logger
}

// Server serves package agentapi's protocol to the CNI plugin on a unix socket.
type Server struct {
	config   ServerConfig
	listener net.Listener
	http     *http.Server
}

// NewServer creates the socket. Only root and the agent's own user can connect.
func NewServer(c ServerConfig) (*Server, error) {
	if c.Recheck == 0 {
		c.Recheck = 5 * time.Second
	}
	s := &Server{config: c}
	var err error
	if s.listener, err = s.listen(); err != nil {
		return nil, err
	}
	s.http = &http.Server{
		Handler:           s.handler(),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       15 * time.Second,
		WriteTimeout:      podTimeout + 15*time.Second,
		IdleTimeout:       30 * time.Second,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(c.Logger.Handler(), slog.LevelDebug),
	}
	return s, nil
}

func (s *Server) listen() (net.Listener, error) {
	if err := os.MkdirAll(s.config.RunDir, 0o755); err != nil {
		return nil, fmt.Errorf("creating the run directory of the CNI plugin: %w", err)
	}
	listener, err := uds.Listen(s.socket(), 0o600)
	if err != nil {
		return nil, err
	}
	return uds.FilterPeers(listener, uds.Users{0, uint32(os.Geteuid())}, s.config.Logger), nil
}

func (s *Server) socket() string { return filepath.Join(s.config.RunDir, agentapi.SocketName) }

func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+agentapi.PodPath, s.pod)
	mux.HandleFunc("POST "+agentapi.LogPath, s.log)
	mux.HandleFunc("POST "+agentapi.ResultPath, s.result)
	mux.HandleFunc("GET "+agentapi.StatusPath, s.status)
	return mux
}

// Run serves requests until the context ends, and then waits for open requests. It recreates the socket if another
// program removes the file or its directory.
func (s *Server) Run(ctx context.Context) error {
	failed := make(chan error, 1)
	var serving sync.WaitGroup
	serve := func(l net.Listener) {
		serving.Go(func() {
			if err := s.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				select {
				case failed <- err:
				default:
				}
			}
		})
	}
	serve(s.listener)
	recheck := time.NewTicker(s.config.Recheck)
	defer recheck.Stop()
	var err error
	for err == nil {
		select {
		case <-ctx.Done():
			err = ctx.Err()
		case err = <-failed:
			err = fmt.Errorf("serving the CNI plugin: %w", err)
		case <-recheck.C:
			if l := s.listenAgain(); l != nil {
				serve(l)
			}
		}
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), podTimeout)
	defer cancel()
	_ = s.http.Shutdown(last)
	serving.Wait()
	return err
}

// listenAgain returns a new listener if the socket file does not exist, and nil otherwise or on failure.
func (s *Server) listenAgain() net.Listener {
	if _, err := os.Lstat(s.socket()); !errors.Is(err, os.ErrNotExist) {
		return nil
	}
	l, err := s.listen()
	if err != nil {
		s.config.Logger.Warn("the CNI plugin's socket was removed and cannot be recreated", "error", err)
		return nil
	}
	s.config.Logger.Info("the CNI plugin's socket was removed; recreating it", "socket", s.socket())
	return l
}

func (s *Server) pod(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	namespace, name := q.Get("namespace"), q.Get("name")
	if namespace == "" || name == "" {
		s.refuse(w, http.StatusBadRequest, "invalid", errors.New("the request must specify a pod's namespace and name"))
		return
	}
	ctx, cancel := context.WithTimeoutCause(r.Context(), podTimeout, fmt.Errorf("the API server did not respond within %v", podTimeout))
	defer cancel()
	found, err := s.config.Pod(ctx, namespace, name, q.Get("uid"))
	switch {
	case errors.Is(err, ErrNoSuchPod):
		s.refuse(w, http.StatusNotFound, "unknown", err)
	case err != nil:
		s.refuse(w, http.StatusServiceUnavailable, "failed", err)
	default:
		s.config.Metrics.queries.WithLabelValues("found").Inc()
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(found)
	}
}

func (s *Server) refuse(w http.ResponseWriter, code int, result string, err error) {
	s.config.Metrics.queries.WithLabelValues(result).Inc()
	writeError(w, code, err.Error())
}

func writeError(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(agentapi.Refusal{Error: text})
}

// decodeBody decodes a request's JSON body of limited size. On an error it sends an error response and returns false.
func decodeBody(w http.ResponseWriter, r *http.Request, into any) bool {
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, agentapi.MaxBody))
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		writeError(w, http.StatusBadRequest, err.Error())
	}
	return err == nil
}

func (s *Server) log(w http.ResponseWriter, r *http.Request) {
	var entries []agentapi.LogEntry
	if !decodeBody(w, r, &entries) {
		return
	}
	for _, e := range entries[:min(len(entries), maxLines)] {
		s.write(r.Context(), &e)
	}
	if more := len(entries) - maxLines; more > 0 {
		s.config.Logger.Warn("dropped log lines of the CNI plugin, because one request contained too many", "droppedLines", more)
	}
	w.WriteHeader(http.StatusNoContent)
}

// write writes a log line of the plugin to the agent's log, with the plugin's timestamp and level.
func (s *Server) write(ctx context.Context, e *agentapi.LogEntry) {
	var level slog.Level
	if level.UnmarshalText([]byte(e.Level)) != nil {
		level = slog.LevelInfo
	}
	handler := s.config.Logger.Handler()
	if !handler.Enabled(ctx, level) {
		return
	}
	record := slog.NewRecord(e.Time, level, cut(e.Message), 0)
	record.AddAttrs(slog.String("component", "cni-plugin"))
	names := make([]string, 0, len(e.Attributes))
	for name := range e.Attributes {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		var text string
		if json.Unmarshal(e.Attributes[name], &text) != nil {
			text = string(e.Attributes[name])
		}
		record.AddAttrs(slog.String(cut(name), cut(text)))
	}
	_ = handler.Handle(ctx, record)
}

func cut(text string) string {
	if len(text) > maxText {
		return text[:maxText] + "…"
	}
	return text
}

func (s *Server) result(w http.ResponseWriter, r *http.Request) {
	var result agentapi.Result
	if !decodeBody(w, r, &result) {
		return
	}
	s.config.Metrics.count(&result)
	if s.config.OnResult != nil {
		s.config.OnResult(result)
	}
	w.WriteHeader(http.StatusNoContent)
}

func (s *Server) status(w http.ResponseWriter, _ *http.Request) {
	if c := s.config.Health(); !c.OK {
		writeError(w, http.StatusServiceUnavailable, c.Reason)
		return
	}
	w.WriteHeader(http.StatusOK)
}
