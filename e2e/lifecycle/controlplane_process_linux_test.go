package lifecycle

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/pilotfish-mesh/pilotfish/controlplane/ca"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/internal/testns"
)

const securePort = 15012

// remotePlanes runs control planes as processes in a network namespace. Tests can cut and slow the link to it, and kill
// and freeze the processes. The control planes share their configuration and their authority.
type remotePlanes struct {
	t         testing.TB
	outside   netip.Addr   // this machine's address on the link
	inside    []netip.Addr // those of the control planes
	namespace *testns.Namespace
	dir       string
	authority *ca.Authority
	pods      []*pod
}

func newRemotePlanes(t testing.TB) *remotePlanes {
	t.Helper()
	network := byte(os.Getpid() % 250) // parallel test processes use different networks
	at := func(host byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 213, network, host}) }
	linkName := fmt.Sprintf("pf-far-%d", network)
	f := &remotePlanes{t: t, dir: t.TempDir(), outside: at(1), inside: []netip.Addr{at(2), at(3)}}
	f.namespace = testns.New(t)
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: linkName, Flags: net.FlagUp}, PeerName: "eth0", PeerNamespace: netlink.NsFd(f.namespace.Handle)}
	here, err := netlink.NewHandle()
	if err == nil {
		err = here.LinkAdd(link)
	}
	if err != nil {
		t.Fatalf("a link to the namespace: %v", err)
	}
	t.Cleanup(func() { _ = here.LinkDel(link); here.Close() })
	f.namespace.Links(t, func(h *netlink.Handle) error { return addAddress(h, "eth0", f.inside...) })
	for _, err := range []error{
		addAddress(here, linkName, f.outside),
		os.MkdirAll(f.path("config"), 0o700), os.WriteFile(f.path("config/mesh.yaml"), []byte(documents), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if f.authority, err = ca.Load(f.path("state"), ca.Options{}); err != nil {
		t.Fatal(err)
	}
	return f
}

func addAddress(h *netlink.Handle, name string, addresses ...netip.Addr) error {
	link, err := h.LinkByName(name)
	if err != nil {
		return err
	}
	for _, a := range addresses {
		ip := &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(24, 32)}
		if err := h.AddrAdd(link, &netlink.Addr{IPNet: ip}); err != nil {
			return fmt.Errorf("address %s of %s: %w", a, name, err)
		}
	}
	return h.LinkSetUp(link)
}

func (f *remotePlanes) path(name string) string { return filepath.Join(f.dir, name) }

// Authority and SecureAddr are those of the first control plane.
func (f *remotePlanes) Authority() *ca.Authority { return f.authority }
func (f *remotePlanes) SecureAddr() netip.AddrPort {
	return netip.AddrPortFrom(f.inside[0], securePort)
}

// cut drops everything that the control planes send, without notice to either side, until restore is called.
func (f *remotePlanes) cut() (restore func()) {
	f.t.Helper()
	hole := &netlink.Route{Dst: &net.IPNet{IP: f.outside.AsSlice(), Mask: net.CIDRMask(32, 32)}, Type: syscall.RTN_BLACKHOLE}
	f.namespace.Links(f.t, func(h *netlink.Handle) error { return h.RouteAdd(hole) })
	return func() { f.namespace.Links(f.t, func(h *netlink.Handle) error { return h.RouteDel(hole) }) }
}

// slow limits what the control planes send to rate bytes per second, until restore is called.
func (f *remotePlanes) slow(rate uint64) (restore func()) {
	f.t.Helper()
	bucket := &netlink.Tbf{Rate: rate, Buffer: uint32(netlink.Xmittime(rate, 4000)), Limit: 64 << 10}
	f.namespace.Links(f.t, func(h *netlink.Handle) error {
		link, err := h.LinkByName("eth0")
		if err != nil {
			return err
		}
		bucket.QdiscAttrs = netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT}
		return h.QdiscAdd(bucket)
	})
	return func() { f.namespace.Links(f.t, func(h *netlink.Handle) error { return h.QdiscDel(bucket) }) }
}

// publish writes a configuration that routes traffic to the pods and adds the generation to each response.
func (f *remotePlanes) publish(generation int) {
	f.t.Helper()
	var b strings.Builder
	for _, p := range f.pods {
		fmt.Fprintf(&b, "---\napiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: %s, namespace: default}\n"+
			"spec: {address: %s, serviceAccount: default, labels: {app: %s, security.istio.io/tlsMode: istio}}\n", p.name, p.proxy, p.app)
	}
	fmt.Fprintf(&b, `---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: shop, namespace: default}
spec:
  hosts: [shop]
  http:
  - match: [{port: 8080}]
    route: [{destination: {host: shop, port: {number: 8080}}}]
    headers: {response: {set: {x-generation: "%d"}}}
  - match: [{port: 8082}]
    route: [{destination: {host: shop, port: {number: 8082}}}]
`, generation)
	next := f.path("next")
	if err := errors.Join(os.WriteFile(next, []byte(b.String()), 0o600), os.Rename(next, f.path("config/shop.yaml"))); err != nil {
		f.t.Fatal(err)
	}
}

// planeProcess is a control plane of its own.
type planeProcess struct {
	t     testing.TB
	cmd   *exec.Cmd
	ended <-chan struct{}
}

// start starts a control plane at one of the addresses inside the namespace. It ends with the test.
func (f *remotePlanes) start(at netip.Addr) *planeProcess {
	f.t.Helper()
	cmd := exec.Command(testenv.Bin(f.t, "pilotfish"), "control-plane", "--config-dir", f.path("config"), "--state-dir", f.path("state"),
		"--address", at.String(), "--port", "-2", "--token-port", "-2", "--monitoring-port", "-2")
	p := &planeProcess{t: f.t, cmd: cmd}
	_, p.ended = f.namespace.Start(f.t, cmd)
	testenv.Eventually(f.t, "the control plane takes connections", func() error {
		c, err := net.DialTimeout("tcp", netip.AddrPortFrom(at, securePort).String(), time.Second)
		if err == nil {
			_ = c.Close()
		}
		return err
	})
	return p
}

func (p *planeProcess) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

func (p *planeProcess) kill() {
	_ = p.cmd.Process.Kill() // it may have ended already
	<-p.ended
}
