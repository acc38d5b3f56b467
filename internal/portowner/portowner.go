// Package portowner finds the processes that own TCP and UDP sockets of this machine: the process that uses a port, and
// the client process of a loopback connection.
package portowner

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// Holder is a process that uses a port.
type Holder struct {
	PID int
	// Command is the command line, shortened. It is empty if this process cannot read it.
	Command string
}

func (h Holder) String() string {
	who := "pid " + strconv.Itoa(h.PID)
	if h.PID == os.Getpid() {
		who += ", this process itself"
	}
	if h.Command == "" {
		return who
	}
	return fmt.Sprintf("%s (%s)", h.Command, who)
}

// ConflictError is the error if an address is in use. If the processes that use it are known, the error names them.
type ConflictError struct {
	Network, Address string
	// Holders is empty if the process that uses the address runs as another user or in another container.
	Holders []Holder
	Err     error
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("listening on %s %s: the port is used by %s: %v", e.Network, e.Address, e.holderText(), e.Err)
}

func (e *ConflictError) Unwrap() error { return e.Err }

func (e *ConflictError) holderText() string {
	if len(e.Holders) == 0 {
		return "a process that this process cannot see (`ss -lntup` as root shows it); stop it or choose another address"
	}
	names := make([]string, len(e.Holders))
	for i, h := range e.Holders {
		names[i] = h.String()
	}
	return strings.Join(names, " and ") + "; stop it or choose another address"
}

// Explain adds the cause and a remedy to the error of a failed net.Listen or net.ListenPacket. If the port is in use,
// Explain names the process that uses it. network and addr are the arguments of Listen ("tcp", "127.0.0.1:15020"). If
// err is nil, it returns nil.
func Explain(network, addr string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.EADDRINUSE):
		return &ConflictError{Network: network, Address: addr, Holders: holders(network, addr), Err: err}
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Errorf("listening on %s %s: this machine does not have this address (see `ip address`): %w", network, addr, err)
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		return fmt.Errorf("listening on %s %s: not permitted; ports below 1024 need CAP_NET_BIND_SERVICE or root: %w", network, addr, err)
	}
	return fmt.Errorf("listening on %s %s: %w", network, addr, err)
}

// holders returns the processes that use the address, or nil if the address or /proc cannot be read.
func holders(network, addr string) []Holder {
	host, portText, err := net.SplitHostPort(addr)
	if err != nil {
		return nil
	}
	port, err := net.LookupPort(network, portText)
	if err != nil {
		return nil
	}
	return lookUp(network, parseHost(host), uint16(port))
}

// parseHost parses the IP address host. If host is empty or a name, it returns the unspecified address, which conflicts
// with every address.
func parseHost(host string) netip.Addr {
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return netip.IPv6Unspecified()
	}
	return ip.Unmap().WithZone("")
}
