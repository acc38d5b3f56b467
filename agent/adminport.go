package agent

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/pilotfish-mesh/pilotfish/bootstrap"
)

// adminPort keeps the admin address of the configuration answering when the Envoy that serves has its admin interface at
// another port: two that run side by side cannot share one.
type adminPort struct {
	mu     sync.Mutex
	active bool
}

// adminRetry is how often the address is tried that the Envoy before still has.
const adminRetry = 100 * time.Millisecond

// spare gives a bootstrap configuration with the admin interface at a port that is free now.
func (e *envoyPart) spareAdmin() (bootstrap.Config, error) {
	c := e.bootstrap
	host, _, err := net.SplitHostPort(c.AdminAddress())
	if err != nil {
		return c, err
	}
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return c, fmt.Errorf("a port for the new Envoy's admin interface: %w", err)
	}
	defer func() { _ = l.Close() }()
	c.ProxyConfig = proto.CloneOf(c.ProxyConfig)
	c.ProxyConfig.ProxyAdminPort = int32(l.Addr().(*net.TCPAddr).Port)
	return c, nil
}

// forwarding says whether the admin address is the agent's.
func (p *adminPort) forwarding() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.active
}

// leadAdminTo has the admin address lead to an Envoy that is the current one now, if it has another itself: as soon as
// the address is free, and for as long as the agent runs.
func (e *envoyPart) leadAdminTo(i *instance) {
	if i.admin.Address() == e.bootstrap.AdminAddress() {
		return
	}
	p, ctx := &e.upgrades.port, e.upgrades.late
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.active {
		return
	}
	p.active = e.upgrades.run(func() {
		if l := e.takeAdmin(ctx); l != nil {
			e.serveAdmin(ctx, l)
		}
	}) == nil
}

func (e *envoyPart) takeAdmin(ctx context.Context) net.Listener {
	for {
		l, err := net.Listen("tcp", e.bootstrap.AdminAddress())
		if err == nil {
			e.Logger.Info("the admin address leads to the new Envoy's admin interface", "address", l.Addr().String())
			return l
		}
		if !sleep(ctx, adminRetry) {
			return nil
		}
	}
}

func (e *envoyPart) serveAdmin(ctx context.Context, l net.Listener) {
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	var calls sync.WaitGroup
	defer calls.Wait()
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		calls.Go(func() { e.passAdmin(ctx, c) })
	}
}

// passAdmin carries one connection.
func (e *envoyPart) passAdmin(ctx context.Context, client net.Conn) {
	defer func() { _ = client.Close() }()
	i := e.instance()
	if i == nil {
		return
	}
	server, err := net.DialTimeout("tcp", i.admin.Address(), time.Second)
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	ctx, done := context.WithCancel(ctx)
	defer context.AfterFunc(ctx, func() { _ = client.Close(); _ = server.Close() })()
	defer done()
	var answer sync.WaitGroup
	answer.Go(func() { _, _ = io.Copy(client, server); _ = client.Close() })
	_, _ = io.Copy(server, client)
	_ = server.(*net.TCPConn).CloseWrite()
	answer.Wait()
}
