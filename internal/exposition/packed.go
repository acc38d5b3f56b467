package exposition

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// For each request, Envoy formats each label of a statistic on its own. The control plane therefore packs several labels
// into one: the name of a packed label lists the names of the labels, and its value lists their values. The agent unpacks
// them when it is scraped.
const (
	// PackedPrefix begins the name of a packed label. PackedNameSeparator precedes the name of each label in it.
	PackedPrefix        = "pilotfish"
	PackedNameSeparator = "__"
	// PackedSeparator separates the values. The last value may contain it.
	PackedSeparator = ";"
	// PackedPeerPrefix begins the name of a packed label whose value was sent by a client. It lists as many values as
	// names, and they consist of the characters that IsPeerByte accepts.
	PackedPeerPrefix = PackedPrefix + "_peer"
)

const (
	// protocolLabel is derived from grpcStatusLabel if its value is empty: Envoy reports a status only for gRPC.
	protocolLabel   = "request_protocol"
	grpcStatusLabel = "grpc_response_status"

	// revisionSuffix is the suffix of labels whose value is latestValue if it is unknown, as in Istio's metrics.
	revisionSuffix = "_canonical_revision"
	unknownValue   = "unknown"
	latestValue    = "latest"
	// invalidPeer begins the first label of a client that sent an invalid value. Valid values contain no colon, so the
	// series of valid and invalid clients differ. Repeated series would make the scrape invalid.
	invalidPeer = "invalid:"
)

// IsPeerByte reports whether a label that a client sends may contain a byte.
func IsPeerByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("._/-", c) >= 0
}

// unpacker replaces packed labels.
type unpacker struct {
	line   []byte
	sample sample
	// last contains the results of the previous line by position. Adjacent lines mostly have the same labels, because
	// a histogram has a line for each bucket.
	last []unpackedLabel
}

type unpackedLabel struct{ packed, labels []byte }

// unpack returns the sample with all packed labels replaced, or s if it has none. The result is valid until the next
// call. ok is false if the result is not a valid sample, for example because a label is not valid UTF-8.
func (u *unpacker) unpack(s *sample, f Format) (unpacked *sample, ok bool) {
	if !slices.ContainsFunc(s.pairs, s.isPacked) {
		return s, utf8.Valid(s.text(s.labels))
	}
	packed := 0
	u.line = append(append(u.line[:0], s.text(s.name)...), '{')
	for _, p := range s.pairs {
		text := s.line[p.name.from : p.value.to+1]
		if s.isPacked(p) {
			text = u.replace(packed, text, s.text(p.name), s.text(p.value))
			packed++
		}
		u.line = append(append(u.line, text...), ',')
	}
	u.line[len(u.line)-1] = '}'
	u.line = append(u.line, s.line[s.labels.to+1:]...)
	return &u.sample, u.sample.parse(u.line, f)
}

func (s *sample) isPacked(l label) bool {
	name := s.text(l.name)
	return bytes.HasPrefix(name, []byte(PackedPrefix+PackedNameSeparator)) || bytes.HasPrefix(name, []byte(PackedPeerPrefix+PackedNameSeparator))
}

// replace returns the labels of the packed label that is the n-th one of its line.
func (u *unpacker) replace(n int, text, name, value []byte) []byte {
	if n == len(u.last) {
		u.last = append(u.last, unpackedLabel{})
	}
	l := &u.last[n]
	if !bytes.Equal(l.packed, text) {
		l.packed, l.labels = append(l.packed[:0], text...), appendUnpacked(l.labels[:0], string(name), string(value))
	}
	return l.labels
}

func appendUnpacked(b []byte, name, value string) []byte {
	names := strings.Split(name, PackedNameSeparator)
	values := unpackValues(names[1:], value)
	if names[0] == PackedPeerPrefix {
		values = unpackPeer(names[1:], value)
	}
	for i, name := range names[1:] {
		b = fmt.Appendf(b, `%s="%s",`, name, values[i])
	}
	return bytes.TrimSuffix(b, []byte(","))
}

// unpackValues splits a value that the proxy has set.
func unpackValues(names []string, packed string) []string {
	values := strings.SplitN(packed, PackedSeparator, len(names))
	for len(values) < len(names) {
		values = append(values, unknownValue)
	}
	protocol := "http"
	for i, name := range names {
		if name == grpcStatusLabel && !isMissing(values[i]) {
			protocol = "grpc"
		}
	}
	for i, name := range names {
		if name == protocolLabel && values[i] == "" {
			values[i] = protocol
		}
	}
	return values
}

// unpackPeer splits a value that a client has sent. Without a value the labels are unknown. If the value is invalid, the
// first label contains it in encoded form, and the others are unknown.
func unpackPeer(names []string, packed string) []string {
	unknown := make([]string, len(names))
	for i, name := range names {
		unknown[i] = unknownValue
		if strings.HasSuffix(name, revisionSuffix) {
			unknown[i] = latestValue
		}
	}
	values := strings.Split(packed, PackedSeparator)
	switch {
	case isMissing(packed):
		return unknown
	case len(values) != len(names) || !isPeer(packed) || packed == strings.Join(unknown, PackedSeparator):
		unknown[0] = encodeInvalidPeer(packed)
		return unknown
	}
	return values
}

// isMissing reports whether Envoy had no value.
func isMissing(value string) bool { return value == "" || value == "-" }

func isPeer(packed string) bool {
	for i := range len(packed) {
		if !IsPeerByte(packed[i]) && packed[i] != PackedSeparator[0] {
			return false
		}
	}
	return true
}

// encodeInvalidPeer encodes a value so that different values remain different and the result is valid in a label.
func encodeInvalidPeer(packed string) string {
	b := []byte(invalidPeer)
	for i := range len(packed) {
		if c := packed[i]; IsPeerByte(c) {
			b = append(b, c)
		} else {
			b = fmt.Appendf(b, "%%%02X", c)
		}
	}
	return string(b)
}
