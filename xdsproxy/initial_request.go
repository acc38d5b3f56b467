package xdsproxy

import (
	"slices"
	"strings"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// Field numbers of the discovery messages.
const (
	responseVersion, responseResources, responseType, responseNonce, responseRemoved = 1, 2, 4, 5, 6 // in both variants, except responseRemoved (delta only)

	resourceBody, anyType = 2, 1

	sotwVersion, sotwNode, sotwNames, sotwType, sotwNonce, sotwError          = 1, 2, 3, 4, 5, 6
	deltaNode, deltaType, deltaSubscribe, deltaUnsubscribe, deltaKnown        = 1, 2, 3, 4, 5
	deltaNonce, deltaError                                                    = 6, 7
	statusCode, statusText                                             uint64 = 1, 2
)

func requestNonce(v variant) int {
	if v == delta {
		return deltaNonce
	}
	return sotwNonce
}

func newFrame(b []byte) *frame { return &frame{data: mem.BufferSlice{mem.SliceBuffer(b)}} }

func appendText(b []byte, field int, text string) []byte {
	b = protowire.AppendTag(b, protowire.Number(field), protowire.BytesType)
	return protowire.AppendString(b, text)
}

func appendBytes(b []byte, field int, content []byte) []byte {
	b = protowire.AppendTag(b, protowire.Number(field), protowire.BytesType)
	return protowire.AppendBytes(b, content)
}

// initialRequest returns the first request of a type on an upstream stream: the subscription, and the versions that
// Envoy has.
func (s *streamState) initialRequest(t *typeState, node []byte) *frame {
	if s.proto == sotw {
		return newFrame(t.sotwRequest(node, s.hideVersions))
	}
	var b []byte
	if node != nil {
		b = appendBytes(b, deltaNode, node)
	}
	b = appendText(b, deltaType, t.url)
	// Envoy requests all resources by an empty subscription. It subscribes to "*" explicitly only if it also requests
	// names.
	if t.all && (!t.isImplicit || len(t.names) > 0) {
		b = appendText(b, deltaSubscribe, wildcard)
	}
	for _, name := range sortedKeys(t.names) {
		b = appendText(b, deltaSubscribe, name)
	}
	known := t.knownVersions(s.hideVersions)
	for _, name := range sortedKeys(known) {
		entry := appendText(appendText(nil, 1, name), 2, known[name])
		b = appendBytes(b, deltaKnown, entry)
	}
	return newFrame(b)
}

// knownVersions returns the versions of the resources that Envoy has. A version is empty if it is uncertain: the
// control plane then sends the resource again or reports its removal.
func (t *typeState) knownVersions(hideVersions bool) map[string]string {
	if !hideVersions && len(t.pending) == 0 {
		return t.heldVersions
	}
	known := make(map[string]string, len(t.heldVersions))
	for name, version := range t.heldVersions {
		if !hideVersions {
			known[name] = version
		} else {
			known[name] = ""
		}
	}
	for _, p := range t.pending {
		epoch, _ := splitNonce(p.nonce)
		for _, one := range p.resources {
			if epoch == 0 && !hideVersions { // from the last good configuration: Envoy has accepted it before
				known[one.name] = one.version
			} else {
				known[one.name] = ""
			}
		}
	}
	return known
}

func (t *typeState) sotwRequest(node []byte, hideVersions bool) []byte {
	var b []byte
	if t.version != "" && !hideVersions {
		b = appendText(b, sotwVersion, t.version)
	}
	if node != nil {
		b = appendBytes(b, sotwNode, node)
	}
	for _, name := range sortedKeys(t.names) {
		b = appendText(b, sotwNames, name)
	}
	return appendText(b, sotwType, t.url)
}

// subscriptionRequest returns a delta request with only the changes of r's subscription, without its ACK or NACK.
func subscriptionRequest(r request) *frame {
	b := appendText(nil, deltaType, r.typeURL)
	for _, name := range r.subscribe {
		b = appendText(b, deltaSubscribe, name)
	}
	for _, name := range r.unsubscribe {
		b = appendText(b, deltaUnsubscribe, name)
	}
	return newFrame(b)
}

// buildReply returns the relay's own answer to a response: an ACK, or a NACK if reason is not nil.
func buildReply(v variant, r response, version string, names []string, reason error) *frame {
	var b []byte
	if v == delta {
		b = appendText(appendText(b, deltaType, r.typeURL), deltaNonce, r.nonce)
		return newFrame(appendError(b, deltaError, reason))
	}
	b = appendText(b, sotwVersion, version)
	for _, name := range names {
		b = appendText(b, sotwNames, name)
	}
	b = appendText(appendText(b, sotwType, r.typeURL), sotwNonce, r.nonce)
	return newFrame(appendError(b, sotwError, reason))
}

// appendError appends a google.rpc.Status with the reason, if there is one.
func appendError(b []byte, field int, reason error) []byte {
	if reason == nil {
		return b
	}
	const invalidArgument = 3
	s := protowire.AppendTag(nil, protowire.Number(statusCode), protowire.VarintType)
	s = protowire.AppendVarint(s, invalidArgument)
	return appendBytes(b, field, appendText(s, int(statusText), strings.ToValidUTF8(reason.Error(), "\uFFFD")))
}

func sortedKeys[V any](m map[string]V) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
