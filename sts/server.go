package sts

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pilotfish-mesh/pilotfish/internal/health"
	"github.com/pilotfish-mesh/pilotfish/internal/portowner"
)

const (
	// stopGrace is how long running requests may last after the server is stopped.
	stopGrace = 2 * time.Second
	// maxConnections limits the open connections.
	maxConnections = 128
)

// Config configures a Server.
type Config struct {
	// Address is the address on which the server listens. It must be a loopback address with a port: "127.0.0.1:15463".
	Address string
	// Exchanger issues the tokens. If it is an io.Closer, the server closes it when it stops.
	Exchanger Exchanger
	// Check determines which subject tokens may be sent to the exchange server.
	Check Check
	// Own fetches the workload's own token; nil if the workload has none. Server.Token uses it as the subject token of
	// requests without one. If Check has no issuers, the workload may exchange only its own tokens: every subject token
	// must have the issuer and subject of the workload's token.
	Own Fetcher

	Logger *slog.Logger
	// Metrics registers the server's metrics; nil: they are not registered.
	Metrics prometheus.Registerer
	// Now returns the time; nil: time.Now.
	Now func() time.Time
}

// Server handles token requests. Its methods are safe for concurrent use.
type Server struct {
	config   Config
	listener net.Listener
	http     *http.Server
	metrics  *metrics
	cache    *cache
	stop     context.CancelFunc

	mu      sync.Mutex
	open    int
	trouble error // error of the last exchange with the server; nil after a success
	since   time.Time
}

// New creates the server and opens its port.
func New(config Config) (*Server, error) {
	if config.Exchanger == nil {
		return nil, errors.New("sts: Config.Exchanger is not set")
	}
	if err := checkLoopback(config.Address); err != nil {
		return nil, fmt.Errorf("sts: %w", err)
	}
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	if config.Now == nil {
		config.Now = time.Now
	}
	s := &Server{config: config, metrics: newMetrics()}
	life, stop := context.WithCancel(context.Background())
	s.stop = stop
	s.cache = newCache(life, config.Now, s.exchange)
	if err := s.metrics.register(config.Metrics, s); err != nil {
		stop()
		return nil, fmt.Errorf("sts: registering metrics: %w", err)
	}
	if err := s.listen(); err != nil {
		stop()
		return nil, err
	}
	return s, nil
}

// checkLoopback returns an error unless address is a loopback address with a port, because only applications on this
// machine may request tokens. The only accepted host name is localhost.
func checkLoopback(address string) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("listening address %q: write a value such as 127.0.0.1:15463", address)
	}
	if ip, err := netip.ParseAddr(host); host == "localhost" || (err == nil && ip.IsLoopback()) {
		return nil
	}
	return fmt.Errorf("listening address %q: tokens are issued only on a loopback address: write a value such as 127.0.0.1:15463", address)
}

func (s *Server) listen() error {
	listener, err := net.Listen("tcp", s.config.Address)
	if err != nil {
		return fmt.Errorf("sts: %w", portowner.Explain("tcp", s.config.Address, err))
	}
	s.listener = listener
	s.http = &http.Server{
		Handler:           s.handler(),
		ConnState:         s.noteConnection,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       60 * time.Second,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(s.config.Logger.Handler(), slog.LevelDebug),
	}
	return nil
}

// noteConnection counts the open connections. It closes a new connection that exceeds maxConnections.
func (s *Server) noteConnection(conn net.Conn, state http.ConnState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch state {
	case http.StateNew:
		s.open++
		if s.open > maxConnections {
			_ = conn.Close()
		}
	case http.StateClosed, http.StateHijacked:
		s.open--
	}
}

// Addr returns the listening address.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Run serves requests until ctx ends, and then waits up to stopGrace for running requests. Call it once.
func (s *Server) Run(ctx context.Context) error {
	defer s.stopExchanges()
	served := make(chan error, 1)
	go func() { served <- s.http.Serve(s.listener) }()
	select {
	case err := <-served:
		return fmt.Errorf("sts: serving %s: %w", s.Addr(), err)
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.Background(), stopGrace)
	defer cancel()
	if err := s.http.Shutdown(grace); err != nil {
		_ = s.http.Close()
	}
	<-served
	return nil
}

// Close closes the port of a server whose Run was not called.
func (s *Server) Close() error {
	defer s.stopExchanges()
	return s.listener.Close()
}

// stopExchanges cancels running exchanges and waits for them, and closes the Exchanger.
func (s *Server) stopExchanges() {
	s.stop()
	s.cache.inflight.Wait()
	if closer, ok := s.config.Exchanger.(io.Closer); ok {
		_ = closer.Close()
	}
}

// Token returns the token for request, with the same checks for clients and for callers in this process. If request has
// no subject token, Token uses the workload's own token.
func (s *Server) Token(ctx context.Context, request Request) (Token, error) {
	if request.Subject == "" && s.config.Own != nil {
		own, err := s.config.Own.Fetch(ctx)
		if err != nil {
			return Token{}, fmt.Errorf("reading the workload's own token: %w", err)
		}
		request.Subject, request.SubjectType = own, JWTType
	}
	if err := request.check(GrantType); err != nil {
		return Token{}, err
	}
	owner, err := s.checkTokens(ctx, request)
	if err != nil {
		return Token{}, err
	}
	request.owner = owner
	return s.cache.get(ctx, request)
}

// checkTokens checks the subject and actor tokens of r. If the subject token is the workload's current token, owner
// identifies the workload (see Request.owner).
func (s *Server) checkTokens(ctx context.Context, r Request) (owner string, err error) {
	now := s.config.Now()
	subject, err := s.config.Check.verify(r.Subject, now)
	if err != nil {
		return "", invalid("subject_token %v", err)
	}
	if s.config.Own != nil {
		if owner, err = s.checkOwner(ctx, r.Subject, subject); err != nil && len(s.config.Check.Issuers) == 0 {
			return "", err
		}
	}
	return owner, s.checkActor(r, now)
}

func (s *Server) checkActor(r Request, now time.Time) error {
	if r.Actor == "" || r.ActorType != JWTType {
		return nil
	}
	if _, err := (Check{Leeway: s.config.Check.Leeway}).verify(r.Actor, now); err != nil {
		return invalid("actor_token %v", err)
	}
	return nil
}

// checkOwner returns an error unless got, the claims of the token given, have the issuer and subject of the workload's
// token. It returns the owner only if given is the workload's current token: the claims of other tokens may be forged,
// because signatures are not verified.
func (s *Server) checkOwner(ctx context.Context, given Secret, got claims) (owner string, err error) {
	token, err := s.config.Own.Fetch(ctx)
	if err != nil {
		return "", fmt.Errorf("reading the workload's own token: %w", err)
	}
	own, err := parseClaims(string(token))
	if err != nil {
		return "", fmt.Errorf("the workload's own token %w", err)
	}
	if got.issuer != own.issuer || got.subject != own.subject {
		return "", invalid("subject_token is not a token of this workload: its issuer is %s and its subject %s",
			presentable(got.issuer), presentable(got.subject))
	}
	if subtle.ConstantTimeCompare([]byte(given), []byte(token)) == 1 {
		owner = fmt.Sprintf("%q %q", own.issuer, own.subject)
	}
	return owner, nil
}

// exchange calls Config.Exchanger, and records the result in metrics, the log and the condition.
func (s *Server) exchange(ctx context.Context, request Request) (Token, error) {
	start := time.Now()
	token, err := s.config.Exchanger.Exchange(ctx, request)
	s.metrics.exchanged(err, time.Since(start))
	var refusal *Error
	if errors.As(err, &refusal) {
		s.config.Logger.Warn("the exchange server rejected a token exchange", "server", s.config.Exchanger.Name(), "error", presentable(err.Error()))
		return Token{}, err // not a failure of the server: the server responded
	}
	s.note(err)
	return token, err
}

func (s *Server) note(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err != nil && s.trouble == nil:
		s.since = s.config.Now()
		s.config.Logger.Warn("token exchanges fail; cached tokens are returned until they expire",
			"server", s.config.Exchanger.Name(), "error", presentable(err.Error()))
	case err == nil && s.trouble != nil:
		s.config.Logger.Info("token exchanges succeed again", "server", s.config.Exchanger.Name(),
			"failedFor", s.config.Now().Sub(s.since).Round(time.Second))
	}
	s.trouble = err
}

// Condition reports whether token exchanges succeed. It is OK even if they fail, because workloads that do not need
// tokens would otherwise become unready. Reason then describes the failure.
func (s *Server) Condition() health.Condition {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.trouble == nil {
		return health.Healthy
	}
	return health.Condition{
		OK:     true,
		Reason: "token exchanges fail: " + presentable(s.trouble.Error()),
		Remedy: "check that this machine can reach " + s.config.Exchanger.Name() + " and that the server responds",
		Since:  s.since,
	}
}

// Health returns OK and Reason of Condition.
func (s *Server) Health() (ok bool, reason string) {
	c := s.Condition()
	return c.OK, c.Reason
}
