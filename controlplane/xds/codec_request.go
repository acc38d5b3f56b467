package xds

import (
	"fmt"
	"unicode/utf8"
	"unsafe"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// requestBuffers are of the sizes that requests have: of gRPC's own, all that is larger than 32 KiB is a megabyte, which
// hundreds of clients that come back at once make many.
var requestBuffers = mem.NewTieredBufferPool(1<<10, 16<<10, 64<<10, 128<<10, 256<<10, 512<<10, 1<<20)

// The fields of DeltaDiscoveryRequest of which there may be thousands, and of an entry of a map.
const (
	requestSubscribe, requestUnsubscribe, requestInitial = 3, 4, 5

	mapKey, mapValue = 1, 2
)

// deltaRequest is a request as it came. Codecs that know nothing of it read the message.
type deltaRequest struct {
	message                discoveryv3.DeltaDiscoveryRequest
	subscribe, unsubscribe []string
	initial                map[string]string

	// pages are those that other clients share; nil in tests.
	pages     *pages
	asks, has *page // where they hold what the request lists
}

// ProtoReflect gives the message that is read.
func (r *deltaRequest) ProtoReflect() protoreflect.Message { return r.message.ProtoReflect() }

// read takes the names out of the request, as parts of one string, and leaves the rest to the message. What other clients
// have listed too is taken from them.
func (r *deltaRequest) read(b []byte) error {
	r.expect(b)
	all, text := b, ""
	part := func(left []byte, length int) string {
		if text == "" {
			text = string(all)
		}
		end := len(text) - len(left)
		return text[end-length : end]
	}
	var rest []byte
	for len(b) > 0 {
		field, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		size := protowire.ConsumeFieldValue(field, kind, b[n:])
		if size < 0 {
			return protowire.ParseError(size)
		}
		whole := b[:n+size]
		b = b[n+size:]
		if field == requestSubscribe && r.asks != nil || field == requestInitial && r.has != nil {
			continue
		}
		if kind != protowire.BytesType || field != requestSubscribe && field != requestUnsubscribe && field != requestInitial {
			rest = append(rest, whole...)
			continue
		}
		value, _ := protowire.ConsumeBytes(whole[n:])
		if err := r.take(field, part(b, len(value))); err != nil {
			return err
		}
	}
	return proto.Unmarshal(rest, &r.message)
}

// expect finds those who hold what there may be thousands of, or makes room for it.
func (r *deltaRequest) expect(b []byte) {
	names, versions := listed{b, requestSubscribe}, listed{b, requestInitial}
	if n, sum := names.sum(); n >= pageSize && r.pages != nil {
		r.asks = r.pages.holding(n, sum, names.all)
	} else if n > 0 {
		r.subscribe = make([]string, 0, n)
	}
	if n, sum := versions.sum(); n >= pageSize && r.pages != nil {
		r.has = r.pages.holding(n, sum, versions.all)
	} else if n > 0 {
		r.initial = make(map[string]string, n)
	}
}

// listed are the names of one field of a request, and their versions where it has any, as they lie there. It stops where
// the request is malformed, which is told elsewhere.
type listed struct {
	request []byte
	field   protowire.Number
}

func (l listed) sum() (n int, sum uint64) {
	for name, version := range l.all {
		n++
		sum += hashEntry(name, version)
	}
	return n, sum
}

// all gives strings that are only good until the request's bytes are used again.
func (l listed) all(yield func(name, version string) bool) {
	for b := l.request; len(b) > 0; {
		field, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return
		}
		size := protowire.ConsumeFieldValue(field, kind, b[n:])
		if size < 0 {
			return
		}
		if field == l.field && kind == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(b[n:])
			name, version := value, []byte(nil)
			if field == requestInitial {
				name, version = entryOf(value)
			}
			if !yield(view(name), view(version)) {
				return
			}
		}
		b = b[n+size:]
	}
}

func view(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// entryOf reads an entry of a map. Of one that is malformed there is less.
func entryOf(b []byte) (key, value []byte) {
	for len(b) > 0 {
		field, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return key, value
		}
		size := protowire.ConsumeFieldValue(field, kind, b[n:])
		if size < 0 {
			return key, value
		}
		if kind == protowire.BytesType {
			text, _ := protowire.ConsumeBytes(b[n:])
			switch field {
			case mapKey:
				key = text
			case mapValue:
				value = text
			}
		}
		b = b[n+size:]
	}
	return key, value
}

func (r *deltaRequest) take(field protowire.Number, value string) error {
	if field == requestInitial {
		return r.takeInitial(value)
	}
	if !utf8.ValidString(value) {
		return fmt.Errorf("a resource name is not UTF-8: %q", value)
	}
	if field == requestSubscribe {
		r.subscribe = append(r.subscribe, value)
	} else {
		r.unsubscribe = append(r.unsubscribe, value)
	}
	return nil
}

// takeInitial reads one entry of the map of versions.
func (r *deltaRequest) takeInitial(entry string) error {
	whole := unsafe.Slice(unsafe.StringData(entry), len(entry)) // only read, and what is kept is a part of the text
	for b := whole; len(b) > 0; {
		_, _, n := protowire.ConsumeField(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
	}
	key, value := entryOf(whole)
	if !utf8.Valid(key) || !utf8.Valid(value) {
		return fmt.Errorf("a resource's name or version is not UTF-8: %q %q", key, value)
	}
	if r.initial == nil {
		r.initial = map[string]string{}
	}
	r.initial[view(key)] = view(value)
	return nil
}

// request is what was read, by whichever codec.
func (r *deltaRequest) request() *request {
	m := &r.message
	out := &request{
		node: m.GetNode(), typeURL: m.GetTypeUrl(), nonce: m.GetResponseNonce(), refusal: m.GetErrorDetail(),
		subscribe: r.subscribe, unsubscribe: r.unsubscribe, initial: r.initial,
	}
	if out.subscribe == nil && out.unsubscribe == nil && out.initial == nil {
		out.subscribe, out.unsubscribe = m.GetResourceNamesSubscribe(), m.GetResourceNamesUnsubscribe()
		out.initial = m.GetInitialResourceVersions()
	}
	if r.asks != nil {
		out.subscribe, out.asks = r.asks.names, r.asks
	}
	if r.has != nil {
		out.initial, out.has = r.has.versions, r.has
	}
	out.resumes = len(out.initial) > 0
	return out
}
