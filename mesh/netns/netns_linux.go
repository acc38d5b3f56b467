package netns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Namespace is a network namespace, for as long as it is open or a process is in it. Its methods may be called
// concurrently.
type Namespace struct{ handle netns.NsHandle }

// New makes a namespace whose loopback is up. It needs CAP_SYS_ADMIN and CAP_NET_ADMIN.
func New() (*Namespace, error) {
	n := &Namespace{handle: netns.None()}
	if err := n.make(); err != nil {
		return nil, err
	}
	if err := n.Netlink(loopbackUp); err != nil {
		return nil, errors.Join(fmt.Errorf("loopback of a network namespace: %w", err), n.Close())
	}
	return n, nil
}

func (n *Namespace) make() (err error) {
	OnThread(func() {
		if err = unix.Unshare(unix.CLONE_NEWNET); err != nil {
			err = fmt.Errorf("making a network namespace: %w", err)
		} else if n.handle, err = netns.Get(); err != nil {
			err = fmt.Errorf("opening a network namespace: %w", err)
		}
	})
	return err
}

func loopbackUp(h *netlink.Handle) error {
	lo, err := h.LinkByName("lo")
	if err != nil {
		return err
	}
	return h.LinkSetUp(lo)
}

// Close lets go of the namespace.
func (n *Namespace) Close() error { return n.handle.Close() }

// FD is the namespace for calls of the kernel and for netlink; it is the namespace's own, and ends with Close.
func (n *Namespace) FD() int { return int(n.handle) }

// Do runs f on a thread that is in the namespace. What f starts in other goroutines is not.
func (n *Namespace) Do(f func() error) error {
	var err error
	onThread(func() (clean bool) {
		clean, err = n.visit(f)
		return clean
	})
	return err
}

// visit runs f on this thread, and says whether the thread is back where it was.
func (n *Namespace) visit(f func() error) (back bool, err error) {
	home, err := netns.Get()
	if err != nil {
		return true, fmt.Errorf("the thread's network namespace: %w", err)
	}
	defer home.Close()
	if err := n.EnterThread(); err != nil {
		return true, err
	}
	err = f()
	return netns.Set(home) == nil, err
}

// EnterThread moves the calling thread into the namespace, for good; the goroutine has to be locked to it.
func (n *Namespace) EnterThread() error {
	if err := netns.Set(n.handle); err != nil {
		return fmt.Errorf("entering a network namespace: %w", err)
	}
	return nil
}

// The libraries' own ways into a namespace would lose track of a thread that may not go back, as one of an ordinary user may
// not; so their sockets are opened by Do.

// Netlink has f talk to the kernel in the namespace by these protocols, or by all.
func (n *Namespace) Netlink(f func(*netlink.Handle) error, protocols ...int) error {
	var h *netlink.Handle
	err := n.Do(func() (err error) {
		h, err = netlink.NewHandle(protocols...)
		return err
	})
	if err != nil {
		return fmt.Errorf("netlink of a network namespace: %w", err)
	}
	defer h.Close()
	return f(h)
}

// Filter puts in force in the namespace what f says of tables of nftables.
func (n *Namespace) Filter(f func(*nftables.Conn)) error {
	return n.Do(func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		f(c)
		return c.Flush()
	})
}

// Dial connects from within the namespace to an address, which is not a name.
func (n *Namespace) Dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	var dialer net.Dialer
	err = n.Do(func() (err error) {
		conn, err = dialer.DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// Listen listens in the namespace.
func (n *Namespace) Listen(network, address string) (l net.Listener, err error) {
	err = n.Do(func() (err error) {
		l, err = net.Listen(network, address)
		return err
	})
	return l, err
}

// ListenPacket opens a socket for datagrams in the namespace.
func (n *Namespace) ListenPacket(network, address string) (c net.PacketConn, err error) {
	err = n.Do(func() (err error) {
		c, err = net.ListenPacket(network, address)
		return err
	})
	return c, err
}

// Set sets a parameter below /proc/sys/net, which each namespace has its own of.
func (n *Namespace) Set(parameter, value string) error {
	return n.Do(func() error { return os.WriteFile("/proc/sys/net/"+parameter, []byte(value), 0o644) })
}
