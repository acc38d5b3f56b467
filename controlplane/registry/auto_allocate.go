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

// allocateVirtualAddress allocates a virtual address for a service without an address. Proxies need the address to
// identify connections to the service. The address is a hash of the hostname, so it depends on other services only in a
// conflict (see resolveAddressConflicts). A service without ports receives no address, because no connection could use
// it.
func (o Options) allocateVirtualAddress(s *Service) {
	if !o.Virtual.IsValid() || len(s.Ports) == 0 || len(s.Addresses)+len(s.Ranges) > 0 || strings.HasPrefix(s.Hostname, "*") || s.Resolution == Passthrough {
		return
	}
	s.Virtual = o.virtualAddress(s.Hostname, 0)
	s.Addresses = []netip.Addr{s.Virtual}
}

// virtualAddress returns the virtual address of hostname, or its nth alternative if nth is not 0.
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

// resolveAddressConflicts assigns different addresses to services that have the same virtual address. A service whose
// document specifies the address retains it. Otherwise the service with the alphabetically first hostname retains it.
// The other services receive alternative addresses. The result depends only on the set of services.
func (o Options) resolveAddressConflicts(sources []*source) []*source {
	if !o.Virtual.IsValid() {
		return sources
	}
	holders := map[netip.Addr]string{} // the hostname is "" for a configured address
	forEachService(sources, func(s *Service) {
		if !s.Virtual.IsValid() {
			for _, at := range s.Addresses {
				holders[at] = ""
			}
		} else if holder, held := holders[s.Virtual]; !held || s.Hostname < holder {
			holders[s.Virtual] = s.Hostname
		}
	})
	moved := o.reallocate(sources, holders)
	return applyAddresses(sources, moved)
}

func forEachService(sources []*source, do func(*Service)) {
	for _, s := range sources {
		for _, service := range s.services {
			do(service)
		}
	}
}

// reallocate returns an alternative, free address for each hostname whose virtual address belongs to another service.
func (o Options) reallocate(sources []*source, holders map[netip.Addr]string) map[string]netip.Addr {
	var names []string
	forEachService(sources, func(s *Service) {
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

// attempts limits the search for a free address. It is sufficient unless the network is nearly full.
const attempts = 1000

// applyAddresses sets the address of each service to its address in moved, or else to its preferred virtual address.
func applyAddresses(sources []*source, moved map[string]netip.Addr) []*source {
	return replaceServices(sources, func(service *Service) *Service {
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
