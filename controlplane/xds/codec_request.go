package xds

import (
	"fmt"
	"unicode/utf8"
	"unsafe"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// requestBuffers is a buffer pool with size classes for discovery requests. gRPC's own pool uses 1 MiB for everything
// above 32 KiB, which is too much when hundreds of clients reconnect at the same time.
var requestBuffers = mem.NewTieredBufferPool(1<<10, 16<<10, 64<<10, 128<<10, 256<<10, 512<<10, 1<<20)

// Field numbers of those DeltaDiscoveryRequest fields that may have thousands of elements, and of the key and value of
// a map entry.
const (
	requestSubscribe, requestUnsubscribe, requestInitial = 3, 4, 5

	mapKey, mapValue = 1, 2
)

// deltaRequest decodes a request without an allocation for each name.
type deltaRequest struct {
	message                discoveryv3.DeltaDiscoveryRequest
	subscribe, unsubscribe []string
	initial                map[string]string

	// pages is the cache of pages that all clients share. It is nil in tests.
	pages                      *pageCache
	subscribePage, initialPage *versionPage // cached pages that have the same content as the request's lists
}

// unmarshal decodes the request b. The names become substrings of one string, and the other fields are decoded into
// message. If a list is equal to a cached page, unmarshal uses the page instead.
func (r *deltaRequest) unmarshal(b []byte) error {
	r.preparePages(b)
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
		encoded := b[:n+size]
		b = b[n+size:]
		if field == requestSubscribe && r.subscribePage != nil || field == requestInitial && r.initialPage != nil {
			continue
		}
		if kind != protowire.BytesType || field != requestSubscribe && field != requestUnsubscribe && field != requestInitial {
			rest = append(rest, encoded...)
			continue
		}
		value, _ := protowire.ConsumeBytes(encoded[n:])
		if err := r.addName(field, part(b, len(value))); err != nil {
			return err
		}
	}
	return proto.Unmarshal(rest, &r.message)
}

// preparePages searches for cached pages that are equal to the request's lists. It allocates the lists for which there
// is no page.
func (r *deltaRequest) preparePages(b []byte) {
	names, versions := entryIterator{b, requestSubscribe}, entryIterator{b, requestInitial}
	if n, sum := names.sum(); n >= pageSize && r.pages != nil {
		r.subscribePage = r.pages.find(n, sum, names.all)
	} else if n > 0 {
		r.subscribe = make([]string, 0, n)
	}
	if n, sum := versions.sum(); n >= pageSize && r.pages != nil {
		r.initialPage = r.pages.find(n, sum, versions.all)
	} else if n > 0 {
		r.initial = make(map[string]string, n)
	}
}

// entryIterator iterates over the elements of one field of an encoded request: names, and versions if the field is
// initial_resource_versions. If the request is malformed, the iteration stops, and unmarshal reports the error.
type entryIterator struct {
	request []byte
	field   protowire.Number
}

func (l entryIterator) sum() (n int, sum uint64) {
	for name, version := range l.all {
		n++
		sum += hashEntry(name, version)
	}
	return n, sum
}

// all yields strings that are valid only until the request's buffer is used again.
func (l entryIterator) all(yield func(name, version string) bool) {
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
				name, version = parseMapEntry(value)
			}
			if !yield(unsafeString(name), unsafeString(version)) {
				return
			}
		}
		b = b[n+size:]
	}
}

func unsafeString(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// parseMapEntry returns the key and value of an encoded map entry. For a malformed entry it returns the fields that
// precede the error.
func parseMapEntry(b []byte) (key, value []byte) {
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

func (r *deltaRequest) addName(field protowire.Number, value string) error {
	if field == requestInitial {
		return r.addInitialVersion(value)
	}
	if !utf8.ValidString(value) {
		return fmt.Errorf("the resource name %q is not valid UTF-8", value)
	}
	if field == requestSubscribe {
		r.subscribe = append(r.subscribe, value)
	} else {
		r.unsubscribe = append(r.unsubscribe, value)
	}
	return nil
}

// addInitialVersion adds one encoded entry of initial_resource_versions.
func (r *deltaRequest) addInitialVersion(entry string) error {
	// This conversion is safe, because the slice is only read. The stored strings are substrings of entry.
	encoded := unsafe.Slice(unsafe.StringData(entry), len(entry))
	for b := encoded; len(b) > 0; {
		_, _, n := protowire.ConsumeField(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
	}
	key, value := parseMapEntry(encoded)
	if !utf8.Valid(key) || !utf8.Valid(value) {
		return fmt.Errorf("the resource name %q or its version %q is not valid UTF-8", key, value)
	}
	if r.initial == nil {
		r.initial = map[string]string{}
	}
	r.initial[unsafeString(key)] = unsafeString(value)
	return nil
}

// toRequest returns the decoded request. It accepts requests that another codec decoded: their lists are in message.
func (r *deltaRequest) toRequest() *request {
	m := &r.message
	out := &request{
		node: m.GetNode(), typeURL: m.GetTypeUrl(), nonce: m.GetResponseNonce(), errorDetail: m.GetErrorDetail(),
		subscribe: r.subscribe, unsubscribe: r.unsubscribe, initial: r.initial,
	}
	if out.subscribe == nil && out.unsubscribe == nil && out.initial == nil {
		out.subscribe, out.unsubscribe = m.GetResourceNamesSubscribe(), m.GetResourceNamesUnsubscribe()
		out.initial = m.GetInitialResourceVersions()
	}
	if r.subscribePage != nil {
		out.subscribe, out.subscribePage = r.subscribePage.names, r.subscribePage
	}
	if r.initialPage != nil {
		out.initial, out.initialPage = r.initialPage.versions, r.initialPage
	}
	out.resumes = len(out.initial) > 0
	return out
}
