package hostile

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/internal/testns"
)

const (
	// metadataAddress is where clouds serve credentials to their machines.
	metadataAddress = "169.254.169.254"
	// metadataName resolves to it in the process under attack.
	metadataName = "keys.tenant.example"
	// internalText is what a tenant must not read of servers that only the platform reaches.
	internalText = "zq4711-internal-text"
)

// cloudMachine is a network namespace with a metadata service, as on a machine of a cloud.
type cloudMachine struct {
	*testns.Namespace
	t        *testing.T
	dir      string
	metadata atomic.Int32 // requests to the metadata service; one fails the test
}

// newCloudMachine returns a machine with further addresses.
func newCloudMachine(t *testing.T, addresses ...string) *cloudMachine {
	t.Helper()
	dir, err := os.MkdirTemp("", "cloud") // t.TempDir's path is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	m := &cloudMachine{Namespace: testns.New(t), t: t, dir: dir}
	m.Links(t, func(h *netlink.Handle) error {
		lo, err := h.LinkByName("lo")
		if err != nil {
			return err
		}
		for _, address := range append(addresses, metadataAddress) {
			ip, err := netlink.ParseAddr(address + "/32")
			if err != nil {
				return err
			}
			if err := h.AddrAdd(lo, ip); err != nil {
				return err
			}
		}
		return nil
	})
	m.serve(metadataAddress+":80", func(w http.ResponseWriter, _ *http.Request) {
		m.metadata.Add(1)
		fmt.Fprint(w, `{"AccessKeyId":"`+internalText+`"}`)
	})
	t.Cleanup(func() {
		if n := m.metadata.Load(); n > 0 {
			t.Errorf("the metadata service got %d requests", n)
		}
	})
	m.write("hosts", "127.0.0.1 localhost\n"+metadataAddress+" "+metadataName+"\n")
	return m
}

// listen listens in the machine's network until the test ends.
func (m *cloudMachine) listen(address string) net.Listener {
	m.t.Helper()
	return listenIn(m.t, m.Namespace, address)
}

// serve serves HTTP there, and returns the address.
func (m *cloudMachine) serve(address string, handler http.HandlerFunc) string {
	m.t.Helper()
	l := m.listen(address)
	server := &http.Server{Handler: handler}
	go func() { _ = server.Serve(l) }()
	m.t.Cleanup(func() { _ = server.Close() })
	return l.Addr().String()
}

// serveRaw answers each connection with a text.
func (m *cloudMachine) serveRaw(address, text string) string {
	m.t.Helper()
	l := m.listen(address)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 4096))
			_, _ = conn.Write([]byte(text))
			_ = conn.Close()
		}
	}()
	return l.Addr().String()
}

// write writes a file in the machine's folder, and returns its path.
func (m *cloudMachine) write(name, text string) string {
	m.t.Helper()
	path := filepath.Join(m.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		m.t.Fatal(err)
	}
	return path
}

// run runs a binary of the project there, with the machine's own hosts file, and returns its output.
func (m *cloudMachine) run(program string, args ...string) *testenv.Buffer {
	m.t.Helper()
	script := `mount --bind "$0" /etc/hosts && exec "$@"`
	cmd := exec.Command("unshare", append([]string{"--mount", "sh", "-c", script, filepath.Join(m.dir, "hosts"), testenv.Bin(m.t, program)}, args...)...)
	cmd.Env = append(os.Environ(), "HTTP_PROXY=", "http_proxy=", "HTTPS_PROXY=", "https_proxy=")
	output, _ := m.Start(m.t, cmd)
	return output
}
