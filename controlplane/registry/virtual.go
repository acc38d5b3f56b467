package registry

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"net/netip"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
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

// sharedAddresses tells of services that were given the same address.
func (r *Registry) sharedAddresses() []config.Problem {
	if !r.opts.Virtual.IsValid() {
		return nil
	}
	var problems []config.Problem
	first := make(map[netip.Addr]*Service, len(r.Services))
	for _, service := range r.Services {
		for _, at := range service.Addresses {
			other := first[at]
			if other == nil {
				first[at] = service
			} else if r.opts.Virtual.Contains(at) && other.Hostname != service.Hostname {
				problems = append(problems, coded(config.SharedAddress, problemAt(r.bySource[service.Source].resource, "metadata.name", service.Hostname,
					fmt.Sprintf("its name leads to the address of %s, %s: a TCP port that both have goes to one of the two", other.Hostname, at),
					"rename it, or give it an address of its own: clusterIP of a Service, addresses of a ServiceEntry")))
			}
		}
	}
	return problems
}
