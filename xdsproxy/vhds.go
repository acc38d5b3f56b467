package xdsproxy

import (
	"strings"

	"github.com/pilotfish-mesh/pilotfish/xdsproxy/lastgood"
)

const (
	routeConfigType = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"
	virtualHostType = "type.googleapis.com/envoy.config.route.v3.VirtualHost"
)

// routeName returns the name of the route configuration of a virtual host. It is the part of the virtual host's
// resource name before the last slash.
func routeName(host string) string { return host[:max(0, strings.LastIndexByte(host, '/'))] }

// virtualHosts returns the names of the stored virtual hosts of routes. It ignores route configurations that Envoy does
// not request. If routes is nil, it returns the virtual hosts of all route configurations that Envoy requests.
//
// Envoy subscribes to the virtual hosts of all route configurations at once (VHDS). It ignores virtual hosts that
// arrive before their route configuration, and each route configuration waits for its virtual hosts. If a route
// configuration has no virtual hosts, the result contains a name that is not stored. The response reports this name as
// removed, which ends the wait.
func (s *streamState) virtualHosts(routes []string, snapshot *lastgood.Snapshot) (names []string) {
	t := s.types[routeConfigType]
	if t == nil {
		return nil
	}
	byRoute := make(map[string][]string)
	for _, name := range snapshot.Names(virtualHostType) {
		byRoute[routeName(name)] = append(byRoute[routeName(name)], name)
	}
	if routes == nil {
		routes = sortedKeys(t.names)
	}
	for _, route := range routes {
		if _, ok := t.names[route]; !ok {
			continue
		}
		if len(byRoute[route]) == 0 {
			byRoute[route] = []string{route + "/none"}
		}
		names = append(names, byRoute[route]...)
	}
	return names
}

// sendVirtualHosts sends the stored virtual hosts of the route configurations. It is called after the route
// configurations were sent.
func (s *session) sendVirtualHosts(routes []string) error {
	s.mu.Lock()
	var names []string
	if snapshot, t := s.record.snapshot, s.state.types[virtualHostType]; snapshot != nil && t != nil && t.all {
		names = s.state.virtualHosts(append([]string{}, routes...), snapshot)
	}
	s.mu.Unlock()
	if len(names) == 0 {
		return nil
	}
	return s.sendStoredResources(virtualHostType, names)
}
