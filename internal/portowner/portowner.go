// Package portowner says who is in the way when a port cannot be bound.
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

// Holder is a process that holds a port.
type Holder struct {
	PID int
	// Command is its command line, shortened; empty where it cannot be read.
	Command string
}

func (h Holder) String() string {
	who := "pid " + strconv.Itoa(h.PID)
	if h.PID == os.Getpid() {
		who += ", this very process"
	}
	if h.Command == "" {
		return who
	}
	return fmt.Sprintf("%s (%s)", h.Command, who)
}

// ConflictError says that an address is taken, and by whom as far as that can be known.
type ConflictError struct {
	Network, Address string
	// Holders is empty where the holder runs as another user or in another container.
	Holders []Holder
	Err     error
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("listening on %s %s: the port is taken by %s: %v", e.Network, e.Address, e.who(), e.Err)
}

func (e *ConflictError) Unwrap() error { return e.Err }

func (e *ConflictError) who() string {
	if len(e.Holders) == 0 {
		return "a process that cannot be seen from here (`ss -lntup` as root shows it); stop it or choose another address"
	}
	names := make([]string, len(e.Holders))
	for i, h := range e.Holders {
		names[i] = h.String()
	}
	return strings.Join(names, " and ") + "; stop it or choose another address"
}

// Explain turns the error of a failed net.Listen or net.ListenPacket into one that says what is in the way and what to
// do about it. Network and addr are what was given to Listen ("tcp", "127.0.0.1:15020"). A nil error stays nil.
func Explain(network, addr string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.EADDRINUSE):
		return &ConflictError{Network: network, Address: addr, Holders: holders(network, addr), Err: err}
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Errorf("listening on %s %s: this machine has no such address (`ip address` lists those it has): %w", network, addr, err)
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		return fmt.Errorf("listening on %s %s: not permitted; ports below 1024 need CAP_NET_BIND_SERVICE or root: %w", network, addr, err)
	}
	return fmt.Errorf("listening on %s %s: %w", network, addr, err)
}

// holders finds who holds the address; nothing when the address or /proc cannot be read.
func holders(network, addr string) []Holder {
	host, portText, err := net.SplitHostPort(addr)
	if err != nil {
		return nil
	}
	port, err := net.LookupPort(network, portText)
	if err != nil {
		return nil
	}
	return lookUp(network, address(host), uint16(port))
}

// address gives the unspecified address for a host that is empty or a name: any holder of the port is then of interest.
func address(host string) netip.Addr {
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return netip.IPv6Unspecified()
	}
	return ip.Unmap().WithZone("")
}
