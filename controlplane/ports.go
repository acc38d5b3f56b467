package controlplane

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
	"github.com/pilotfish-mesh/pilotfish/internal/portowner"
)

// The values of a port that are no port number.
const (
	// FreePort takes any port that is free; the Server's addresses say which.
	FreePort = -1
	// NoPort leaves the port closed.
	NoPort = -2
)

// Ports are what the server listens on. A port of 0 is its default.
type Ports struct {
	Plain      int // plaintext xDS; default 15010
	Secure     int // xDS and CA over TLS; default 15012
	Monitoring int // metrics, health and debug pages over HTTP; default 15014
	Tokens     int // token exchange, and the keys of its tokens, over HTTPS; default 15016
}

const (
	// stopTimeout bounds the ordered end of a port's server; what is not done by then is cut.
	stopTimeout = 2 * time.Second
	// maxRequest bounds one message of a client: a reconnecting Envoy lists every resource it has.
	maxRequest = 16 << 20
)

// port is one listening socket; nil is a closed port.
type port struct {
	listener net.Listener
	addr     netip.AddrPort
}

func (p *port) address() netip.AddrPort {
	if p == nil {
		return netip.AddrPort{}
	}
	return p.addr
}

// listeners are the server's ports and what serves on them.
type listeners struct {
	plain, secure, monitoring, tokens *port

	grpcPlain, grpcSecure *grpc.Server
	http, https           *http.Server
	log                   *slog.Logger
}

// openPorts listens, and composes what each port serves.
func (s *Server) openPorts() error {
	l := &listeners{log: s.log}
	for _, p := range []struct {
		to            **port
		number, usual int
		purpose       string
	}{
		{&l.plain, s.cfg.Ports.Plain, 15010, "plaintext xDS"},
		{&l.secure, s.cfg.Ports.Secure, 15012, "xDS and CA over TLS"},
		{&l.monitoring, s.cfg.Ports.Monitoring, 15014, "metrics and debug pages"},
		{&l.tokens, s.cfg.Ports.Tokens, 15016, "token exchange"},
	} {
		opened, err := open(s.cfg.Listen, s.cfg.Address, p.number, p.usual)
		if err != nil {
			l.close()
			return fmt.Errorf("control plane, port for %s: %w", p.purpose, err)
		}
		*p.to = opened
	}
	s.guardPorts(l)
	l.grpcPlain = newGRPC(nil)
	l.grpcSecure = newGRPC(s.authority.ServerTLS(s.cfg.Address))
	s.discovery.RegisterTo(l.grpcPlain)
	s.discovery.RegisterTo(l.grpcSecure)
	s.authority.RegisterTo(l.grpcSecure)
	l.http = newHTTP(s.debugHandler(), s.log)
	if l.tokens != nil {
		exchange, err := s.newExchange(l.tokens.addr)
		if err != nil {
			l.close()
			return err
		}
		l.https = newHTTP(exchange.handler(), s.log)
		l.https.TLSConfig = s.authority.ServerTLS(s.cfg.Address)
		l.https.WriteTimeout = 10 * time.Second
		l.https.ReadTimeout = 10 * time.Second
	}
	s.ports = l
	return nil
}

// guardPorts bounds the connections: those of proxies, and apart from them those of who watches, who is to be answered
// however many proxies there are.
func (s *Server) guardPorts(l *listeners) {
	refused := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "pilotfish_connections_refused_total",
		Help: "Connections closed because there were as many as may be, by port."}, []string{"port"})
	s.registry.MustRegister(refused)
	proxies := &gate{most: int64(s.cfg.MaxConnections), refused: refused, log: s.log}
	watchers := &gate{most: int64(keptFiles(openFiles()) / 2), refused: refused, log: s.log}
	for _, p := range []struct {
		*port
		gate *gate
		name string
	}{{l.plain, proxies, "plain"}, {l.secure, proxies, "secure"}, {l.tokens, proxies, "tokens"}, {l.monitoring, watchers, "monitoring"}} {
		if p.port != nil {
			p.listener = p.gate.guard(p.listener, p.name)
		}
	}
}

func newHTTP(handler http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler: handler, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

func open(listen func(network, address string) (net.Listener, error), address string, number, usual int) (*port, error) {
	switch {
	case number == NoPort:
		return nil, nil
	case number == FreePort:
		number = 0
	case number == 0:
		number = usual
	case number < 0 || number > 65535:
		return nil, fmt.Errorf("%d is not a port: use 1 to 65535", number)
	}
	at := net.JoinHostPort(address, strconv.Itoa(number))
	listener, err := listen("tcp", at)
	if err != nil {
		return nil, portowner.Explain("tcp", at, err)
	}
	return &port{listener: listener, addr: listener.Addr().(*net.TCPAddr).AddrPort()}, nil
}

func newGRPC(config *tls.Config) *grpc.Server {
	options := append(xds.ServerOptions(),
		grpc.MaxRecvMsgSize(maxRequest),
		// Most connections are at rest most of the time (their write buffers are shared), and what is sent is large.
		grpc.WriteBufferSize(32<<10), grpc.ReadBufferSize(16<<10),
		// What clients list when they all come back waits in memory: a window each, and not as much as the network takes.
		grpc.StaticStreamWindowSize(64<<10), grpc.StaticConnWindowSize(64<<10),
		grpc.MaxConcurrentStreams(1000),
		grpc.ConnectionTimeout(10*time.Second),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
	)
	if config != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(config)))
	}
	return grpc.NewServer(options...)
}

// identify gives the identity of a stream's peer: proved on the secure port, none on the plaintext one.
func (s *Server) identify(ctx context.Context) (string, error) {
	if !overTLS(ctx) {
		return "", nil
	}
	id, err := s.authority.Authenticate(ctx)
	if err != nil {
		return "", err
	}
	return id.SPIFFEID(), nil
}

// serve serves on all ports until the context ends or one of them fails, and ends in order: endStreams lets go of the
// discovery streams, which never end by themselves.
func (l *listeners) serve(ctx context.Context, endStreams func()) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	run := func(p *port, what string, serve func(net.Listener) error) {
		if p == nil {
			return
		}
		wg.Go(func() {
			err := serve(p.listener)
			if err != nil && !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, grpc.ErrServerStopped) {
				cancel(fmt.Errorf("control plane, %s on %s: %w", what, p.addr, err))
			}
		})
	}
	run(l.plain, "plaintext xDS", l.grpcPlain.Serve)
	run(l.secure, "xDS and CA", l.grpcSecure.Serve)
	run(l.monitoring, "monitoring", l.http.Serve)
	run(l.tokens, "token exchange", func(at net.Listener) error { return l.https.ServeTLS(at, "", "") })
	<-ctx.Done()
	endStreams()
	l.end()
	wg.Wait()
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) && !errors.Is(cause, context.DeadlineExceeded) {
		return cause
	}
	return nil
}

// end ends the servers by one deadline.
func (l *listeners) end() {
	deadline, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	var wg sync.WaitGroup
	for _, server := range []*grpc.Server{l.grpcPlain, l.grpcSecure} {
		wg.Go(func() {
			// Cuts the calls that are under way, with which GracefulStop returns too.
			stop := context.AfterFunc(deadline, server.Stop)
			defer stop()
			server.GracefulStop()
		})
	}
	for _, server := range []*http.Server{l.http, l.https} {
		if server == nil {
			continue
		}
		wg.Go(func() {
			if server.Shutdown(deadline) != nil {
				_ = server.Close()
			}
		})
	}
	wg.Wait()
}

func (l *listeners) close() {
	for _, p := range []*port{l.plain, l.secure, l.monitoring, l.tokens} {
		if p != nil {
			_ = p.listener.Close() // closed already, after serving
		}
	}
}
