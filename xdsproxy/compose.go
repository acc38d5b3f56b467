package xdsproxy

import (
	"slices"
	"strings"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// Field numbers of the four messages.
const (
	responseVersion, responseResources, responseType, responseNonce, responseRemoved = 1, 2, 4, 5, 6 // of both kinds of response, but for the last

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

func message(b []byte) *frame { return &frame{data: mem.BufferSlice{mem.SliceBuffer(b)}} }

func appendText(b []byte, field int, text string) []byte {
	b = protowire.AppendTag(b, protowire.Number(field), protowire.BytesType)
	return protowire.AppendString(b, text)
}

func appendBytes(b []byte, field int, content []byte) []byte {
	b = protowire.AppendTag(b, protowire.Number(field), protowire.BytesType)
	return protowire.AppendBytes(b, content)
}

// ask is a first request for a type: what is wanted, and what is there already.
func (s *streamState) ask(t *typeState, node []byte) *frame {
	if s.proto == sotw {
		return message(t.sotwRequest(node, s.blank))
	}
	var b []byte
	if node != nil {
		b = appendBytes(b, deltaNode, node)
	}
	b = appendText(b, deltaType, t.url)
	// A wildcard that was asked for silently stays so for as long as no name stands beside it, as Envoy does it itself.
	if t.all && (!t.silently || len(t.names) > 0) {
		b = appendText(b, deltaSubscribe, wildcard)
	}
	for _, name := range sorted(t.names) {
		b = appendText(b, deltaSubscribe, name)
	}
	known := t.known(s.blank)
	for _, name := range sorted(known) {
		entry := appendText(appendText(nil, 1, name), 2, known[name])
		b = appendBytes(b, deltaKnown, entry)
	}
	return message(b)
}

// known is what Envoy has. Where it is not sure in which version, the version is empty: the control plane then sends it
// again, or says that it is gone.
func (t *typeState) known(blank bool) map[string]string {
	if !blank && len(t.pending) == 0 {
		return t.held
	}
	known := make(map[string]string, len(t.held))
	for name, version := range t.held {
		if !blank {
			known[name] = version
		} else {
			known[name] = ""
		}
	}
	for _, p := range t.pending {
		epoch, _ := splitNonce(p.nonce)
		for _, one := range p.resources {
			if epoch == 0 && !blank { // which Envoy has accepted before
				known[one.name] = one.version
			} else {
				known[one.name] = ""
			}
		}
	}
	return known
}

func (t *typeState) sotwRequest(node []byte, blank bool) []byte {
	var b []byte
	if t.version != "" && !blank {
		b = appendText(b, sotwVersion, t.version)
	}
	if node != nil {
		b = appendBytes(b, sotwNode, node)
	}
	for _, name := range sorted(t.names) {
		b = appendText(b, sotwNames, name)
	}
	return appendText(b, sotwType, t.url)
}

// change is what a request of the delta protocol says of subscriptions, without what it says of a response.
func change(r request) *frame {
	b := appendText(nil, deltaType, r.typeURL)
	for _, name := range r.subscribe {
		b = appendText(b, deltaSubscribe, name)
	}
	for _, name := range r.unsubscribe {
		b = appendText(b, deltaUnsubscribe, name)
	}
	return message(b)
}

// reply is the relay's own answer to a response: an ACK, or a NACK where there is a reason.
func reply(v variant, r response, version string, names []string, reason error) *frame {
	var b []byte
	if v == delta {
		b = appendText(appendText(b, deltaType, r.typeURL), deltaNonce, r.nonce)
		return message(appendError(b, deltaError, reason))
	}
	b = appendText(b, sotwVersion, version)
	for _, name := range names {
		b = appendText(b, sotwNames, name)
	}
	b = appendText(appendText(b, sotwType, r.typeURL), sotwNonce, r.nonce)
	return message(appendError(b, sotwError, reason))
}

// appendError appends a google.rpc.Status that says what is wrong.
func appendError(b []byte, field int, reason error) []byte {
	if reason == nil {
		return b
	}
	const invalidArgument = 3
	s := protowire.AppendTag(nil, protowire.Number(statusCode), protowire.VarintType)
	s = protowire.AppendVarint(s, invalidArgument)
	return appendBytes(b, field, appendText(s, int(statusText), strings.ToValidUTF8(reason.Error(), "\uFFFD")))
}

func sorted[V any](m map[string]V) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
