package iptables

import (
	"fmt"
	"slices"
)

// Normalize changes combinations of options that Istio tolerates but that would interrupt the pod's traffic. It
// replaces them by combinations that work, and adds a warning for each, which Warnings returns.
func (o *Options) Normalize() {
	o.warnPorts()
	o.VirtualInterfaces = o.withoutLoopback(flagVirtual, o.VirtualInterfaces, "it is the pod's loopback interface, not one of a virtual machine")
	for _, name := range o.VirtualInterfaces {
		if slices.Contains(o.ExcludeInterfaces, name) {
			o.AddWarning(fmt.Sprintf("%s: %q is also in %s, so traffic from it is handled as outbound, and traffic to it is not redirected",
				titleOf(flagVirtual), name, titleOf(flagInterfaces)))
		}
	}
	if o.Interception == TProxyMode {
		o.normalizeTProxy()
	}
}

// ownPort is a port of Envoy or the agent.
type ownPort struct {
	name string
	port uint16
}

func (o *Options) ownPorts() []ownPort {
	return []ownPort{{flagProxyPort, o.ProxyPort}, {flagInboundPort, o.InboundPort}, {flagTunnelPort, o.TunnelPort}, {flagDNSPort, o.DNSPort}}
}

// warnPorts adds a warning for each pair of equal ports of the proxy.
func (o *Options) warnPorts() {
	ports := o.ownPorts()
	for i, a := range ports {
		for _, b := range ports[:i] {
			if a.port == b.port && a.port != 0 {
				o.AddWarning(fmt.Sprintf("%s and %s are both %d: use different ports", titleOf(b.name), titleOf(a.name), a.port))
			}
		}
	}
}

func (o *Options) normalizeTProxy() {
	defaults := DefaultOptions()
	o.ExcludeInterfaces = o.withoutLoopback(flagInterfaces, o.ExcludeInterfaces,
		"with TPROXY, the proxy forwards inbound connections through lo, and their replies must match the rules")
	if o.TProxyMark == 0 || o.TProxyMark == selfCallMark {
		o.AddWarning(fmt.Sprintf("%s: %d cannot be used (%d marks the proxy's calls to its own pod); %d is used",
			titleOf(flagMark), o.TProxyMark, selfCallMark, defaults.TProxyMark))
		o.TProxyMark = defaults.TProxyMark
	}
	if !isUsableTable(o.TProxyTable) {
		o.AddWarning(fmt.Sprintf("%s: %d cannot be used: the kernel uses the tables 253 to 255; %d is used",
			titleOf(flagTable), o.TProxyTable, defaults.TProxyTable))
		o.TProxyTable = defaults.TProxyTable
	}
}

// isUsableTable reports whether a routing table has a valid number that the kernel does not use itself: the tables 253
// (default), 254 (main) and 255 (local).
func isUsableTable(n int) bool {
	return n >= 1 && (n < 253 || n > 255) && int64(n) <= 1<<31-1
}

func (o *Options) withoutLoopback(option string, list []string, reason string) []string {
	if !slices.Contains(list, loopback) {
		return list
	}
	o.AddWarning(fmt.Sprintf("%s: lo is ignored: %s", titleOf(option), reason))
	return slices.DeleteFunc(slices.Clone(list), func(name string) bool { return name == loopback })
}
