package redirect

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// names looks users and groups up in the files of the machine. A name service beyond those would need programs and
// libraries of the host.
func (p Process) names() iptables.Names {
	return iptables.Names{
		User:  func(name string) (uint32, error) { return p.id("/etc/passwd", name) },
		Group: func(name string) (uint32, error) { return p.id("/etc/group", name) },
	}
}

var errUnknownName = errors.New("no such name")

// id is the third column of the line that begins with the name; both files are so.
func (p Process) id(file, name string) (id uint32, err error) {
	found := false
	failed := p.eachLine(file, func(line string) bool {
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

// proxyUser is the id of $ENVOY_USER, as Istio finds it, or else 1337.
func (p Process) proxyUser() (uint32, string) {
	name := p.env("ENVOY_USER")
	if name == "" {
		name = "istio-proxy"
	}
	if id, err := p.id("/etc/passwd", name); err == nil {
		return id, "user " + name
	}
	return defaultProxyID, sourceDefault
}

// maxResolvers is far beyond what resolver libraries read of the file (3), each of which is some rules here.
const maxResolvers = 64

// resolvers are those of resolv.conf.
func (p Process) resolvers() ([]netip.Addr, error) {
	var all []netip.Addr
	err := p.eachLine("/etc/resolv.conf", func(line string) bool {
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
		return nil, fmt.Errorf("the resolvers whose DNS is to be captured: %w; name them with --dns-servers, or set --capture-all-dns", err)
	}
	return all, nil
}
