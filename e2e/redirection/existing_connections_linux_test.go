package redirection

import (
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// The socket of such a connection is not transparent, and TPROXY would drop its packets.
func TestExistingConnectionsSurviveCapture(t *testing.T) {
	for name, backend := range backends {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newTestNetwork(t)
			b := backend(t, w.pod)
			all := compiledSets(t, flags(star, dual, tproxy, []string{"istio-local-exclude-ports=8080"}), flags(star, dual, tproxy),
				flags(dual, tproxy, []string{"istio-inbound-ports=80,8080"}))
			apply := func(rules *iptables.RuleSet) {
				t.Helper()
				if err := b.Apply(t.Context(), rules); err != nil {
					t.Fatal(err)
				}
			}
			apply(all[0])
			var older []net.Conn
			for family := range 2 {
				older = append(older, w.echo(t, netip.AddrPortFrom(address("own", family), 8080)))
			}
			for _, rules := range all[1:] {
				apply(rules)
				for _, c := range older {
					if err := echoed(c); err != nil {
						t.Errorf("to %s: %v", c.RemoteAddr(), err)
					}
				}
			}
		})
	}
}

// echo returns a connection from the peer to an application that echoes its input. It has verified the first echo.
func (w *testNetwork) echo(t *testing.T, at netip.AddrPort) net.Conn {
	t.Helper()
	var l net.Listener
	err := w.pod.Run(func() (err error) {
		l, err = net.Listen("tcp", at.String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var c net.Conn
	err = w.peer.Run(func() (err error) {
		c, err = net.DialTimeout("tcp", at.String(), retryTimeout)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	app, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer app.Close()
		_, _ = io.Copy(app, app)
	}()
	if err := echoed(c); err != nil {
		t.Fatal(err)
	}
	return c
}

func echoed(c net.Conn) error {
	if err := c.SetDeadline(time.Now().Add(retryTimeout)); err != nil {
		return err
	}
	if _, err := c.Write([]byte{1}); err != nil {
		return err
	}
	_, err := c.Read(make([]byte, 1))
	return err
}
