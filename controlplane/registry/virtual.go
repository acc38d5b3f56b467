package registry

import (
	"encoding/binary"
	"hash/fnv"
	"net/netip"
	"strings"
)

// giveVirtualAddress gives a service that has no address one that stands for it alone, so that a connection to it can be
// told from all others by where it goes. The address follows from the name: it is the same in every run, whatever other
// services there are. That two of n names meet has a chance of n²/2^28 in a network of 2^27 addresses; then they share it,
// which only matters for ports of TCP that both have.
func (o Options) giveVirtualAddress(s *Service) {
	if !o.Virtual.IsValid() || len(s.Addresses) > 0 || strings.HasPrefix(s.Hostname, "*") || s.Resolution == Passthrough {
		return
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(s.Hostname))
	base := o.Virtual.Masked().Addr().As4()
	host := uint32(1)<<(32-o.Virtual.Bits()) - 1
	number := binary.BigEndian.Uint32(base[:]) | uint32(h.Sum64()>>16)&host
	var addr [4]byte
	binary.BigEndian.PutUint32(addr[:], number)
	s.Addresses = []netip.Addr{netip.AddrFrom4(addr)}
}
