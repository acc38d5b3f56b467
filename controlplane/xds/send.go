package xds

import (
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// healthReportType is the type of the health reports of Istio's agents. No resources of this type exist.
const healthReportType = "type.googleapis.com/istio.v1.HealthInformation"

// DegradationType is the type of the requests by which an agent reports that its proxy serves, but not as its
// configuration specifies. error_detail is the reason. No resources of this type exist.
const DegradationType = "type.googleapis.com/pilotfish.v1.Degradation"

// types returns the types that the client can request, in the order in which one push sends them.
func (c *connection) types() []string {
	if c.hooks.Types != nil {
		return c.hooks.Types
	}
	return Order
}

// isServed reports whether the server has resources of the type for the client.
func (c *connection) isServed(typeURL string) bool { return slices.Contains(c.types(), typeURL) }

// isDocumentType reports whether resources of the type are documents, and not resources of Envoy or of the agent.
func isDocumentType(typeURL string) bool { return !strings.HasPrefix(typeURL, "type.googleapis.com/") }

// isReport reports whether requests of the type are reports of an agent, to which the server does not respond.
func isReport(typeURL string) bool { return typeURL == healthReportType || typeURL == DegradationType }

// handleReport handles a report. It passes a health report to the client's Proxy, and stores the reason of a
// degradation for the status.
func (c *connection) handleReport(r *request) {
	if r.typeURL == DegradationType {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.degraded = truncateReason(r.errorDetail.GetMessage())
		return
	}
	if c.hooks.HandleHealthReport != nil {
		c.hooks.HandleHealthReport(r.errorDetail == nil, r.errorDetail.GetMessage())
	}
}

// impliesWildcard reports whether a first request without names subscribes to all resources of the type. In SotW,
// responses of such a type must contain all resources.
func impliesWildcard(typeURL string) bool {
	return typeURL == ClusterType || typeURL == ListenerType || typeURL == NameTableType || typeURL == ProxyConfigType || typeURL == RevocationType ||
		isDocumentType(typeURL)
}

// subscription returns the client's subscription to the type, and creates it if necessary. fresh is true at the first
// request for the type. The caller must have locked c.mu.
func (c *connection) subscription(typeURL string) (sub *subscription, fresh bool) {
	sub, ok := c.subs[typeURL]
	if !ok {
		sub = newSubscription(typeURL, &c.server.pages)
		c.subs[typeURL] = sub
	}
	fresh = !sub.requested
	sub.requested = true
	return sub, fresh
}

// settleResponse processes the ACK or NACK in r. It returns the response that the client ACKs or NACKs. It returns nil
// if r is neither, or if the response is unknown. The caller must have locked c.mu.
func (c *connection) settleResponse(sub *subscription, r *request) *sentResponse {
	if r.nonce == "" {
		return nil
	}
	b := sub.takeOutstanding(r.nonce)
	if b == nil {
		c.server.metrics.expiredNonces.WithLabelValues(shortType(sub.typeURL)).Inc()
		return nil
	}
	if r.errorDetail == nil {
		sub.ack(b)
		if sub.typeURL == RouteType {
			// Other resources of the response arrived after Envoy had unsubscribed from them, so Envoy has dropped
			// them.
			c.vhds.addAccepted(sub.selectSubscribed(namesOf(b.resources)))
		}
		return b
	}
	accepted := sub.ackedAt
	rejection := sub.nack(b, r.errorDetail.GetMessage())
	rejection.From = c.attributeNACK(sub.typeURL, rejection, accepted)
	if sub.typeURL == RouteType {
		c.vhds.resetRefused(b.resources)
	}
	c.server.metrics.rejects.WithLabelValues(shortType(sub.typeURL)).Inc()
	c.log.Warn("a client rejected configuration", "type", shortType(sub.typeURL), "resources", abbreviateNames(rejection.Resources),
		"reason", rejection.Reason, "suspects", formatDocuments(rejection.From))
	return b
}

// retryExtensions schedules rejected filter configurations to be sent again if r is the ACK of listeners. Envoy may
// accept the filter configurations for the new listeners.
func (c *connection) retryExtensions(sub *subscription, answer *sentResponse, r *request) {
	if answer == nil || r.errorDetail != nil || sub.typeURL != ListenerType || len(answer.resources) == 0 {
		return
	}
	extensions, ok := c.subs[ExtensionType]
	if !ok || len(extensions.refused) == 0 {
		return
	}
	c.mu.Lock()
	names := mapKeys(extensions.refused)
	clear(extensions.refused)
	c.mu.Unlock()
	c.markDirty(PushScope{ExtensionType: {Names: names}}, time.Now())
}

// attributeNACK calls Hooks.AttributeNACK. After a panic, it returns nil, so that the stream does not end.
func (c *connection) attributeNACK(typeURL string, r *Rejection, lastACK time.Time) (suspects []SuspectDocument) {
	if c.hooks.AttributeNACK == nil {
		return nil
	}
	defer func() {
		if p := recover(); p != nil {
			c.log.Error("finding the documents that caused a NACK failed", "panic", p)
		}
	}()
	return c.hooks.AttributeNACK(c.state, typeURL, r.Resources, r.Reason, lastACK)
}

func formatDocuments(from []SuspectDocument) []string {
	out := make([]string, len(from))
	for i, b := range from {
		out[i] = b.Document + " at " + b.Position
	}
	return out
}

// abbreviateNames returns the first names, and the number of the others, for a log line.
func abbreviateNames(names []string) []string {
	const limit = 10
	if len(names) <= limit {
		return names
	}
	return append(slices.Clone(names[:limit]), fmt.Sprintf("… and %d more", len(names)-limit))
}

// generate waits for a free generator slot and generates resources for the client. It logs errors and records them for
// the status.
func (c *connection) generate(sub *subscription, wildcard bool, names []string) ([]*Resource, error) {
	if !wildcard && len(names) == 0 {
		return nil, nil
	}
	release, err := c.acquireGenerator()
	if err != nil {
		return nil, err
	}
	defer release()
	start := time.Now()
	resources, err := c.callGenerate(sub.typeURL, wildcard, names)
	c.server.metrics.generateTime.WithLabelValues(shortType(sub.typeURL)).Observe(time.Since(start).Seconds())
	c.mu.Lock()
	sub.generateErr = err
	c.mu.Unlock()
	if sub.typeURL == RouteType {
		c.vhds.addGenerated(resources)
	}
	if err != nil {
		c.server.metrics.generateErrors.WithLabelValues(shortType(sub.typeURL)).Inc()
		c.log.Error("generating resources failed; the client retains its previous resources", "type", shortType(sub.typeURL), "error", err)
	}
	return resources, err
}

// callGenerate calls Generate. It converts a panic into an error: an error that one client's configuration triggers
// must not crash the control plane.
func (c *connection) callGenerate(typeURL string, wildcard bool, names []string) (resources []*Resource, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("generating %s for %s: panic: %v\n%s", shortType(typeURL), c.node, p, debug.Stack())
		}
	}()
	return c.proxy.Generate(c.state, typeURL, wildcard, names)
}

// deliver sends resources and removals of one type, and the assignments of the clusters that it sends. If evenEmpty is
// set, it sends a response even without resources and removals.
func (c *connection) deliver(sub *subscription, resources []*Resource, removed []string, evenEmpty bool) error {
	if len(resources) == 0 && len(removed) == 0 && !evenEmpty {
		return nil
	}
	for len(resources) > 1 && needsOwnResponse(sub.typeURL) && c.stream.protocol() == deltaProtocol {
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

// needsOwnResponse reports whether each resource of the type must be sent in a separate response. Envoy stops at the
// first invalid RouteConfiguration of a response and drops the valid ones after it.
func needsOwnResponse(typeURL string) bool { return typeURL == RouteType }

// respond sends one response of resources and removals.
func (c *connection) respond(sub *subscription, resources []*Resource, removed []string) error {
	return c.dispatch(sub, &response{resources: resources, removed: removed})
}

// dispatch completes r, records that it was sent, and sends it.
func (c *connection) dispatch(sub *subscription, r *response) error {
	c.nonces++
	resources := r.resources
	r.typeURL, r.version, r.nonce = sub.typeURL, c.version, strconv.FormatUint(c.nonces, 10)
	c.mu.Lock()
	if sub.typeURL == RouteType && c.stream.protocol() == deltaProtocol {
		r.resources = make([]*Resource, len(resources))
		for i, res := range resources {
			r.resources[i] = c.vhds.prepareRoute(res)
		}
	}
	if sub.typeURL == VirtualHostType && len(c.onDemandNames) > 0 {
		c.attachOnDemandAnswers(r)
	}
	sub.record(r, c.stream.protocol() == sotwProtocol && impliesWildcard(sub.typeURL))
	c.mu.Unlock()
	c.server.metrics.pushes.WithLabelValues(shortType(sub.typeURL)).Inc()
	c.server.metrics.size.WithLabelValues(shortType(sub.typeURL)).Observe(float64(r.size()))
	return c.send(r)
}

// send passes r to gRPC, which blocks while the client does not read. If gRPC blocks for SendTimeout, send returns an
// error. The error ends the stream, which also ends the blocked call.
func (c *connection) send(r *response) error {
	sent := make(chan error, 1)
	go func() { sent <- c.stream.send(r) }()
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
		return status.Errorf(codes.DeadlineExceeded, "the client did not read a response within %v", c.server.cfg.SendTimeout)
	}
}

// sendAssignments sends the assignments of clusters that were just sent, even if the assignments did not change: Envoy
// finishes warming a cluster only when it receives the assignment after the cluster on the same stream. If the client
// has not requested assignments yet, sendAssignments records the clusters. The server sends the assignments when the
// client requests them.
func (c *connection) sendAssignments(clusters []*Resource) error {
	sub, ok := c.subs[EndpointType]
	if !ok {
		c.addOwedClusters(clusters)
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
	if c.stream.protocol() == deltaProtocol { // in SotW, a request replaces all names of earlier requests
		c.mu.Lock()
		for name := range names {
			sub.names.set(name, "")
		}
		sub.names.compact(sub.pages)
		c.mu.Unlock()
	}
	want, err := c.generate(sub, false, mapKeys(names))
	if err != nil {
		return nil
	}
	return c.deliver(sub, want, nil, false)
}

// addOwedClusters records clusters whose assignments the server must send when the client requests assignments.
func (c *connection) addOwedClusters(clusters []*Resource) {
	if len(c.owedClusters) == 0 {
		c.owedClusters = slices.Clip(clusters) // other clients share the slice, so an append must copy it
		return
	}
	c.owedClusters = append(c.owedClusters, clusters...)
	known := &c.subs[ClusterType].known
	if len(c.owedClusters) <= 2*known.len()+pageSize {
		return
	}
	// A client that never requests assignments still receives each change of its clusters. To limit the size of the
	// list, it contains only the newest version of each cluster that the client has.
	newest := map[string]*Resource{}
	for _, cluster := range c.owedClusters {
		if known.has(cluster.Name) {
			newest[cluster.Name] = cluster
		}
	}
	c.owedClusters = slices.Collect(maps.Values(newest))
}

// addOwedAssignments adds the assignments of owedClusters to names, if the client subscribes to them, and clears
// owedClusters.
func (c *connection) addOwedAssignments(sub *subscription, names *versionMap) {
	for _, cluster := range c.owedClusters {
		if cluster.Endpoints != "" && sub.names.has(cluster.Endpoints) {
			names.set(cluster.Endpoints, "")
		}
	}
	c.owedClusters = nil
}
