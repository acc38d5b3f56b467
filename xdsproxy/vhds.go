package xdsproxy

import (
	"strings"

	"github.com/pilotfish-mesh/pilotfish/xdsproxy/lastgood"
)

const (
	routeConfigType = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"
	virtualHostType = "type.googleapis.com/envoy.config.route.v3.VirtualHost"
)

// routeName returns the route configuration of a virtual host: the part of its name before the last slash.
func routeName(host string) string { return host[:max(0, strings.LastIndexByte(host, '/'))] }

// virtualHosts returns the stored virtual hosts of the route configurations that Envoy requests, restricted to only if
// that is not nil. Envoy requests the virtual hosts of all route configurations at once. It drops those that arrive
// before their route configuration, and waits for those of each. If a route configuration has none, the result contains
// a name that is not stored, whose removal ends the wait.
func (s *streamState) virtualHosts(only []string, snapshot *lastgood.Snapshot) (names []string) {
	t := s.types[routeConfigType]
	if t == nil {
		return nil
	}
	byRoute := make(map[string][]string)
	for _, name := range snapshot.Names(virtualHostType) {
		byRoute[routeName(name)] = append(byRoute[routeName(name)], name)
	}
	if only == nil {
		only = sortedKeys(t.names)
	}
	for _, route := range only {
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

// sendVirtualHosts sends the virtual hosts of the route configurations that a request subscribed to, after the route
// configurations.
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
	return s.sendStored(virtualHostType, names)
}
