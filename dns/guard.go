package dns

import (
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/miekg/dns"
)

const rcodeBusy = dns.RcodeServerFailure

// guard keeps the server from being an open resolver. Packets that were redirected here come from the machine's own
// addresses, not only from loopback ones.
type guard struct {
	allowed []netip.Prefix
	now     func() time.Time
	own     func() []netip.Addr

	mu     sync.Mutex
	known  map[netip.Addr]bool
	looked time.Time
}

// lookAgain bounds how often strangers make us list the machine's addresses.
const lookAgain = 5 * time.Second

func (g *guard) admits(from netip.Addr) bool {
	from = from.Unmap().WithZone("")
	if from.IsLoopback() {
		return true
	}
	for _, prefix := range g.allowed {
		if prefix.Contains(from) {
			return true
		}
	}
	return g.isOwn(from)
}

// isOwn looks again for an address that is not known, which may be new.
func (g *guard) isOwn(address netip.Addr) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if now := g.now(); !g.known[address] && (g.known == nil || now.Sub(g.looked) >= lookAgain) {
		g.known, g.looked = make(map[netip.Addr]bool), now
		for _, own := range g.own() {
			g.known[own] = true
		}
	}
	return g.known[address]
}

func interfaceAddresses() []netip.Addr {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	var own []netip.Addr
	for _, address := range all {
		if prefix, err := netip.ParsePrefix(address.String()); err == nil {
			own = append(own, prefix.Addr().Unmap())
		}
	}
	return own
}
