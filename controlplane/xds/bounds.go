package xds

import (
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// What a client can have the server keep. gRPC bounds each of its messages; these bound what all of them come to.
const (
	// maxNode bounds the node of a client, in bytes: Kubernetes lets a pod have 256 KiB of annotations.
	maxNode = 1 << 20
	// maxName bounds a resource's name, in bytes.
	maxName = 1 << 10
	// maxNames bounds the names of one type that a stream subscribes to, and those that its client comes with, in bytes with
	// nameCost for each: a quarter of a million as meshes have them.
	maxNames = 32 << 20
	nameCost = 64
	// maxDeferred bounds the requests that wait for another one.
	maxDeferred = 16
)

// checkNode refuses a stream whose node is too large.
func checkNode(r *request) error {
	if size := proto.Size(r.node); size > maxNode {
		return status.Errorf(codes.InvalidArgument, "the node has %d bytes, and may have %d: have the agent send less of metadata and labels", size, maxNode)
	}
	return nil
}

// checkClaims refuses a stream whose client comes with more than can be kept.
func checkClaims(r *request) error {
	size := 0
	for name, version := range r.initial {
		size += len(name) + len(version) + nameCost
	}
	if size > maxNames {
		return status.Errorf(codes.ResourceExhausted, "the client comes with %d resources of %s: with %d bytes for each, their names and versions may take %d",
			len(r.initial), r.typeURL, nameCost, maxNames)
	}
	return nil
}

// bound takes out of a request the names that are too long, or too many, to be subscribed to, and gives them.
func (s *subscription) bound(r *request) (excess []string) {
	r.names, excess = fitting(r.names, &ledger{}) // which are all that there are
	if len(r.subscribe) > 0 {
		if r.subscribe, excess = fitting(r.subscribe, &s.names); len(excess) > 0 {
			r.asks = nil
		}
	}
	return excess
}

// fitting parts names into those that the client may subscribe to, of a subscription that holds others, and what is too much.
func fitting(names []string, held *ledger) (fit, excess []string) {
	size, long := held.bytes, false
	for _, name := range names {
		size += len(name) + nameCost
		long = long || len(name) > maxName
	}
	if size <= maxNames && !long {
		return names, nil
	}
	size = held.bytes
	for _, name := range names {
		switch cost := len(name) + nameCost; {
		case held.has(name):
			fit = append(fit, name)
		case len(name) <= maxName && size+cost <= maxNames:
			size += cost
			fit = append(fit, name)
		default:
			excess = append(excess, name)
		}
	}
	return fit, excess
}

// tell tells of names that are not subscribed to, once a type.
func (c *connection) tell(sub *subscription, excess []string) {
	if len(excess) == 0 {
		return
	}
	c.server.metrics.namesRefused.WithLabelValues(shortType(sub.typeURL)).Add(float64(len(excess)))
	if sub.excessTold {
		return
	}
	sub.excessTold = true
	first := excess[0]
	c.log.Warn("the client asks for more names than one stream may: those beyond the limit are not subscribed to", "type", shortType(sub.typeURL),
		"names", len(excess), "first", strings.ToValidUTF8(first[:min(len(first), 100)], ""), "maxNameBytes", maxName, "maxBytesOfAll", maxNames)
}

// answerExcess answers the requests that wait for virtual hosts of such names. Of other types nobody answers.
func (c *connection) answerExcess(sub *subscription, excess []string) error {
	if _, asks := c.proxy.(Asker); !asks || sub.typeURL != VirtualHostType || len(excess) == 0 {
		return nil
	}
	return c.dispatch(sub, &response{nowhere: excess})
}

// answerNone says of a type that is not served that there is nothing of it, and keeps nothing of what is asked for.
func (c *connection) answerNone(r *request) error {
	absent := slices.Concat(r.subscribe, mapKeys(r.initial))
	if r.nonce != "" && len(absent) == 0 { // it is what the client says to such an answer
		return nil
	}
	c.nonces++
	return c.send(&response{typeURL: r.typeURL, version: c.version, nonce: strconv.FormatUint(c.nonces, 10), removed: absent})
}

// cloned are the names without the request that they came in, whose text they are parts of.
func cloned(names []string) []string {
	out := make([]string, len(names))
	for i, name := range names {
		out[i] = strings.Clone(name)
	}
	return out
}
