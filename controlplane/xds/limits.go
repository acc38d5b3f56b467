package xds

import (
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// Limits on the memory that the server uses for one stream or client. maxRequest limits each message, and these
// constants limit the total.
const (
	// maxNode limits the node of a client, in bytes: Kubernetes allows 256 KiB of annotations per pod.
	maxNode = 1 << 20
	// maxName is the maximum length in bytes of a resource's name.
	maxName = 1 << 10
	// maxNames limits, in bytes, the names of one type to which a stream subscribes, and the names of resources that
	// its client reports. Each name counts nameCost bytes in addition to its length. The limit permits a quarter of a
	// million names of typical length.
	maxNames = 32 << 20
	nameCost = 64
	// nodeFactor is the ratio of a node's size in memory to its encoded size.
	nodeFactor = 4
	// maxInvalidAnswered limits how many invalid names one response reports as nonexistent.
	maxInvalidAnswered = 1000
	// maxDeferred limits the number of requests that wait until the client requests clusters.
	maxDeferred = 16
)

// checkNode returns an error if the node of the request r is too large. It charges a node that exceeds freePerStream to
// the client's memory limit.
func (c *connection) checkNode(r *request) error {
	size := proto.Size(r.node)
	if size > maxNode {
		return status.Errorf(codes.InvalidArgument, "the node has %d bytes; at most %d are allowed: reduce the metadata and labels that the agent sends", size, maxNode)
	}
	c.nodeBytes = max(0, int64(nodeFactor*size-freePerStream))
	if c.nodeBytes > c.quota.availableBytes() {
		return status.Errorf(codes.ResourceExhausted, "a node of %d bytes exceeds the memory limit of this client: reduce the metadata and labels that the agent sends, or the number of the client's streams", size)
	}
	c.charge()
	return nil
}

// checkClaims returns an error if the names and versions of the resources that the client reports exceed maxNames or
// available bytes.
func checkClaims(r *request, available int64) error {
	size := 0
	for name, version := range r.initial {
		size += len(name) + len(version) + nameCost
	}
	if int64(size) > min(maxNames, available) {
		return status.Errorf(codes.ResourceExhausted, "the client claims to have %d resources of type %s: their names and versions, plus %d bytes each, exceed the limit of %d bytes",
			len(r.initial), r.typeURL, nameCost, min(maxNames, available))
	}
	return nil
}

// limitNames removes names from r to which the client cannot subscribe. excess contains names that are too long, or
// that exceed the limits. invalid contains names that no resource of the type can have. available is how many more
// bytes the client's streams may use.
func (s *subscription) limitNames(r *request, available int64, valid func(name string) bool) (excess, invalid []string) {
	if len(r.names) > 0 { // in SotW, the list replaces all earlier names
		r.names, excess, invalid = s.fitNames(r.names, 0, available, valid)
	}
	if len(r.subscribe) > 0 {
		if r.subscribe, excess, invalid = s.fitNames(r.subscribe, s.names.bytes, available, valid); len(excess)+len(invalid) > 0 {
			r.subscribePage = nil
		}
	}
	return excess, invalid
}

// fitNames splits names into those to which the client may subscribe (fit), excess and invalid ones. held is the size
// in bytes of the other names in the subscription.
func (s *subscription) fitNames(names []string, held int, available int64, valid func(name string) bool) (fit, excess, invalid []string) {
	size, ok := held, true
	for _, name := range names {
		size += len(name) + nameCost
		ok = ok && len(name) <= maxName && valid(name)
	}
	if ok && size <= maxNames && int64(size-held) <= available {
		return names, nil, nil
	}
	size = held
	for _, name := range names {
		cost := len(name) + nameCost
		switch known := s.names.has(name); {
		case known && held == 0:
			size += cost
			fit = append(fit, name)
		case known:
			fit = append(fit, name)
		case len(name) <= maxName && !valid(name):
			invalid = append(invalid, name)
		case len(name) <= maxName && size+cost <= maxNames && int64(cost) <= available:
			size += cost
			available -= int64(cost)
			fit = append(fit, name)
		default:
			excess = append(excess, name)
		}
	}
	return fit, excess, invalid
}

// validName returns a function that reports whether a name of the type is valid.
func (c *connection) validName(typeURL string) func(name string) bool {
	isValid := c.hooks.IsValidName
	return func(name string) bool { return isValid == nil || name == wildcardName || isValid(typeURL, name) }
}

// reportExcess counts the names that the server ignores because of limits, and logs the first occurrence for each type
// and stream.
func (c *connection) reportExcess(sub *subscription, excess []string) {
	if len(excess) == 0 {
		return
	}
	c.server.metrics.namesRefused.WithLabelValues(shortType(sub.typeURL)).Add(float64(len(excess)))
	if sub.excessLogged {
		return
	}
	sub.excessLogged = true
	first := excess[0]
	c.log.Warn("the client requests more or longer resource names than one stream may have; the control plane ignores the excess names", "type", shortType(sub.typeURL),
		"names", len(excess), "first", strings.ToValidUTF8(first[:min(len(first), 100)], ""), "maxNameBytes", maxName, "maxBytesOfAll", maxNames)
}

// answerExcess reports excess names of virtual hosts as nonexistent, because HTTP requests wait for them. The server
// does not respond to excess names of other types.
func (c *connection) answerExcess(sub *subscription, excess []string) error {
	if c.hooks.ResolveOnDemand == nil || sub.typeURL != VirtualHostType || len(excess) == 0 {
		return nil
	}
	return c.dispatch(sub, &response{notFound: excess})
}

// answerInvalid reports the invalid names of a request as nonexistent. The server does not store them. answerInvalid
// ignores the names if there are more than maxInvalidAnswered.
func (c *connection) answerInvalid(sub *subscription, invalid []string) error {
	if len(invalid) == 0 || len(invalid) > maxInvalidAnswered || sub.typeURL == VirtualHostType {
		return nil
	}
	return c.dispatch(sub, &response{removed: cloneNames(invalid)})
}

// answerUnserved responds to a request for a type that the server does not serve: it reports the requested resources as
// nonexistent. The server stores no data about the request.
func (c *connection) answerUnserved(r *request) error {
	absent := slices.Concat(r.subscribe, mapKeys(r.initial))
	if r.nonce != "" && len(absent) == 0 { // this is the client's ACK or NACK of such a response
		return nil
	}
	c.nonces++
	return c.send(&response{typeURL: r.typeURL, version: c.version, nonce: strconv.FormatUint(c.nonces, 10), removed: absent})
}

// cloneNames returns copies of names. The originals are substrings of a request. A stored reference to one would retain
// the memory of the whole request.
func cloneNames(names []string) []string {
	out := make([]string, len(names))
	for i, name := range names {
		out[i] = strings.Clone(name)
	}
	return out
}
