package xdsproxy

import (
	"strings"

	"github.com/pilotfish-mesh/pilotfish/xdsproxy/lastgood"
)

const (
	routesType = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"
	hostsType  = "type.googleapis.com/envoy.config.route.v3.VirtualHost"
)

// routeOf is the route configuration that a virtual host is of: what is before the last slash of its name.
func routeOf(host string) string { return host[:max(0, strings.LastIndexByte(host, '/'))] }

// hostsOf are the virtual hosts of the route configurations that Envoy asks for, of only those if only is not nil. Envoy
// asks once for the virtual hosts of all of them, drops those that come before their route configuration, and waits for those of each:
// where there are none it has to be told so, by the removal of one.
func (s *streamState) hostsOf(only []string, snapshot *lastgood.Snapshot) (names []string) {
	t := s.types[routesType]
	if t == nil {
		return nil
	}
	byRoute := make(map[string][]string)
	for _, name := range snapshot.Names(hostsType) {
		byRoute[routeOf(name)] = append(byRoute[routeOf(name)], name)
	}
	if only == nil {
		only = sorted(t.names)
	}
	for _, route := range only {
		if _, asked := t.names[route]; !asked {
			continue
		}
		if len(byRoute[route]) == 0 {
			byRoute[route] = []string{route + "/none"}
		}
		names = append(names, byRoute[route]...)
	}
	return names
}

// answerHostsOf answers for the virtual hosts of the route configurations that a request asked for, behind these.
func (s *session) answerHostsOf(routes []string) error {
	s.mu.Lock()
	var names []string
	if snapshot, t := s.keeping.snapshot, s.state.types[hostsType]; snapshot != nil && t != nil && t.all {
		names = s.state.hostsOf(append([]string{}, routes...), snapshot)
	}
	s.mu.Unlock()
	if len(names) == 0 {
		return nil
	}
	return s.answer(hostsType, names)
}
