package registry

import (
	"cmp"
	"encoding/binary"
	"hash/fnv"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// giveVirtualAddress gives a service that has no address one that stands for it alone, so that a connection to it can be
// told from all others by where it goes. The address follows from the name: it is the same in every run, and whatever other
// services there are, unless another name has led there already (partAddresses).
func (o Options) giveVirtualAddress(s *Service) {
	if !o.Virtual.IsValid() || len(s.Addresses)+len(s.Ranges) > 0 || strings.HasPrefix(s.Hostname, "*") || s.Resolution == Passthrough {
		return
	}
	s.Virtual = o.virtualAddress(s.Hostname, 0)
	s.Addresses = []netip.Addr{s.Virtual}
}

// virtualAddress is the address that a name leads to, or the nth after it.
func (o Options) virtualAddress(hostname string, nth int) netip.Addr {
	h := fnv.New64a()
	_, _ = h.Write([]byte(hostname))
	if nth > 0 {
		_, _ = h.Write([]byte("/" + strconv.Itoa(nth)))
	}
	base := o.Virtual.Masked().Addr().As4()
	host := uint32(1)<<(32-o.Virtual.Bits()) - 1
	number := binary.BigEndian.Uint32(base[:]) | uint32(h.Sum64()>>16)&host
	var addr [4]byte
	binary.BigEndian.PutUint32(addr[:], number)
	return netip.AddrFrom4(addr)
}

// partAddresses parts services that were given one address: it stays with an address that is written, or else with the
// first name, and the others have the next that their names lead to. So it depends on nothing but which services there are.
func (o Options) partAddresses(sources []*source) []*source {
	if !o.Virtual.IsValid() {
		return sources
	}
	holders := map[netip.Addr]string{} // "" for an address that is written
	each(sources, func(s *Service) {
		if !s.Virtual.IsValid() {
			for _, at := range s.Addresses {
				holders[at] = ""
			}
		} else if holder, held := holders[s.Virtual]; !held || s.Hostname < holder {
			holders[s.Virtual] = s.Hostname
		}
	})
	moved := o.move(sources, holders)
	return withAddresses(sources, moved)
}

func each(sources []*source, do func(*Service)) {
	for _, s := range sources {
		for _, service := range s.services {
			do(service)
		}
	}
}

// move finds addresses that nobody holds for those that do not hold theirs.
func (o Options) move(sources []*source, holders map[netip.Addr]string) map[string]netip.Addr {
	var names []string
	each(sources, func(s *Service) {
		if s.Virtual.IsValid() && holders[s.Virtual] != s.Hostname {
			names = append(names, s.Hostname)
		}
	})
	slices.Sort(names)
	moved := make(map[string]netip.Addr, len(names))
	for _, name := range slices.Compact(names) {
		for nth := 1; nth <= attempts; nth++ {
			at := o.virtualAddress(name, nth)
			if _, held := holders[at]; !held {
				holders[at], moved[name] = name, at
				break
			}
		}
	}
	return moved
}

// attempts are enough for any network that is not nearly full.
const attempts = 1000

// withAddresses has services at the addresses that they have now.
func withAddresses(sources []*source, moved map[string]netip.Addr) []*source {
	return replaced(sources, func(service *Service) *Service {
		if !service.Virtual.IsValid() {
			return service
		}
		at := cmp.Or(moved[service.Hostname], service.Virtual)
		if service.Addresses[0] == at {
			return service
		}
		other := *service
		other.Addresses = []netip.Addr{at}
		return &other
	})
}
