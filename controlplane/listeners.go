package controlplane

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/pilotfish-mesh/pilotfish/controlplane/ca"
	"github.com/pilotfish-mesh/pilotfish/internal/portowner"
)

// Values of a port in Ports that are not port numbers.
const (
	// FreePort selects any free port. Server.PlainAddr and similar methods return its number.
	FreePort = -1
	// NoPort disables the port.
	NoPort = -2
)

// Ports are the server's ports. 0 selects the default.
type Ports struct {
	Plain      int // plaintext xDS; default 15010, or NoPort if the port's address is not loopback
	Secure     int // xDS and CA over TLS; default 15012
	Monitoring int // metrics, health and debug pages over HTTP; default 15014
	Tokens     int // token exchange and token keys over HTTPS; default 15016
}

const (
	// stopTimeout limits the graceful stop of a port's server. After this time the server closes all connections.
	stopTimeout = 2 * time.Second
	// defaultAuthTimeout is the default of Config.AuthTimeout.
	defaultAuthTimeout = 15 * time.Second
	// handshakeTimeout limits the TLS and HTTP/2 handshakes of a connection.
	handshakeTimeout = 5 * time.Second
	// maxTokenRequests limits the simultaneous requests of one connection to the token port. The limit is low, because
	// a request is unauthenticated until its body is read.
	maxTokenRequests = 4
)

// port is one listening socket. A nil *port is a disabled port.
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

// listeners contains the server's ports, and the gRPC and HTTP servers on them.
type listeners struct {
	plain, secure, monitoring, tokens *port

	grpcPlain, grpcSecure *grpc.Server
	http, https           *http.Server
	log                   *slog.Logger
}

// openPorts opens the ports and creates a gRPC or HTTP server for each.
func (s *Server) openPorts() error {
	l := &listeners{log: s.log}
	mesh, host := listenAddress{s.cfg.Listen, s.cfg.Address}, s.cfg.hostAddress()
	for _, p := range []struct {
		to                    **port
		at                    listenAddress
		number, defaultNumber int
		purpose               string
	}{
		{&l.plain, host, s.plainPort(host.address), 15010, "plaintext xDS"},
		{&l.secure, mesh, s.cfg.Ports.Secure, 15012, "xDS and CA over TLS"},
		{&l.monitoring, host, s.cfg.Ports.Monitoring, 15014, "metrics and debug pages"},
		{&l.tokens, mesh, s.cfg.Ports.Tokens, 15016, "token exchange"},
	} {
		opened, err := openPort(p.at.listen, p.at.address, p.number, p.defaultNumber)
		if err != nil {
			l.close()
			return fmt.Errorf("opening the control plane's port for %s: %w", p.purpose, err)
		}
		*p.to = opened
	}
	s.reservePorts(l)
	s.limitConnections(l)
	l.grpcPlain = newGRPC(nil)
	l.grpcSecure = newGRPC(meshCredentials{credentials.NewTLS(s.authority.ServerTLS(s.cfg.Address)), s.authority}, grpc.ChainStreamInterceptor(s.streams.intercept))
	s.discovery.RegisterTo(l.grpcPlain)
	s.discovery.RegisterTo(l.grpcSecure)
	s.authority.RegisterTo(l.grpcSecure)
	l.http = newHTTP(s.monitoringHandler(), s.log)
	if l.tokens != nil {
		exchange, err := s.newExchange(l.tokens.addr)
		if err != nil {
			l.close()
			return err
		}
		l.https = newHTTP(s.tokensHandler(exchange, host.address), s.log)
		l.https.TLSConfig = s.authority.ServerTLS(s.cfg.Address)
		l.https.WriteTimeout = 10 * time.Second
		l.https.ReadTimeout = 10 * time.Second
		l.https.IdleTimeout = 10 * time.Second
		l.https.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: maxTokenRequests, MaxReceiveBufferPerConnection: 64 << 10, MaxReceiveBufferPerStream: maxExchange}
	}
	s.ports = l
	return nil
}

// listenAddress is the IP address on which a port is opened, and the function that opens it.
type listenAddress struct {
	listen  func(network, address string) (net.Listener, error)
	address string
}

func (c Config) hostAddress() listenAddress {
	if c.HostAddress != "" {
		return listenAddress{net.Listen, c.HostAddress}
	}
	return listenAddress{c.Listen, c.Address}
}

// reservePorts adds the ports of l that are open on loopback to the ports that endpoints in documents must not use. It
// must be called before the first snapshot is built.
func (s *Server) reservePorts(l *listeners) {
	add := func(to *[]uint32, ports ...*port) {
		for _, p := range ports {
			if p != nil && (p.addr.Addr().IsLoopback() || p.addr.Addr().IsUnspecified()) {
				*to = append(*to, uint32(p.addr.Port()))
			}
		}
	}
	add(&s.cfg.Endpoints.PlaintextPorts, l.plain, l.monitoring)
	add(&s.cfg.Endpoints.TLSPorts, l.secure, l.tokens)
}

// plainPort returns the number of the plaintext xDS port. Its clients are unauthenticated, so by default the port is
// open only if address is a loopback address.
func (s *Server) plainPort(address string) int {
	number := s.cfg.Ports.Plain
	switch {
	case number == NoPort || isLoopback(address):
	case number == 0:
		s.log.Info("the port for plaintext xDS is disabled, because its address is not loopback; --port enables the port", "address", address)
		return NoPort
	default:
		s.log.Warn("plaintext xDS is open to the network: any client can read the configuration of any namespace", "address", address)
	}
	return number
}

func isLoopback(address string) bool {
	ip, err := netip.ParseAddr(address)
	return err == nil && ip.IsLoopback()
}

// tokensHandler returns the handler of port 15016. If other machines can reach the monitoring port, the debug pages are
// also available on port 15016, so that clients need not send credentials in plaintext.
func (s *Server) tokensHandler(exchange *tokenExchange, monitoring string) http.Handler {
	if isLoopback(monitoring) {
		return exchange.handler()
	}
	mux := http.NewServeMux()
	pages := s.debugPages(s.identifyDebugCaller)
	mux.Handle("/debug", pages)
	mux.Handle("/debug/", pages)
	mux.Handle("/", exchange.handler())
	return mux
}

// limitConnections limits the connections to the ports of l. The monitoring port has its own limit, so that it remains
// reachable when the limit for proxies is reached.
func (s *Server) limitConnections(l *listeners) {
	refused := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "pilotfish_connections_refused_total",
		Help: "Connections refused because of a connection limit, by port."}, []string{"port"})
	expired := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "pilotfish_connections_unauthenticated_closed_total",
		Help: "Connections closed by the server because no call on them was authenticated in time, or to accept a new connection, by port."}, []string{"port"})
	s.registry.MustRegister(refused, expired)
	proxies := newConnLimiter(s.cfg.MaxConnections, s.memoryShare, refused, expired, s.log)
	if l.secure == nil {
		proxies.maxPlaintext = proxies.max
	}
	monitoring := newConnLimiter(reservedFiles(openFiles())/2, math.MaxInt64, refused, expired, s.log)
	monitoring.handshakes.max, monitoring.handshakes.maxSource = monitoring.max, monitoring.max
	timeout := max(s.cfg.AuthTimeout, 0)
	for _, p := range []struct {
		*port
		gate  *connLimiter
		limit portLimit
	}{
		{l.plain, proxies, portLimit{name: "plain", authTimeout: timeout, plaintext: true}},
		{l.secure, proxies, portLimit{name: "secure", authTimeout: timeout}},
		// No authTimeout is needed, because each phase of an HTTP connection has its own timeout.
		{l.tokens, proxies, portLimit{name: "tokens"}},
		{l.monitoring, monitoring, portLimit{name: "monitoring"}},
	} {
		if p.port != nil {
			p.listener = p.gate.wrapListener(p.listener, p.limit)
		}
	}
}

func newHTTP(handler http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler: handler, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

func openPort(listen func(network, address string) (net.Listener, error), address string, number, defaultNumber int) (*port, error) {
	switch {
	case number == NoPort:
		return nil, nil
	case number == FreePort:
		number = 0
	case number == 0:
		number = defaultNumber
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

// meshCredentials are the TLS credentials of the secure port. If the client has a certificate of the mesh, they promote
// the connection as soon as its handshake is complete.
type meshCredentials struct {
	credentials.TransportCredentials
	authority *ca.Authority
}

func (m meshCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := m.TransportCredentials.ServerHandshake(raw)
	if tracked, ok := raw.(*trackedConn); ok && err == nil && !tracked.finishHandshake(m.hasIdentity(info)) {
		_ = conn.Close()
		return nil, nil, net.ErrClosed
	}
	return conn, info, err
}

// hasIdentity reports whether the handshake verified a client certificate and the authority accepts its identity.
func (m meshCredentials) hasIdentity(info credentials.AuthInfo) bool {
	verified, ok := info.(credentials.TLSInfo)
	if !ok || len(verified.State.VerifiedChains) == 0 {
		return false
	}
	_, err := m.authority.IdentityOf(verified.State.VerifiedChains[0][0])
	return err == nil
}

// identify returns the identity that the peer of the stream has proved on the secure port, or "" on the plaintext port.
// It also promotes the stream's connection.
func (s *Server) identify(ctx context.Context) (string, error) {
	name := ""
	if overTLS(ctx) {
		id, err := s.authority.Authenticate(ctx)
		if err != nil {
			return "", err
		}
		s.streams.setCaller(ctx, id)
		if err := s.authority.CheckCaller(ctx, id); err != nil {
			return "", err
		}
		name = id.SPIFFEID()
	}
	if conn := connectionOf(ctx); conn != nil && !conn.authenticate() {
		return "", status.Errorf(codes.ResourceExhausted, "the plaintext port has reached its connection limit, half of --max-connections")
	}
	return name, nil
}

// connectionOf returns the connection of the call with the context ctx, or nil if no connLimiter counts the connection.
func connectionOf(ctx context.Context) *trackedConn {
	if p, ok := peer.FromContext(ctx); ok {
		if addr, ok := p.Addr.(trackedAddr); ok {
			return addr.conn
		}
	}
	return nil
}

// serve serves on all ports until ctx ends or one port fails, and then stops gracefully. It calls endStreams to end the
// discovery streams, because these do not end by themselves.
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
				cancel(fmt.Errorf("serving %s on %s: %w", what, p.addr, err))
			}
		})
	}
	run(l.plain, "plaintext xDS", l.grpcPlain.Serve)
	run(l.secure, "xDS and CA", l.grpcSecure.Serve)
	run(l.monitoring, "monitoring", l.http.Serve)
	run(l.tokens, "token exchange", func(at net.Listener) error { return l.https.ServeTLS(at, "", "") })
	<-ctx.Done()
	endStreams()
	l.stop()
	wg.Wait()
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) && !errors.Is(cause, context.DeadlineExceeded) {
		return cause
	}
	return nil
}

// stop stops the servers gracefully. After stopTimeout, it closes the remaining connections.
func (l *listeners) stop() {
	deadline, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	var wg sync.WaitGroup
	for _, server := range []*grpc.Server{l.grpcPlain, l.grpcSecure} {
		wg.Go(func() {
			// GracefulStop returns when all calls have ended. At the deadline, Stop ends the remaining calls.
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
			_ = p.listener.Close() // already closed after serving
		}
	}
}
