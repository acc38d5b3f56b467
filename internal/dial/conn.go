package dial

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
)

// Server is a server that the agent calls, and how it proves itself there.
type Server struct {
	// Plaintext connects without TLS, and thus without the token.
	Plaintext bool
	TLS       TLS
	// TokenFile is read for every call; its content is sent as a bearer token. Empty for none.
	TokenFile string
	// Token gives a bearer token in place of the file's, as one of a cloud's metadata server; nil for none.
	Token func(context.Context) (string, error)
	// ClusterID is sent as the header "ClusterID". Empty for none.
	ClusterID string
	// Headers are sent with every call.
	Headers map[string]string
	// Pulse watches whether the server lives; nil for nobody.
	Pulse *Pulse
}

// Connect makes a connection to the address, up to the complete HTTP/2 handshake, within the time given. Unlike gRPC's
// own it fails at the first failure, and says why. Of several addresses, with commas between them, it is the first that
// answers, each having its time.
func (s Server) Connect(ctx context.Context, address string, timeout time.Duration, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	var errs []error
	for one := range strings.SplitSeq(address, ",") {
		conn, err := s.connect(ctx, strings.TrimSpace(one), timeout, options)
		if err == nil {
			return conn, nil
		}
		errs = append(errs, err)
	}
	if len(errs) == 1 {
		return nil, errs[0]
	}
	return nil, errors.Join(errs...)
}

func (s Server) connect(ctx context.Context, address string, timeout time.Duration, options []grpc.DialOption) (*grpc.ClientConn, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var why cause
	conn, err := grpc.NewClient("passthrough:///"+address, append(s.options(&why), options...)...)
	if err != nil {
		return nil, err
	}
	conn.Connect()
	for state := conn.GetState(); state != connectivity.Ready; state = conn.GetState() {
		if state == connectivity.TransientFailure || !conn.WaitForStateChange(ctx, state) {
			_ = conn.Close()
			return nil, why.or(ctx, timeout)
		}
	}
	return conn, nil
}

// Open makes a connection to the address up to where HTTP/2 begins: with TLS, whose certificate has to be for the host of the
// name unless TLS says another, and with the pulse watched.
func (s Server) Open(ctx context.Context, address, name string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	if !s.Plaintext {
		secured, err := s.TLS.client(ctx, conn, name)
		if err != nil {
			_ = conn.Close()
			return nil, err
		}
		conn = secured
	}
	if s.Pulse != nil {
		conn = s.Pulse.watch(conn)
	}
	return conn, nil
}

// client makes the handshake on a connection.
func (t TLS) client(ctx context.Context, conn net.Conn, name string) (net.Conn, error) {
	config, err := t.Config(hostOf(name))
	if err != nil {
		return nil, err
	}
	secured := tls.Client(conn, config)
	if err := secured.HandshakeContext(ctx); err != nil {
		return nil, t.explain(err)
	}
	if chosen := secured.ConnectionState().NegotiatedProtocol; chosen != "h2" {
		return nil, fmt.Errorf("TLS: the server does not offer HTTP/2, which gRPC needs: it chose the protocol %q", chosen)
	}
	return secured, nil
}

// Authority is the name under which a server is called that was configured so.
func (s Server) Authority(name string) string {
	if s.TLS.ServerName != "" && !s.Plaintext {
		return s.TLS.ServerName
	}
	return name
}

func (s Server) options(why *cause) []grpc.DialOption {
	creds := credentials.TransportCredentials(insecure.NewCredentials())
	if !s.Plaintext {
		creds = s.TLS.clientCredentials(why.set)
	}
	if s.Pulse != nil {
		creds = s.Pulse.over(creds)
	}
	return []grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
			if err != nil {
				why.set(err)
			}
			return conn, err
		}),
		grpc.WithIdleTimeout(0),
		grpc.WithDisableServiceConfig(),
	}
}

// Header reads the token anew. It is required unless a client certificate can take its place, and never sent in
// plaintext.
func (s Server) Header() (metadata.MD, error) {
	header := metadata.New(s.Headers)
	if s.ClusterID != "" {
		header.Set("ClusterID", s.ClusterID)
	}
	if s.TokenFile == "" && s.Token == nil || s.Plaintext {
		return header, nil
	}
	token, err := s.token()
	if err != nil {
		if s.TLS.HasClientCertificate(time.Now()) {
			return header, nil
		}
		return nil, err
	}
	header.Set("authorization", "Bearer "+token)
	return header, nil
}

// tokenTime bounds the question for a token.
const tokenTime = 10 * time.Second

func (s Server) token() (string, error) {
	if s.Token == nil {
		return ReadToken(s.TokenFile)
	}
	ctx, cancel := context.WithTimeout(context.Background(), tokenTime)
	defer cancel()
	return s.Token(ctx)
}

// cause keeps the reason of a failed connection, which gRPC does not tell.
type cause struct {
	mu  sync.Mutex
	err error
}

func (c *cause) set(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = err
}

func (c *cause) or(ctx context.Context, timeout time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.err != nil:
		return c.err
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fmt.Errorf("no answer within %s", timeout)
	case ctx.Err() != nil:
		return ctx.Err()
	}
	return errors.New("what answers there does not speak gRPC")
}
