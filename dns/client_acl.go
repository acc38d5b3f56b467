package dns

import (
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/miekg/dns"
)

const rcodeBusy = dns.RcodeServerFailure

// clientACL admits only clients on this machine and in the networks in allowed, so that the server is not an open
// resolver. It admits all addresses of the machine, because redirected queries may have any of them as source address.
type clientACL struct {
	allowed []netip.Prefix // additional networks
	now     func() time.Time
	own     func() []netip.Addr // lists the machine's addresses

	mu     sync.Mutex
	known  map[netip.Addr]bool // addresses that own returned last
	looked time.Time           // when own was called last
}

// refreshInterval is the minimum interval between two calls of clientACL.own.
const refreshInterval = 5 * time.Second

// admits reports whether the server responds to queries from an address.
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

// isOwn reports whether an address belongs to this machine. An unknown address may have been added to an interface
// since the last call of own, so isOwn then lists the addresses again.
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
