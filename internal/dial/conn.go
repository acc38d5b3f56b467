package dial

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
)

// Server describes how to connect to a server, and how the agent authenticates to it.
type Server struct {
	// Plaintext disables TLS. The token is then not sent.
	Plaintext bool
	TLS       TLS
	// TokenFile is a file with a bearer token. It is read for every call. If it is empty, no token is sent.
	TokenFile string
	// Token, if set, returns the bearer token, for example from a cloud's metadata server. TokenFile is then not used.
	Token func(context.Context) (string, error)
	// ClusterID is sent as the header "ClusterID". If it is empty, the header is not sent.
	ClusterID string
	// Headers are sent with every call.
	Headers map[string]string
	// Received, if set, counts the bytes that are received on connections, after decryption.
	Received *atomic.Int64
}

// Connect opens a connection to address and returns it after the HTTP/2 handshake. Unlike grpc.NewClient, it returns
// the cause of a failure to connect. If address is a comma-separated list, Connect tries the entries in order, each
// with its own timeout, and returns the first connection that succeeds. If none succeeds, it returns the errors of all
// entries.
func (s Server) Connect(ctx context.Context, address string, timeout time.Duration, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	var errs []error
	for one := range strings.SplitSeq(address, ",") {
		one = strings.TrimSpace(one)
		conn, err := s.ConnectTo(ctx, one, one, timeout, options...)
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

// ConnectTo connects to one address and waits at most timeout for the connection. The server's certificate must match
// the host in name, unless TLS.ServerName is set.
func (s Server) ConnectTo(ctx context.Context, name, address string, timeout time.Duration, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var failure connectFailure
	conn, err := grpc.NewClient("passthrough:///"+name, append(s.dialOptions(address, &failure), options...)...)
	if err != nil {
		return nil, err
	}
	conn.Connect()
	for state := conn.GetState(); state != connectivity.Ready; state = conn.GetState() {
		if state == connectivity.TransientFailure || !conn.WaitForStateChange(ctx, state) {
			_ = conn.Close()
			return nil, failure.errorOr(ctx, timeout)
		}
	}
	return conn, nil
}

func (s Server) dialOptions(address string, failure *connectFailure) []grpc.DialOption {
	creds := credentials.TransportCredentials(insecure.NewCredentials())
	if !s.Plaintext {
		creds = s.TLS.clientCredentials(failure.set)
	}
	if s.Received != nil {
		creds = &countingCredentials{TransportCredentials: creds, received: s.Received}
	}
	return []grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
			if err != nil {
				failure.set(err)
			}
			return conn, err
		}),
		grpc.WithIdleTimeout(0),
		grpc.WithDisableServiceConfig(),
	}
}

// Header returns the headers of a call. It reads the token again for each call. If it cannot read the token, it returns
// an error, unless there is a valid client certificate. In plaintext, it neither reads nor returns the token.
func (s Server) Header() (metadata.MD, error) {
	header := metadata.New(s.Headers)
	if s.ClusterID != "" {
		header.Set("ClusterID", s.ClusterID)
	}
	if s.TokenFile == "" && s.Token == nil || s.Plaintext {
		return header, nil
	}
	token, err := s.readToken()
	if err != nil {
		if s.TLS.HasClientCertificate(time.Now()) {
			return header, nil
		}
		return nil, err
	}
	header.Set("authorization", "Bearer "+token)
	return header, nil
}

// tokenTimeout limits a call of Server.Token.
const tokenTimeout = 10 * time.Second

func (s Server) readToken() (string, error) {
	if s.Token == nil {
		return ReadToken(s.TokenFile)
	}
	ctx, cancel := context.WithTimeout(context.Background(), tokenTimeout)
	defer cancel()
	return s.Token(ctx)
}

// connectFailure records the reason why a connection failed, because gRPC does not return it.
type connectFailure struct {
	mu  sync.Mutex
	err error
}

func (c *connectFailure) set(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = err
}

func (c *connectFailure) errorOr(ctx context.Context, timeout time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.err != nil:
		return c.err
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fmt.Errorf("no response within %s", timeout)
	case ctx.Err() != nil:
		return ctx.Err()
	}
	return errors.New("the server does not use gRPC")
}
