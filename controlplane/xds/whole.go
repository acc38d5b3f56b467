package xds

import (
	"slices"
	"strings"
)

// Envoy of 1.37 to 1.39 forgets, and does not end, its subscription to the virtual hosts of a route configuration that becomes
// whole. Once the listeners that refer to the route configuration have gone, the next virtual hosts of that name crash it,
// removals too. What made the route configuration whole was another control plane; so it is told by what the client comes
// with: a route configuration of a version that was not made for a client of virtual hosts apart, or virtual hosts of one that
// it does not have. Such a client gets route configurations whole, and no answer that concerns virtual hosts. It goes on
// claiming those that it had, and so it is told whenever it comes again, with whole route configurations or with none. What
// cannot be told is one that had no virtual hosts at all before it was whole, and is no longer there.

// apartMark ends the version of each route configuration for a client that gets virtual hosts apart, also of one that always
// has its own within. It comes before what says that the version is provisional.
const apartMark = "+"

// WholeKeeper is a Proxy whose client may be unable to go back from whole route configurations to virtual hosts apart.
type WholeKeeper interface {
	// KeepWhole is called when the client may have had route configurations whole. It says whether none that is generated
	// from then on has its virtual hosts apart.
	KeepWhole() bool
}

// arrive looks at a first request for route configurations or virtual hosts. A client that comes back asks for the former
// first, if it asks for any.
func (c *connection) arrive(r *request) error {
	if sub, ok := c.subs[r.typeURL]; ok && sub.asked || c.whole {
		return nil
	}
	whole := false
	if r.typeURL == RouteType {
		c.arrived = map[string]bool{}
		for name, version := range r.initial {
			if strings.HasSuffix(strings.TrimSuffix(version, provisional), apartMark) {
				c.arrived[name] = true
			} else {
				whole = true
			}
		}
	} else {
		whole = slices.ContainsFunc(r.comesWith(), func(name string) bool { return !c.arrived[routeOf(name)] })
		c.arrived = nil
	}
	if !whole {
		return nil
	}
	return c.keepWhole()
}

// keepWhole has the client get whole route configurations on this stream, in place of those that it was sent on it.
func (c *connection) keepWhole() error {
	keeper, ok := c.proxy.(WholeKeeper)
	if !ok || !keeper.KeepWhole() {
		return nil
	}
	c.log.Info("the client may have had route configurations whole: it gets them whole until its Envoy is started anew")
	c.mu.Lock()
	c.whole, c.apart = true, newApart()
	delete(c.subs, VirtualHostType)
	delete(c.dirty, VirtualHostType)
	c.mu.Unlock()
	routes, ok := c.subs[RouteType]
	if !ok || !routes.asked {
		return nil
	}
	if err := c.catchUp(RouteType); err != nil {
		return err
	}
	return c.update(routes, Touched{All: true})
}
