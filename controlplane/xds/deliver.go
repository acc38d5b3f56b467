package xds

import (
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// healthReportType is what Istio's agents report with; it has no resources.
const healthReportType = "type.googleapis.com/istio.v1.HealthInformation"

// served says whether there are resources of the type at all. Of others a client is told that there are none.
func served(typeURL string) bool { return slices.Contains(Order, typeURL) }

// silent says whether the type is a client's report, which nobody answers.
func silent(typeURL string) bool { return typeURL == healthReportType }

// report hands a client's report on.
func (c *connection) report(r *request) {
	if reporter, ok := c.proxy.(Reporter); ok {
		reporter.Report(r.refusal == nil, r.refusal.GetMessage())
	}
}

// impliesWildcard says whether an empty first request of the type asks for all.
func impliesWildcard(typeURL string) bool {
	return typeURL == ClusterType || typeURL == ListenerType || typeURL == NameTableType || typeURL == ProxyConfigType
}

// subscription finds or makes the client's subscription to a type; fresh says that this is its first request. c.mu is held.
func (c *connection) subscription(typeURL string) (sub *subscription, fresh bool) {
	sub, ok := c.subs[typeURL]
	if !ok {
		sub = newSubscription(typeURL, &c.server.pages)
		c.subs[typeURL] = sub
	}
	fresh = !sub.asked
	sub.asked = true
	return sub, fresh
}

// answered books a request's ACK or NACK and gives the response that it answers, or nil. c.mu is held.
func (c *connection) answered(sub *subscription, r *request) *sent {
	if r.nonce == "" {
		return nil
	}
	b := sub.settle(r.nonce)
	if b == nil {
		c.server.metrics.expiredNonces.WithLabelValues(shortType(sub.typeURL)).Inc()
		return nil
	}
	if r.refusal == nil {
		sub.ack(b)
		if sub.typeURL == RouteType {
			c.apart.has(sub.wanted(namesOf(b.resources))) // what came when it was no longer asked for was dropped
		}
		return b
	}
	accepted := sub.ackedAt
	rejection := sub.nack(b, r.refusal.GetMessage())
	rejection.From = c.blame(sub.typeURL, rejection, accepted)
	if sub.typeURL == RouteType {
		c.apart.refused(b.resources)
	}
	c.server.metrics.rejects.WithLabelValues(shortType(sub.typeURL)).Inc()
	c.log.Warn("client rejected configuration", "type", shortType(sub.typeURL), "resources", clip(rejection.Resources),
		"reason", rejection.Reason, "from", documents(rejection.From))
	return b
}

// settled notes what differs after an answer, and tells the client's Proxy of it, if it wants to know.
func (c *connection) settled(sub *subscription, answer *sent, r *request, since time.Time) {
	if answer == nil {
		return
	}
	if sub.typeURL == ListenerType && r.refusal == nil && len(answer.resources) > 0 {
		c.reconsiderExtensions()
	}
	yielder, ok := c.proxy.(Yielder)
	if !ok {
		return
	}
	defer func() {
		if p := recover(); p != nil {
			c.log.Error("cannot tell what a client does without", "panic", p, "stack", string(debug.Stack()))
		}
	}()
	var touches Touches
	if r.refusal == nil {
		touches = yielder.Accepted(c.state, sub.typeURL, answer.resources, answer.removed)
	} else {
		refused := slices.DeleteFunc(slices.Clone(answer.resources), func(r *Resource) bool { return !slices.Contains(sub.rejection.Resources, r.Name) })
		touches = yielder.Refused(c.state, sub.typeURL, refused, sub.rejection.Reason, since)
	}
	if len(touches) > 0 {
		c.note(touches, time.Now())
	}
}

// reconsiderExtensions gives the filters' configurations that a client refused another chance: the listeners that it has
// taken now may fit them.
func (c *connection) reconsiderExtensions() {
	sub, ok := c.subs[ExtensionType]
	if !ok || len(sub.refused) == 0 {
		return
	}
	c.mu.Lock()
	names := mapKeys(sub.refused)
	clear(sub.refused)
	c.mu.Unlock()
	c.note(Touches{ExtensionType: {Names: names}}, time.Now())
}

// blame asks what rejected resources were made of. That it cannot be told is no reason to end a stream.
func (c *connection) blame(typeURL string, r *Rejection, since time.Time) (from []Blamed) {
	blamer, ok := c.proxy.(Blamer)
	if !ok {
		return nil
	}
	defer func() {
		if p := recover(); p != nil {
			c.log.Error("cannot tell what a rejected resource was made of", "panic", p)
		}
	}()
	return blamer.Blame(c.state, typeURL, r.Resources, r.Reason, since)
}

func documents(from []Blamed) []string {
	out := make([]string, len(from))
	for i, b := range from {
		out[i] = b.Document + " at " + b.At
	}
	return out
}

// clip shortens a list of names for a log line.
func clip(names []string) []string {
	const most = 10
	if len(names) <= most {
		return names
	}
	return append(slices.Clone(names[:most]), fmt.Sprintf("… and %d more", len(names)-most))
}

// generate has the client's resources made, while few others do so. An error is booked and logged here.
func (c *connection) generate(sub *subscription, wildcard bool, names []string) ([]*Resource, error) {
	if !wildcard && len(names) == 0 {
		return nil, nil
	}
	release, err := c.generator()
	if err != nil {
		return nil, err
	}
	defer release()
	start := time.Now()
	resources, err := c.callGenerate(sub.typeURL, wildcard, names)
	c.server.metrics.generateTime.WithLabelValues(shortType(sub.typeURL)).Observe(time.Since(start).Seconds())
	c.mu.Lock()
	sub.failed = err
	c.mu.Unlock()
	if sub.typeURL == RouteType {
		c.apart.note(resources)
	}
	if err != nil {
		c.server.metrics.generateErrors.WithLabelValues(shortType(sub.typeURL)).Inc()
		c.log.Error("cannot generate resources; the client keeps what it has", "type", shortType(sub.typeURL), "error", err)
	}
	return resources, err
}

// callGenerate turns a panic into an error: what breaks one client's configuration must not take the mesh down.
func (c *connection) callGenerate(typeURL string, wildcard bool, names []string) (resources []*Resource, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("generating %s for %s: panic: %v\n%s", shortType(typeURL), c.node, p, debug.Stack())
		}
	}()
	return c.proxy.Generate(c.state, typeURL, wildcard, names)
}

// deliver sends resources and removals of one type, and behind clusters their assignments. Without either it sends an
// empty response if that is wanted.
func (c *connection) deliver(sub *subscription, resources []*Resource, removed []string, evenEmpty bool) error {
	if len(resources) == 0 && len(removed) == 0 && !evenEmpty {
		return nil
	}
	for len(resources) > 1 && separate(sub.typeURL) && c.wire.protocol() == deltaProtocol {
		if err := c.respond(sub, resources[:1], nil); err != nil {
			return err
		}
		resources = resources[1:]
	}
	if err := c.respond(sub, resources, removed); err != nil {
		return err
	}
	if sub.typeURL == ClusterType {
		return c.sendAssignments(resources)
	}
	return nil
}

// separate says whether each resource of the type gets a response of its own. Envoy stops at the first bad
// RouteConfiguration of a response, and the good ones behind it would be lost.
func separate(typeURL string) bool { return typeURL == RouteType }

// respond sends one response of resources and removals.
func (c *connection) respond(sub *subscription, resources []*Resource, removed []string) error {
	return c.dispatch(sub, &response{resources: resources, removed: removed})
}

// dispatch books one response and sends it.
func (c *connection) dispatch(sub *subscription, r *response) error {
	c.nonces++
	resources := r.resources
	r.typeURL, r.version, r.nonce = sub.typeURL, c.version, strconv.FormatUint(c.nonces, 10)
	c.mu.Lock()
	if sub.typeURL == RouteType && c.wire.protocol() == deltaProtocol {
		r.resources = make([]*Resource, len(resources))
		for i, res := range resources {
			r.resources[i] = c.apart.sending(res)
		}
	}
	if sub.typeURL == VirtualHostType && len(c.waiting) > 0 {
		c.answering(r)
	}
	sub.record(r, c.wire.protocol() == sotwProtocol && impliesWildcard(sub.typeURL))
	c.mu.Unlock()
	c.server.metrics.pushes.WithLabelValues(shortType(sub.typeURL)).Inc()
	c.server.metrics.size.WithLabelValues(shortType(sub.typeURL)).Observe(float64(r.size()))
	return c.send(r)
}

// send hands a response to gRPC, which blocks while the client does not read. The stream ends when that takes too long,
// and the send with it.
func (c *connection) send(r *response) error {
	sent := make(chan error, 1)
	go func() { sent <- c.wire.send(r) }()
	timeout := time.NewTimer(c.server.cfg.SendTimeout)
	defer timeout.Stop()
	select {
	case err := <-sent:
		return err
	case <-c.ctx.Done():
		return c.ctx.Err()
	case <-c.server.stopping:
		return errStopping
	case <-timeout.C:
		c.server.metrics.sendTimeouts.Inc()
		return status.Errorf(codes.DeadlineExceeded, "the client has not read within %v what it was sent", c.server.cfg.SendTimeout)
	}
}

// sendAssignments sends the assignments of clusters that were just sent, changed or not: a cluster warms until an
// assignment comes behind it on the stream. A client that has not asked for assignments yet gets them when it does.
func (c *connection) sendAssignments(clusters []*Resource) error {
	sub, ok := c.subs[EndpointType]
	if !ok {
		c.owe(clusters)
		return nil
	}
	names := map[string]struct{}{}
	for _, cluster := range clusters {
		if cluster.Endpoints != "" {
			names[cluster.Endpoints] = struct{}{}
		}
	}
	if len(names) == 0 {
		return nil
	}
	if c.wire.protocol() == deltaProtocol { // the other one replaces its names with each request
		c.mu.Lock()
		for name := range names {
			sub.names.set(name, "")
		}
		sub.names.settle(sub.pages)
		c.mu.Unlock()
	}
	want, err := c.generate(sub, false, mapKeys(names))
	if err != nil {
		return nil
	}
	return c.deliver(sub, want, nil, false)
}

// owe notes that the assignments of clusters have to follow them.
func (c *connection) owe(clusters []*Resource) {
	if len(c.owed) == 0 {
		c.owed = slices.Clip(clusters) // many clients share the list
		return
	}
	c.owed = append(c.owed, clusters...)
	if len(c.owed) <= 2*c.subs[ClusterType].known.len()+pageSize {
		return
	}
	// One that asks for no assignments gets each change of its clusters all the same.
	newest := map[string]*Resource{}
	for _, cluster := range c.owed {
		newest[cluster.Name] = cluster
	}
	c.owed = slices.Collect(maps.Values(newest))
}

// takeOwed adds the assignments that are owed, of those that the client asks for now, to names.
func (c *connection) takeOwed(sub *subscription, names *ledger) {
	for _, cluster := range c.owed {
		if cluster.Endpoints != "" && sub.names.has(cluster.Endpoints) {
			names.set(cluster.Endpoints, "")
		}
	}
	c.owed = nil
}
