package redirect

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// nameLookup returns lookups of users and groups in /etc/passwd and /etc/group. It does not support other name services
// such as LDAP, because they require programs and libraries of the host.
func (p Process) nameLookup() iptables.Names {
	return iptables.Names{
		User:  func(name string) (uint32, error) { return p.lookupID("/etc/passwd", name) },
		Group: func(name string) (uint32, error) { return p.lookupID("/etc/group", name) },
	}
}

var errUnknownName = errors.New("no such name")

// lookupID returns the numeric ID of name in file, which is /etc/passwd or /etc/group. In both files, the ID is the
// third field.
func (p Process) lookupID(file, name string) (id uint32, err error) {
	found := false
	failed := p.scanLines(file, func(line string) bool {
		f := strings.Split(line, ":")
		if len(f) < 3 || f[0] != name {
			return false
		}
		var n uint64
		n, err = strconv.ParseUint(f[2], 10, 32)
		id, found = uint32(n), true
		return true
	})
	switch {
	case failed != nil:
		return 0, failed
	case !found:
		return 0, fmt.Errorf("%w in %s", errUnknownName, file)
	}
	return id, err
}

const defaultProxyID = 1337

// lookupProxyUser returns the UID of the user in $ENVOY_USER (default istio-proxy), and the source of that value for
// the command show. If the user is not in /etc/passwd, it returns 1337, as Istio does.
func (p Process) lookupProxyUser() (uint32, string) {
	name := p.env("ENVOY_USER")
	if name == "" {
		name = "istio-proxy"
	}
	if id, err := p.lookupID("/etc/passwd", name); err == nil {
		return id, "user " + name
	}
	return defaultProxyID, sourceDefault
}

// maxResolvers limits the number of DNS servers, because each needs several rules. Resolver libraries use only the
// first 3.
const maxResolvers = 64

// readResolvers returns the addresses of the DNS servers in /etc/resolv.conf.
func (p Process) readResolvers() ([]netip.Addr, error) {
	var all []netip.Addr
	err := p.scanLines("/etc/resolv.conf", func(line string) bool {
		f := strings.Fields(line)
		if len(f) < 2 || f[0] != "nameserver" {
			return false
		}
		if a, err := netip.ParseAddr(f[1]); err == nil {
			all = append(all, a.Unmap().WithZone(""))
		}
		return len(all) == maxResolvers
	})
	if err != nil {
		return nil, fmt.Errorf("reading the DNS servers to capture: %w; specify them with --dns-servers, or set --capture-all-dns", err)
	}
	return all, nil
}
