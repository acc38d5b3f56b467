package api

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
)

// The ports of a server, by what is spoken there.
const (
	portHTTP         = 8080 // HTTP/1.1, and HTTP/2 for who begins with it
	portUndeclared   = 8081 // the same, and 8082: on ports of their own, since a port speaks one protocol for all services
	portHTTP2        = 8082
	portGRPC         = 7000
	portTCP          = 9000 // echoes each line with the server's name as a prefix
	portTCP2         = 9001 // the same
	portTLS          = 8443 // HTTPS by a certificate of the server's own
	portServerFirst  = 3306 // sends a line with the server's name first, then as portTCP
	portServerFirst2 = 3307 // the same
	portUDP          = 5300 // echoes each datagram with the server's name as a prefix
)

// Echo is an HTTP server's description of the request that it received.
type Echo struct {
	Server string
	Proto  string
	Method string
	Path   string // with the query
	Host   string
	Remote string // "@" by a socket of the file system
	Peer   string // who the caller is by its certificate, where the server speaks TLS itself
	Header http.Header
	Body   string
}

// serve listens on all ports until one of them fails.
func serve(name string) error {
	s := &server{name: name, calls: map[string]int{}}
	failed := make(chan error)
	for _, part := range []func() error{s.serveGRPC, s.serveTLS, s.serveUDP, s.serveSocket} {
		go func() { failed <- part() }()
	}
	for _, port := range []int{portHTTP, portUndeclared, portHTTP2} {
		go func() { failed <- s.serveHTTP(port) }()
	}
	for port, first := range map[int]bool{portTCP: false, portTCP2: false, portServerFirst: true, portServerFirst2: true} {
		go func() { failed <- s.serveTCP(port, first) }()
	}
	return <-failed
}

type server struct {
	name  string
	mu    sync.Mutex
	calls map[string]int // by X-Test
	// collected stores what is posted to the collectors' paths for traces and logs; nil at servers that collect
	// nothing.
	collected *collector
	// ill makes /health report that the server is unhealthy.
	ill bool
}

// ServeHTTP answers with an Echo of the request. Request headers change the response:
//
//	X-Test: KEY             counts the requests with KEY, for GET /count/KEY
//	X-Reply-Status: 503     answers so; with X-Reply-Fail-First: N only to the first N requests of X-Test
//	X-Reply-Delay: 2s       answers only then
//	X-Reply-Header: A=B     adds a header to the answer
//
// /health reports the server's health, which /health/bad and /health/good set. The response to CONNECT names the
// target; afterwards the connection echoes lines.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if key, ok := strings.CutPrefix(r.URL.Path, "/count/"); ok {
		fmt.Fprint(w, s.count(key))
		return
	}
	if r.Method == http.MethodConnect {
		s.tunnel(w, r)
		return
	}
	if strings.HasPrefix(r.URL.Path, "/health") {
		s.health(w, r)
		return
	}
	if r.URL.Path == modulePath {
		_, _ = w.Write(answeringModule())
		return
	}
	if strings.HasPrefix(r.URL.Path, "/v2/") {
		serveImage(w, r)
		return
	}
	body, _ := io.ReadAll(r.Body)
	if s.collected.addPosted(r.URL.Path, body) {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	n := s.countRequest(r.Header.Get("X-Test"))
	if delay, err := time.ParseDuration(r.Header.Get("X-Reply-Delay")); err == nil {
		select {
		case <-time.After(delay):
		case <-r.Context().Done():
			return
		}
	}
	if k, v, ok := strings.Cut(r.Header.Get("X-Reply-Header"), "="); ok {
		w.Header().Set(k, v)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Server", s.name)
	status, _ := strconv.Atoi(r.Header.Get("X-Reply-Status"))
	if first, err := strconv.Atoi(r.Header.Get("X-Reply-Fail-First")); err == nil && n > first {
		status = 0
	}
	if status != 0 {
		w.WriteHeader(status)
	}
	_ = json.NewEncoder(w).Encode(Echo{Server: s.name, Proto: r.Proto, Method: r.Method, Path: r.URL.RequestURI(), Host: r.Host,
		Remote: r.RemoteAddr, Peer: peerSPIFFEID(r), Header: r.Header, Body: string(body)})
}

func (s *server) countRequest(key string) int {
	if key == "" {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls[key]++
	return s.calls[key]
}

func (s *server) count(key string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[key]
}

func (s *server) httpServer() *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Server{Handler: s, Protocols: protocols, ReadHeaderTimeout: time.Minute}
}

func (s *server) serveHTTP(port int) error {
	l, err := listen(port)
	if err != nil {
		return err
	}
	return s.httpServer().Serve(l)
}

func (s *server) serveTLS() error {
	l, err := listen(portTLS)
	if err != nil {
		return err
	}
	certificate, err := tls.LoadX509KeyPair(os.Getenv("TLS_CERT"), os.Getenv("TLS_KEY"))
	if err != nil {
		return err
	}
	tlsServer := s.httpServer()
	tlsServer.TLSConfig = &tls.Config{Certificates: []tls.Certificate{certificate}, NextProtos: []string{"h2", "http/1.1"}}
	return tlsServer.ServeTLS(l, "", "")
}

func (s *server) serveTCP(port int, first bool) error {
	l, err := listen(port)
	if err != nil {
		return err
	}
	return s.accept(l, first)
}

func (s *server) accept(l net.Listener, first bool) error {
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		go s.talk(conn, first)
	}
}

func (s *server) talk(conn net.Conn, first bool) {
	defer conn.Close()
	if first {
		fmt.Fprintf(conn, "%s greets\n", s.name)
	}
	lines := bufio.NewScanner(conn)
	for lines.Scan() {
		fmt.Fprintf(conn, "%s heard %s\n", s.name, lines.Text())
	}
}

func (s *server) serveUDP() error {
	conn, err := net.ListenPacket("udp4", fmt.Sprintf(":%d", portUDP))
	if err != nil {
		return err
	}
	buffer := make([]byte, 2048)
	for {
		n, from, err := conn.ReadFrom(buffer)
		if err != nil {
			return err
		}
		_, _ = conn.WriteTo(fmt.Appendf(nil, "%s heard %s", s.name, buffer[:n]), from)
	}
}

// serveGRPC answers health checks, and names itself in the answer's metadata.
func (s *server) serveGRPC() error {
	l, err := listen(portGRPC)
	if err != nil {
		return err
	}
	g := grpc.NewServer(grpc.Creds(insecure.NewCredentials()))
	grpc_health_v1.RegisterHealthServer(g, &healthServer{server: s})
	authv3.RegisterAuthorizationServer(g, authorizer{})
	return g.Serve(l)
}

type healthServer struct {
	grpc_health_v1.UnimplementedHealthServer
	server *server
}

func (h *healthServer) Check(ctx context.Context, _ *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	in, _ := metadata.FromIncomingContext(ctx)
	for _, key := range in.Get("x-test") {
		h.server.countRequest(key)
	}
	_ = grpc.SetHeader(ctx, metadata.Pairs("x-server", h.server.name))
	return &grpc_health_v1.HealthCheckResponse{Status: grpc_health_v1.HealthCheckResponse_SERVING}, nil
}

func listen(port int) (net.Listener, error) {
	l, err := net.Listen("tcp4", fmt.Sprintf(":%d", port))
	if err != nil {
		return nil, fmt.Errorf("the server's port %d: %w", port, err)
	}
	return l, nil
}
