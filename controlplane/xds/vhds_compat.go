package xds

import (
	"slices"
	"strings"
)

// This file works around a defect of Envoy 1.37 to 1.39. If a route configuration changes from VHDS to inline virtual
// hosts, Envoy leaks its VHDS subscription. After the listeners that refer to the route configuration are removed, the
// next VHDS response for the route configuration crashes Envoy. This includes a response with only removals. Such a
// change happens only if the client was connected to another control plane in between. The server detects this from the
// resources that the client reports: route configurations without vhdsVersionSuffix, or virtual hosts of route
// configurations that the client does not have. The server then sends inline virtual hosts and no VHDS responses. The
// client continues to report its old virtual hosts. The server therefore detects it again at each reconnect, whether or
// not the client still has route configurations. One case cannot be detected: the client had no virtual hosts before
// the change, and its route configuration was removed since.

// vhdsVersionSuffix is a suffix of the version of each route configuration for a client that supports VHDS, even if its
// virtual hosts are inline. Only provisionalSuffix may follow it.
const vhdsVersionSuffix = "+"

// checkVHDSClient checks the resources that a client reports in its first request for route configurations or virtual
// hosts. It disables VHDS if they reveal the change described above. A reconnecting client requests route
// configurations before virtual hosts.
func (c *connection) checkVHDSClient(r *request) error {
	if sub, ok := c.subs[r.typeURL]; ok && sub.requested || c.vhdsDisabled {
		return nil
	}
	inline := false
	if r.typeURL == RouteType {
		c.resumedRoutes = map[string]bool{}
		for name, version := range r.initial {
			if strings.HasSuffix(strings.TrimSuffix(version, provisionalSuffix), vhdsVersionSuffix) {
				c.resumedRoutes[name] = true
			} else {
				inline = true
			}
		}
	} else {
		inline = slices.ContainsFunc(r.initialNames(), func(name string) bool { return !c.resumedRoutes[routeOf(name)] })
		c.resumedRoutes = nil
	}
	if !inline {
		return nil
	}
	return c.disableVHDS()
}

// disableVHDS switches this stream to inline virtual hosts. It replaces the route configurations that were already sent
// on the stream.
func (c *connection) disableVHDS() error {
	if c.hooks.DisableVHDS == nil || !c.hooks.DisableVHDS() {
		return nil
	}
	c.log.Info("the client may have had route configurations with inline virtual hosts, so the control plane does not use VHDS for this client until its Envoy restarts")
	c.mu.Lock()
	c.vhdsDisabled, c.vhds = true, newVHDSState()
	delete(c.subs, VirtualHostType)
	delete(c.dirty, VirtualHostType)
	c.mu.Unlock()
	routes, ok := c.subs[RouteType]
	if !ok || !routes.requested {
		return nil
	}
	if err := c.sendClustersBefore(RouteType); err != nil {
		return err
	}
	return c.update(routes, TypeScope{All: true})
}
