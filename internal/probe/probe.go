// Package probe checks an application's health as the kubelet does: by HTTP, HTTPS, HTTP/2, TCP, gRPC or a command. The
// application is not trusted: the memory for a response is limited, and an application that does not respond cannot
// delay a probe beyond its timeout.
package probe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Spec is one probe. Exactly one of the first four fields is set.
type Spec struct {
	HTTP *HTTP
	TCP  *TCP
	GRPC *GRPC
	Exec *Exec
	// Timeout limits the whole probe, from the connection to the last byte read. If it is zero, only the caller's
	// context limits the probe.
	Timeout time.Duration
}

// HTTP is a probe by a GET request. A status code from 200 to 399 is a success.
type HTTP struct {
	TLS  bool // use HTTPS; like the kubelet, the prober does not verify the certificate
	Host string
	Port uint16
	// Path may contain a query.
	Path string
	// Header is sent in addition to the caller's. A Host entry sets the request's host.
	Header http.Header
}

// TCP is a probe that succeeds when the port accepts a connection.
type TCP struct {
	Host string
	Port uint16
}

// GRPC is a probe that calls the standard health service (grpc.health.v1.Health), without TLS.
type GRPC struct {
	Host    string
	Port    uint16
	Service string
}

// Exec is a probe that succeeds when the command exits with 0.
type Exec struct {
	Command []string
}

func hostPort(host string, port uint16) string {
	return net.JoinHostPort(host, strconv.Itoa(int(port)))
}

// String returns a short description of the probe, for messages.
func (s Spec) String() string {
	switch {
	case s.HTTP != nil:
		return "GET " + s.HTTP.url().Redacted()
	case s.TCP != nil:
		return "TCP " + hostPort(s.TCP.Host, s.TCP.Port)
	case s.GRPC != nil:
		return fmt.Sprintf("gRPC %s service %q", hostPort(s.GRPC.Host, s.GRPC.Port), s.GRPC.Service)
	case s.Exec != nil:
		return fmt.Sprintf("command %q", s.Exec.Command)
	}
	return "nothing"
}

// Config is the configuration of a Prober.
type Config struct {
	// HTTP2 permits HTTP/2 for probes by HTTPS.
	HTTP2 bool
	// KeepAlive keeps the connection of an HTTP probe open for the next probe. The kubelet does not do that.
	KeepAlive bool
	// Refuse, if set, is called for a redirect to an address on the same host. It returns an error if the redirect must
	// not be followed.
	Refuse func(*url.URL) error
}

// Prober runs probes. It is safe for concurrent use. Between probes, it uses resources only with KeepAlive, for idle
// connections.
type Prober struct {
	client    *http.Client
	transport *http.Transport
}

// New returns a Prober.
func New(c Config) *Prober {
	transport := newTransport(c)
	return &Prober{
		transport: transport,
		client:    &http.Client{Transport: transport, CheckRedirect: sameHost(c.Refuse)},
	}
}

// Close closes idle connections.
func (p *Prober) Close() { p.transport.CloseIdleConnections() }

// Check runs the probe. It returns nil when the application is healthy, and otherwise an error with the reason.
func (p *Prober) Check(ctx context.Context, s Spec) error {
	switch {
	case s.HTTP != nil:
		answer, err := p.HTTP(ctx, s, Request{})
		if err == nil && !answer.IsSuccess() {
			err = fmt.Errorf("%s responded %d %s", s, answer.Code, http.StatusText(answer.Code))
		}
		return err
	case s.TCP != nil:
		return p.TCP(ctx, s)
	case s.GRPC != nil:
		return p.GRPC(ctx, s, "")
	case s.Exec != nil:
		return p.Exec(ctx, s)
	}
	return errors.New("the probe specifies no check")
}

// withTimeout returns a context that ends at the probe's timeout, or earlier with the caller's context.
func (s Spec) withTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	if s.Timeout <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, s.Timeout, TimeoutError(s.Timeout))
}

// TimeoutError is the error of a probe that exceeded its timeout. Its value is the timeout.
type TimeoutError time.Duration

func (t TimeoutError) Error() string { return "no response within " + time.Duration(t).String() }

// wrapError adds the description of the probe to an error. If the context has ended, it replaces the error by the
// context's cause, for example a TimeoutError.
func (s Spec) wrapError(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	return fmt.Errorf("%s: %w", s, err)
}
