package xdsproxy

import (
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// throttled listens, and passes on what the address says so many bytes a time.
func throttled(t *testing.T, address string, bytes int64, every time.Duration) (at string) {
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

// TestSlowControlPlaneDoesNotKeepEnvoyWaiting: what it sends takes seconds, and Envoy has the last good configuration long before.
func TestSlowControlPlaneDoesNotKeepEnvoyWaiting(t *testing.T) {
	cp := newKeepingControlPlane()
	address, _ := cp.upstream().listen(t, "127.0.0.1:0", nil)
	config := Config{Upstreams: []string{address}, Server: Server{Plaintext: true},
		LastGood: LastGood{Dirs: []string{t.TempDir()}, Silence: 600 * time.Millisecond}}
	relay, stop := run(t, config)
	newEnvoyLike(t, relay).start("a", "b")
	kept(t, relay, time.Time{})
	stop()

	large := strings.Repeat("2", 60_000)
	cp.set(clusterType, "a", large)
	config.Upstreams = []string{throttled(t, address, 4<<10, 150*time.Millisecond)}
	relay, _ = run(t, config)
	envoy := newEnvoyLike(t, relay)
	envoy.start("a", "b")
	envoy.expect("while the control plane sends", map[string]string{
		"Cluster a": "1", "Cluster b": "1", "ClusterLoadAssignment a": "1", "ClusterLoadAssignment b": "1", "Listener in": "1"})
	for envoy.holds["Cluster a"] != large {
		if r := envoy.take(clusterType, ""); len(r.Resources) == 0 {
			t.Fatal("the control plane's response has no clusters")
		}
	}
}
