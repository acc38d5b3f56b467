package dns

import (
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/miekg/dns"
)

const rcodeBusy = dns.RcodeServerFailure

// clientACL accepts queries of this machine only, so that the server is not an open resolver. Redirected packets arrive
// from any of the machine's own addresses, not only from loopback.
type clientACL struct {
	allowed []netip.Prefix
	now     func() time.Time
	own     func() []netip.Addr

	mu     sync.Mutex
	known  map[netip.Addr]bool
	looked time.Time
}

// refreshInterval limits how often unknown clients make the server list the machine's addresses.
const refreshInterval = 5 * time.Second

func (g *clientACL) admits(from netip.Addr) bool {
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

// isOwn reports whether an address belongs to this machine. For an unknown address, which may be new, it reads the list
// again.
func (g *clientACL) isOwn(address netip.Addr) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if now := g.now(); !g.known[address] && (g.known == nil || now.Sub(g.looked) >= refreshInterval) {
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
