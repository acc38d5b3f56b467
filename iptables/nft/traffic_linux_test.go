package nft

import (
	"context"
	"errors"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/internal/testns"
	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// wire connects a pod's namespace to a second namespace, in which connections that bypass the proxy arrive.
type wire struct {
	pod, beyond *testns.Namespace
	// captured and escaped count the packets that arrived at the proxy's ports, and at other ports.
	captured, escaped atomic.Int64
}

const (
	podAddress    = "10.77.0.1"
	beyondAddress = "10.77.0.2"
	podAddress6   = "fd77::1"
	beyondAddr6   = "fd77::2"
)

// inEach lists the addresses for tests that run once for each address family.
var inEach = []struct{ pod, beyond string }{{podAddress, beyondAddress}, {podAddress6, beyondAddr6}}

func newWire(t testing.TB) *wire {
	t.Helper()
	w := &wire{pod: testns.New(t), beyond: testns.New(t)}
	w.pod.Links(t, func(h *netlink.Handle) error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "eth0"
		return h.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(w.beyond.Handle))})
	})
	up := func(n *testns.Namespace, addresses ...string) {
		n.Links(t, func(h *netlink.Handle) error {
			link, err := h.LinkByName("eth0")
			if err != nil {
				return err
			}
			for _, a := range addresses {
				address, err := netlink.ParseAddr(a)
				if err != nil {
					return err
				}
				address.Flags = unix.IFA_F_NODAD
				if err := h.AddrAdd(link, address); err != nil {
					return err
				}
			}
			return h.LinkSetUp(link)
		})
	}
	up(w.pod, podAddress+"/24", podAddress6+"/64")
	up(w.beyond, beyondAddress+"/24", beyondAddr6+"/64")
	return w
}

// listen counts the connections to a port on all addresses.
func (w *wire) listen(t testing.TB, ns *testns.Namespace, address string, count *atomic.Int64) {
	t.Helper()
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		_ = c.Control(func(fd uintptr) { // TPROXY requires a socket that accepts any address
			err = errors.Join(unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_TRANSPARENT, 1),
				unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_TRANSPARENT, 1))
		})
		return err
	}}
	var l net.Listener
	err := ns.Run(func() (err error) {
		l, err = lc.Listen(context.Background(), "tcp", address)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			count.Add(1)
			closeAtOnce(c)
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		wg.Wait()
	})
}

// closeAtOnce makes close send a reset, so that the port does not remain in TIME_WAIT.
func closeAtOnce(c net.Conn) {
	_ = c.(*net.TCPConn).SetLinger(0)
	_ = c.Close()
}

// connect opens connections one after the other until the context ends. It pauses between them, to limit the load.
func (w *wire) connect(ctx context.Context, from *testns.Namespace, to string) {
	_ = from.Run(func() error {
		d := net.Dialer{Timeout: 3 * time.Second}
		pace := time.NewTicker(2 * time.Millisecond)
		defer pace.Stop()
		for ctx.Err() == nil {
			<-pace.C
			if c, err := d.DialContext(ctx, "tcp", to); err == nil {
				closeAtOnce(c)
			}
		}
		return nil
	})
}

// replacements returns how many times the tests replace rules under traffic: $PILOTFISH_TEST_REPLACEMENTS, or 400.
func replacements(t *testing.T) int {
	text := os.Getenv("PILOTFISH_TEST_REPLACEMENTS")
	if text == "" {
		return 400
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 2 {
		t.Fatalf("PILOTFISH_TEST_REPLACEMENTS=%s: use a number of at least 2", text)
	}
	return n
}

func TestNoConnectionEscapesWhileRulesAreReplaced(t *testing.T) {
	times := replacements(t)
	for _, c := range [][2]string{{"dual stack", "dual stack, other"}, {"dual stack", "tproxy both"}} {
		t.Run(strings.Join(c[:], " and "), func(t *testing.T) {
			w := newWire(t)
			for _, port := range []string{":15001", ":15006"} {
				w.listen(t, w.pod, port, &w.captured)
			}
			w.listen(t, w.pod, ":8080", &w.escaped)
			w.listen(t, w.beyond, ":80", &w.escaped)
			b := backend(t, Config{NetNS: int(w.pod.Handle)})
			sets := []*iptables.RuleSet{compile(t, trafficChoices(c[0])), compile(t, trafficChoices(c[1]))}
			mustApply(t, b, sets[0])
			ctx, stop := context.WithCancel(context.Background())
			var wg sync.WaitGroup
			for _, family := range inEach {
				wg.Go(func() { w.connect(ctx, w.pod, net.JoinHostPort(family.beyond, "80")) })
				wg.Go(func() { w.connect(ctx, w.beyond, net.JoinHostPort(family.pod, "8080")) })
			}
			for i := range times / 2 {
				mustApply(t, b, sets[(i+1)%2])
			}
			stop()
			wg.Wait()
			t.Logf("%d connections were captured", w.captured.Load())
			if n := w.escaped.Load(); n > 0 || w.captured.Load() < int64(times) {
				t.Errorf("%d connections escaped, %d were captured", n, w.captured.Load())
			}
		})
	}
}

func trafficChoices(name string) func(*iptables.Options) {
	return func(o *iptables.Options) {
		o.InboundPorts.All, o.OutboundCIDRs.All, o.DualStack = true, true, true
		switch name {
		case "dual stack, other":
			o.OutboundExcludePorts = []iptables.PortRange{port(1, 20), port(100, 200)}
			o.InboundExcludePorts = []iptables.PortRange{port(9000, 9000)}
			o.RedirectDNS, o.CaptureAllDNS = true, true
		case "tproxy both":
			o.Interception = iptables.TProxyMode
		}
	}
}

func mustApply(t testing.TB, b *Backend, rules *iptables.RuleSet) {
	t.Helper()
	if err := b.Apply(context.Background(), rules); err != nil {
		t.Fatal(err)
	}
}
