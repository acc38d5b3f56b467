package controlplane

import (
	"errors"
	"log/slog"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	// fewestKept is how many of the process's open files connections leave to all else at least: a control plane that can
	// open no file reads no document and no certificate any more, and answers nobody who asks what is wrong.
	fewestKept = 64
	// refusalsApart is how long nothing is logged of refused connections after something was.
	refusalsApart = time.Minute
)

// openFiles is how many files the process may have open.
func openFiles() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil || limit.Cur > math.MaxInt32 {
		return math.MaxInt32
	}
	return int(limit.Cur)
}

// keptFiles are those of the open files that connections of proxies leave to all else.
func keptFiles(open int) int { return max(open/8, fewestKept) }

// gate bounds how many connections there are at a time. It is shared by the ports that the bound is for.
type gate struct {
	most    int64 // negative is no limit
	open    atomic.Int64
	refused *prometheus.CounterVec
	log     *slog.Logger

	mu   sync.Mutex
	told time.Time
}

// guard has a listener's connections count. One too many is closed at once: to answer it would take a handshake, which is
// what a flood of them is after.
func (g *gate) guard(l net.Listener, port string) net.Listener {
	return &guarded{Listener: l, gate: g, port: port}
}

func (g *gate) tell(port string) {
	g.refused.WithLabelValues(port).Inc()
	g.mu.Lock()
	defer g.mu.Unlock()
	if time.Since(g.told) < refusalsApart {
		return
	}
	g.told = time.Now()
	g.log.Error("connections are refused: there are as many as may be. Let the process have more open files (ulimit -n), or see --max-connections",
		"port", port, "connections", g.most)
}

type guarded struct {
	net.Listener
	gate *gate
	port string
}

func (l *guarded) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if n := l.gate.open.Add(1); l.gate.most < 0 || n <= l.gate.most {
			return &counted{Conn: conn, leave: sync.OnceFunc(func() { l.gate.open.Add(-1) })}, nil
		}
		l.gate.open.Add(-1)
		_ = conn.Close()
		l.gate.tell(l.port)
	}
}

// counted is a connection that has a place until it is closed.
type counted struct {
	net.Conn
	leave func()
}

// SyscallConn has gRPC wait for what a connection brings before it makes room for that, as without the count: 32 KiB for each.
func (c *counted) SyscallConn() (syscall.RawConn, error) {
	if conn, ok := c.Conn.(syscall.Conn); ok {
		return conn.SyscallConn()
	}
	return nil, errors.ErrUnsupported
}

func (c *counted) Close() error {
	defer c.leave()
	return c.Conn.Close()
}
