package xdsproxy

import (
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// startThrottledProxy starts a proxy to address that forwards the specified number of bytes per interval.
func startThrottledProxy(t *testing.T, address string, bytes int64, every time.Duration) (at string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	pass := func(near net.Conn) {
		defer func() { _ = near.Close() }()
		far, err := net.Dial("tcp", address)
		if err != nil {
			return
		}
		defer func() { _ = far.Close() }()
		go func() { _, _ = io.Copy(far, near) }()
		for {
			if _, err := io.CopyN(near, far, bytes); err != nil {
				return
			}
			time.Sleep(every)
		}
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go pass(conn)
		}
	}()
	return l.Addr().String()
}

// TestSlowControlPlaneDoesNotBlockEnvoy: the response takes seconds, and Envoy receives the last accepted configuration
// long before.
func TestSlowControlPlaneDoesNotBlockEnvoy(t *testing.T) {
	cp := newVersionedControlPlane()
	address, _ := cp.upstream().listen(t, "127.0.0.1:0", nil)
	config := Config{Upstreams: []string{address}, Server: Server{Plaintext: true},
		LastGood: LastGood{Dirs: []string{t.TempDir()}, SilenceTimeout: 600 * time.Millisecond}}
	relay, stop := run(t, config)
	newFakeEnvoy(t, relay).requestAll("a", "b")
	waitStored(t, relay, time.Time{})
	stop()

	large := strings.Repeat("2", 60_000)
	cp.set(clusterType, "a", large)
	config.Upstreams = []string{startThrottledProxy(t, address, 4<<10, 150*time.Millisecond)}
	relay, _ = run(t, config)
	envoy := newFakeEnvoy(t, relay)
	envoy.requestAll("a", "b")
	envoy.expect("while the control plane sends", map[string]string{
		"Cluster a": "1", "Cluster b": "1", "ClusterLoadAssignment a": "1", "ClusterLoadAssignment b": "1", "Listener in": "1"})
	for envoy.resources["Cluster a"] != large {
		if r := envoy.accept(clusterType, ""); len(r.Resources) == 0 {
			t.Fatal("the control plane's response has no clusters")
		}
	}
}
