//go:build !linux

package redirect

import (
	"errors"
	"net/netip"
)

var errLinux = errors.New("traffic is redirected on Linux only")

type namespace struct{}

func openNamespace(name string) (namespace, error) {
	if name == "" {
		return namespace{}, nil
	}
	return namespace{}, errLinux
}

func (namespace) fd() int                              { return -1 }
func (namespace) close()                               {}
func (namespace) listAddresses() ([]netip.Addr, error) { return nil, nil }
