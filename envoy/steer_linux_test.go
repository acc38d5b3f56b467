package envoy

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

const sharedBootstrap = `
admin: {address: {pipe: {path: %[1]s}}}
static_resources:
  listeners:
  - name: echo
    stat_prefix: echo
    address: {socket_address: {address: 127.107.30.1, port_value: 8080}}
    filter_chains: [{filters: [{name: echo, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.echo.v3.Echo}}]}]
`

func TestSteeredConnectionsGoToTheNewerEnvoy(t *testing.T) {
	dir := t.TempDir()
	var processes [2]*Process
	var admins [2]*Admin
	for i := range processes {
		name := fmt.Sprintf("%d.yaml", i)
		socket := fmt.Sprintf("%d.sock", i)
		if err := os.WriteFile(filepath.Join(dir, name), fmt.Appendf(nil, sharedBootstrap, socket), 0o600); err != nil {
			t.Fatal(err)
		}
		processes[i] = start(t, Config{Path: testenv.Envoy(t), Args: Options{ConfigPath: name, Concurrency: 2}.Args(), Dir: dir})
		admins[i] = NewAdmin(filepath.Join(dir, socket))
		defer admins[i].Close()
		awaitReady(t, processes[i], admins[i])
	}
	taken := func(i int) uint64 {
		stats, err := admins[i].Stats(t.Context(), `^listener\.echo\.downstream_cx_total$`)
		if err != nil {
			t.Fatal(err)
		}
		return stats["listener.echo.downstream_cx_total"]
	}
	connect := func(n int) {
		for range n {
			c, err := net.Dial("tcp", "127.107.30.1:8080")
			if err != nil {
				t.Fatal(err)
			}
			_, err = fmt.Fprint(c, "x")
			if err == nil {
				_, err = c.Read(make([]byte, 1))
			}
			if err != nil {
				t.Fatal(err)
			}
			_ = c.Close()
		}
	}

	s, err := Steer(processes[0], processes[1])
	if err != nil || s.Ports() != 1 {
		t.Fatalf("%d ports steered: %v", s.Ports(), err)
	}
	connect(50)
	if err := s.Narrow(); err != nil {
		t.Fatal(err)
	}
	connect(50)
	if old, young := taken(0), taken(1); old != 0 || young != 100 {
		t.Errorf("of 100 connections the older Envoy took %d, the newer %d", old, young)
	}
	s.End()
	connect(100) // all 100 with one by chance: 1 in 2^99
	if old, young := taken(0), taken(1); old == 0 || young == 100 {
		t.Errorf("once steering ended, the older Envoy took %d of 100, the newer %d", old, young-100)
	}
	if err := syscall.Kill(processes[0].PID(), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := processes[0].Unlisten(); err != nil {
		t.Fatal(err)
	}
	connect(100) // which would wait for the older Envoy for ever
}

func TestSocketsThatAnotherProcessHasTooAreNotClosed(t *testing.T) {
	const listen = `exec python3 -c '
import signal, socket, subprocess
def listener():
    s = socket.create_server(("127.107.30.2", 0))
    s.set_inheritable(True)
    return s
shared = listener()
other = subprocess.Popen(["sleep", "1000"], close_fds=False)
own = listener()
print(shared.getsockname()[1], own.getsockname()[1], flush=True)
signal.pause()
'`
	ready := make(chan string, 1)
	p := start(t, Config{Path: script(t, t.TempDir(), "envoy", listen), Output: onlyFirst(ready)})
	var shared, own int
	if _, err := fmt.Sscan(<-ready, &shared, &own); err != nil {
		t.Fatal(err)
	}
	if err := p.Unlisten(); err != nil {
		t.Fatal(err)
	}
	for port, open := range map[int]bool{shared: true, own: false} {
		c, err := net.Dial("tcp", fmt.Sprintf("127.107.30.2:%d", port))
		if (err == nil) != open {
			t.Errorf("port %d: %v, want it open: %v", port, err, open)
		}
		if err == nil {
			_ = c.Close()
		}
	}
}
