// Package probe asks an application whether it is well, as a kubelet does: by HTTP, HTTPS, HTTP/2, TCP, gRPC or a
// command. The application is not trusted: nothing that it answers, and nothing that it leaves unanswered, takes more
// than a bounded share of memory and the time that the probe has.
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

// Spec is one probe: exactly one of the first four fields is set.
type Spec struct {
	HTTP *HTTP
	TCP  *TCP
	GRPC *GRPC
	Exec *Exec
	// Timeout is for all of it, from the connection to the last byte that is read; 0 leaves that to the caller's context.
	Timeout time.Duration
}

// HTTP asks with a GET. Any answer from 200 to 399 is well.
type HTTP struct {
	TLS  bool // whose certificate is not verified, as a kubelet does not
	Host string
	Port uint16
	// Path may hold a query.
	Path string
	// Header is sent besides what the caller gives; a Host in it is the request's.
	Header http.Header
}

// TCP is well when the port takes a connection.
type TCP struct {
	Host string
	Port uint16
}

// GRPC asks the standard health service (grpc.health.v1.Health), without TLS.
type GRPC struct {
	Host    string
	Port    uint16
	Service string
}

// Exec is well when the command ends with 0.
type Exec struct {
	Command []string
}

func hostPort(host string, port uint16) string {
	return net.JoinHostPort(host, strconv.Itoa(int(port)))
}

// String says in a few words what is asked.
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

// Config says how probes are made.
type Config struct {
	// HTTP2 offers HTTP/2 to an application that is asked with HTTPS.
	HTTP2 bool
	// KeepAlive keeps the connection of an HTTP probe for the next one. Kubelets do not.
	KeepAlive bool
	// Refuse, if set, says which addresses a redirect must not lead to, beside those of other hosts.
	Refuse func(*url.URL) error
}

// Prober makes probes. It may be used by many goroutines at once, and holds nothing between probes unless connections are
// kept.
type Prober struct {
	client    *http.Client
	transport *http.Transport
}

// New makes a Prober.
func New(c Config) *Prober {
	transport := newTransport(c)
	return &Prober{
		transport: transport,
		client:    &http.Client{Transport: transport, CheckRedirect: sameHost(c.Refuse)},
	}
}

// Close gives back the connections that were kept.
func (p *Prober) Close() { p.transport.CloseIdleConnections() }

// Check makes the probe and returns nil when the application is well; otherwise the error says why it is not.
func (p *Prober) Check(ctx context.Context, s Spec) error {
	switch {
	case s.HTTP != nil:
		answer, err := p.HTTP(ctx, s, Request{})
		if err == nil && !answer.Well() {
			err = fmt.Errorf("%s answered %d %s", s, answer.Code, http.StatusText(answer.Code))
		}
		return err
	case s.TCP != nil:
		return p.TCP(ctx, s)
	case s.GRPC != nil:
		return p.GRPC(ctx, s, "")
	case s.Exec != nil:
		return p.Exec(ctx, s)
	}
	return errors.New("the probe asks nothing")
}

// within gives the probe's own time, and no more than the caller's.
func (s Spec) within(ctx context.Context) (context.Context, context.CancelFunc) {
	if s.Timeout <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, s.Timeout, TooLate(s.Timeout))
}

// TooLate is the error of a probe that took longer than it may.
type TooLate time.Duration

func (t TooLate) Error() string { return "no answer within " + time.Duration(t).String() }

// failed tells the error in terms of the probe, and a timeout by its length.
func (s Spec) failed(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	return fmt.Errorf("%s: %w", s, err)
}
