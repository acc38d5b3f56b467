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
	"github.com/pilotfish-mesh/pilotfish/internal/backoff"
)

// adminForwarder accepts connections on the configured admin address and forwards them to the current Envoy. It is
// active while the admin interface of that Envoy listens on another port: during an upgrade, two Envoys run at the same
// time and cannot share the configured port.
type adminForwarder struct {
	mu          sync.Mutex
	active      bool
	socketCount int // number of socket paths assigned to Envoys
}

// adminListenInterval is the interval between attempts to listen on the admin address, which the previous Envoy may
// still hold.
const adminListenInterval = 100 * time.Millisecond

// bootstrapWithSpareAdmin returns the bootstrap configuration for an Envoy that runs in addition to the current one.
// Its admin interface uses a free port, or the next admin socket.
func (e *envoySupervisor) bootstrapWithSpareAdmin() (bootstrap.Config, error) {
	c := e.bootstrap
	if c.AdminSocket != "" {
		c.AdminSocket = e.nextAdminSocket()
		return c, nil
	}
	host, _, err := net.SplitHostPort(c.AdminAddress())
	if err != nil {
		return c, err
	}
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return c, fmt.Errorf("finding a port for the new Envoy's admin interface: %w", err)
	}
	defer func() { _ = l.Close() }()
	c.ProxyConfig = proto.CloneOf(c.ProxyConfig)
	c.ProxyConfig.ProxyAdminPort = int32(l.Addr().(*net.TCPAddr).Port)
	return c, nil
}

// isActive reports whether the agent listens, or is about to listen, on the admin address.
func (p *adminForwarder) isActive() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.active
}

// forwardAdminTo makes i, the current Envoy, reachable at the configured admin address. If i's admin interface listens
// on another port, the agent listens on the configured address as soon as it is free, and forwards connections until
// the agent stops. If an admin socket is configured, forwardAdminTo only updates the symbolic link.
func (e *envoySupervisor) forwardAdminTo(i *envoyInstance) {
	if e.bootstrap.AdminSocket != "" {
		e.linkAdmin(i.bootstrap.AdminSocket)
		return
	}
	if i.admin.Address() == e.bootstrap.AdminAddress() {
		return
	}
	p, ctx := &e.upgrades.adminForwarder, e.upgrades.lateCtx
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.active {
		return
	}
	p.active = e.upgrades.goWhileRunning(func() {
		if l := e.listenAdmin(ctx); l != nil {
			e.serveAdminForwarder(ctx, l)
		}
	}) == nil
}

func (e *envoySupervisor) listenAdmin(ctx context.Context) net.Listener {
	for {
		l, err := net.Listen("tcp", e.bootstrap.AdminAddress())
		if err == nil {
			e.Logger.Info("forwarding connections at the admin address to the new Envoy", "address", l.Addr().String())
			return l
		}
		if !backoff.Sleep(ctx, adminListenInterval) {
			return nil
		}
	}
}

func (e *envoySupervisor) serveAdminForwarder(ctx context.Context, l net.Listener) {
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	var calls sync.WaitGroup
	defer calls.Wait()
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		calls.Go(func() { e.forwardAdminConn(ctx, c) })
	}
}

// forwardAdminConn forwards one connection to the admin interface of the current Envoy.
func (e *envoySupervisor) forwardAdminConn(ctx context.Context, client net.Conn) {
	defer func() { _ = client.Close() }()
	i := e.currentInstance()
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
	var responses sync.WaitGroup
	responses.Go(func() { _, _ = io.Copy(client, server); _ = client.Close() })
	_, _ = io.Copy(server, client)
	_ = server.(*net.TCPConn).CloseWrite()
	responses.Wait()
}
