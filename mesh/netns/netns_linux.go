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

// Namespace is a network namespace. The kernel removes it when Close was called and no process is in it. Its methods
// are safe for concurrent use.
type Namespace struct{ handle netns.NsHandle }

// New creates a namespace with an active loopback interface. It needs CAP_SYS_ADMIN and CAP_NET_ADMIN.
func New() (*Namespace, error) {
	n := &Namespace{handle: netns.None()}
	if err := n.create(); err != nil {
		return nil, err
	}
	if err := n.Netlink(loopbackUp); err != nil {
		return nil, errors.Join(fmt.Errorf("setting up loopback in a network namespace: %w", err), n.Close())
	}
	return n, nil
}

func (n *Namespace) create() (err error) {
	OnThread(func() {
		if err = unix.Unshare(unix.CLONE_NEWNET); err != nil {
			err = fmt.Errorf("creating a network namespace: %w", err)
		} else if n.handle, err = netns.Get(); err != nil {
			err = fmt.Errorf("opening a network namespace: %w", err)
		}
	})
	return err
}

func loopbackUp(h *netlink.Handle) error {
	lo, err := h.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("looking up the interface lo: %w", err)
	}
	return h.LinkSetUp(lo)
}

// Close closes the namespace's file descriptor.
func (n *Namespace) Close() error { return n.handle.Close() }

// FD returns the namespace's file descriptor, for system calls and netlink. The caller must not close it, because Close
// does.
func (n *Namespace) FD() int { return int(n.handle) }

// Do runs f on a thread in the namespace. Goroutines that f starts run outside of the namespace.
func (n *Namespace) Do(f func() error) error {
	var err error
	onLockedThread(func() (clean bool) {
		clean, err = n.runOnThread(f)
		return clean
	})
	return err
}

// runOnThread runs f on this thread, and reports whether the thread is back in its original namespace.
func (n *Namespace) runOnThread(f func() error) (back bool, err error) {
	home, err := netns.Get()
	if err != nil {
		return true, fmt.Errorf("opening the thread's network namespace: %w", err)
	}
	defer home.Close()
	if err := n.EnterThread(); err != nil {
		return true, err
	}
	err = f()
	return netns.Set(home) == nil, err
}

// EnterThread moves the calling thread into the namespace permanently. The caller must have locked its goroutine to the
// thread.
func (n *Namespace) EnterThread() error {
	if err := netns.Set(n.handle); err != nil {
		return fmt.Errorf("entering a network namespace: %w", err)
	}
	return nil
}

// The netlink libraries can open sockets in a namespace themselves. However, they cannot restore a thread that is not
// permitted to switch back, as for unprivileged users. The functions below therefore open the sockets with Do.

// Netlink calls f with a netlink handle in the namespace. The handle supports the listed netlink protocols, or all if
// none is listed.
func (n *Namespace) Netlink(f func(*netlink.Handle) error, protocols ...int) error {
	var h *netlink.Handle
	err := n.Do(func() (err error) {
		h, err = netlink.NewHandle(protocols...)
		return err
	})
	if err != nil {
		return fmt.Errorf("opening netlink in a network namespace: %w", err)
	}
	defer h.Close()
	return f(h)
}

// Nftables applies the changes that f makes to nftables in the namespace.
func (n *Namespace) Nftables(f func(*nftables.Conn)) error {
	return n.Do(func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		f(c)
		return c.Flush()
	})
}

// Dial connects from the namespace to an address, which must not contain a host name.
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

// ListenPacket opens a packet socket in the namespace.
func (n *Namespace) ListenPacket(network, address string) (c net.PacketConn, err error) {
	err = n.Do(func() (err error) {
		c, err = net.ListenPacket(network, address)
		return err
	})
	return c, err
}

// Set sets a parameter below /proc/sys/net for this namespace. Each namespace has its own values.
func (n *Namespace) Set(parameter, value string) error {
	return n.Do(func() error { return os.WriteFile("/proc/sys/net/"+parameter, []byte(value), 0o644) })
}
