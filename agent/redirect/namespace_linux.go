package redirect

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// namespace is a network namespace; the zero value is the namespace of the process.
type namespace struct{ file *os.File }

// openNamespace opens the namespace whose path, or name in `ip netns`, is name. If name is "", it returns the namespace
// of the process.
func openNamespace(name string) (namespace, error) {
	if name == "" {
		return namespace{}, nil
	}
	path := name
	if !strings.Contains(name, "/") {
		path = filepath.Join("/run/netns", name)
	}
	f, err := os.Open(path)
	if err != nil {
		return namespace{}, fmt.Errorf("--network-namespace %q: %w; name a file such as /proc/1234/ns/net, or a namespace of `ip netns`", name, err)
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &fs); err != nil || fs.Type != unix.NSFS_MAGIC {
		return namespace{}, errors.Join(fmt.Errorf("--network-namespace %q is not a network namespace; name a file such as /proc/1234/ns/net", name), err, f.Close())
	}
	return namespace{f}, nil
}

// fd returns the namespace's file descriptor, or -1 for the namespace of the process.
func (n namespace) fd() int {
	if n.file == nil {
		return -1
	}
	return int(n.file.Fd())
}

func (n namespace) close() {
	if n.file != nil {
		_ = n.file.Close()
	}
}

// markerAddress is the address that the rules add to lo.
var markerAddress = netip.MustParseAddr("::6")

// listAddresses returns the addresses of the namespace's interfaces, except loopback ones and markerAddress.
func (n namespace) listAddresses() ([]netip.Addr, error) {
	ns := netns.None()
	if n.file != nil {
		ns = netns.NsHandle(n.fd())
	}
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("listing the addresses of the network namespace: %w", err)
	}
	defer h.Close()
	var list []netlink.Addr
	for range 10 { // retry, because the list is incomplete if addresses change meanwhile
		if list, err = h.AddrList(nil, netlink.FAMILY_ALL); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("listing the addresses of the network namespace: %w", err)
	}
	var all []netip.Addr
	for _, a := range list {
		if ip, ok := netip.AddrFromSlice(a.IP); ok && !ip.Unmap().IsLoopback() && ip != markerAddress {
			all = append(all, ip.Unmap())
		}
	}
	return all, nil
}
