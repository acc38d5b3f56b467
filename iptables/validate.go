package iptables

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// selfCallMark is the mark of the proxy's connections to its own pod, if TPROXY is used. Istio uses the same number.
const selfCallMark = 1338

// maxOwnerGroups is the maximum number of groups. It is the same as in Istio, where all groups become conditions of one
// rule.
const maxOwnerGroups = 64

// Validate checks the options and their combinations. It returns all errors joined; each names the option, its value and
// the remedy.
func (o *Options) Validate() error {
	var errs []error
	refuse := func(name, remedy string) {
		errs = append(errs, fmt.Errorf("%s %q: %s", titleOf(name), o.Get(name), remedy))
	}
	o.validatePorts(refuse)
	o.validateProxy(refuse)
	o.validateInterception(refuse)
	o.validateOutbound(refuse)
	o.validateFamilies(refuse)
	return errors.Join(errs...)
}

func (o *Options) validatePorts(refuse func(name, remedy string)) {
	for _, p := range o.ownPorts() {
		if p.port == 0 {
			refuse(p.name, "use a port from 1 to 65535")
		}
	}
	for _, l := range []struct {
		name string
		list []PortRange
	}{
		{flagInbound, o.InboundPorts.Listed}, {flagInboundExclude, o.InboundExcludePorts},
		{flagOutbound, o.OutboundPorts}, {flagOutboundExclude, o.OutboundExcludePorts},
	} {
		if slices.ContainsFunc(l.list, func(p PortRange) bool { return p.First == 0 || p.Last < p.First }) {
			refuse(l.name, "use ports from 1 to 65535, and ranges whose first port is not greater than the last")
		}
	}
	if o.InboundPorts.All && len(o.InboundPorts.Listed) > 0 {
		refuse(flagInbound, errStar.Error())
	}
}

func (o *Options) validateProxy(refuse func(name, remedy string)) {
	if len(o.ProxyUIDs) == 0 && len(o.ProxyGIDs) == 0 {
		refuse(flagUID, "name the user or the group that the proxy runs as; otherwise its own connections are captured in a loop")
	}
	for _, l := range []struct {
		name string
		ids  []uint32
	}{{flagUID, o.ProxyUIDs}, {flagGID, o.ProxyGIDs}, {envGroups, o.OwnerGroups.Listed}, {envExcludeGroups, o.ExcludeOwnerGroups}} {
		if slices.Contains(l.ids, 1<<32-1) {
			refuse(l.name, "4294967295 is not a valid ID: use a number from 0 to 4294967294")
		}
	}
	if len(o.OwnerGroups.Listed) > maxOwnerGroups {
		refuse(envGroups, fmt.Sprintf("use at most %d groups", maxOwnerGroups))
	}
	if !o.OwnerGroups.All && len(o.OwnerGroups.Listed) == 0 {
		refuse(envGroups, `use "*" or a list of groups`)
	}
	if o.OwnerGroups.All && len(o.OwnerGroups.Listed) > 0 {
		refuse(envGroups, errStar.Error())
	}
	if slices.Contains(o.VirtualInterfaces, loopback) {
		refuse(flagVirtual, "lo is the pod's loopback interface: use only interfaces of virtual machines")
	}
}

func (o *Options) validateInterception(refuse func(name, remedy string)) {
	switch o.Interception {
	case RedirectMode:
		return
	case TProxyMode:
	default:
		refuse(flagMode, "use REDIRECT or TPROXY")
		return
	}
	if slices.Contains(o.ExcludeInterfaces, loopback) {
		refuse(flagInterfaces, "remove lo: with TPROXY, the proxy forwards inbound connections through lo, and their replies must match the rules")
	}
	if o.TProxyMark == 0 || o.TProxyMark == selfCallMark {
		refuse(flagMark, fmt.Sprintf("use a number other than 0 and %d; %d marks the proxy's calls to its own pod", selfCallMark, selfCallMark))
	}
	if !isUsableTable(o.TProxyTable) {
		refuse(flagTable, "use a number from 1 to 252, or above 255: the kernel uses the tables 253 to 255")
	}
}

func (o *Options) validateOutbound(refuse func(name, remedy string)) {
	if o.OutboundCIDRs.All && len(o.OutboundCIDRs.Listed) > 0 {
		refuse(flagCIDRs, errStar.Error())
	}
	bad := func(p netip.Prefix) bool { return !p.IsValid() || p.Masked() != p || p.Addr().Is4In6() }
	if slices.ContainsFunc(o.OutboundCIDRs.Listed, bad) {
		refuse(flagCIDRs, "use CIDRs without host bits")
	}
	if slices.ContainsFunc(o.OutboundExcludeCIDRs, bad) {
		refuse(flagExcludeCIDRs, "use CIDRs without host bits")
	}
	if l := o.LoopbackCIDR; bad(l) || !l.Addr().Is4() || !l.Addr().IsLoopback() || l.Bits() < 8 {
		refuse(envLoopback, "use a CIDR within 127.0.0.0/8, such as 127.0.0.1/32")
	}
	if slices.ContainsFunc(o.DNSServers, func(a netip.Addr) bool { return !a.IsValid() || a.Zone() != "" || a.Is4In6() }) {
		refuse(flagDNSServers, "use IP addresses without a zone")
	}
}

func (o *Options) validateFamilies(refuse func(name, remedy string)) {
	if !slices.Contains([]IPv6Policy{IPv6Auto, IPv6Capture, IPv6Reject, IPv6Pass}, o.IPv6) {
		refuse(flagIPv6, "use auto, capture, reject or pass")
	}
	if o.DualStack && (o.IPv6 == IPv6Reject || o.IPv6 == IPv6Pass) {
		refuse(flagIPv6, "contradicts --dual-stack, which captures IPv6: remove one of the two")
	}
}
