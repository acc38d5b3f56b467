package exposition

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// For each request, Envoy formats each label of a statistic separately. To reduce this work, the control plane packs
// several labels into one. The name of a packed label is PackedPrefix, followed by parts that PackedNameSeparator
// separates:
//
//   - the name of a label, whose value is the next one in the packed value;
//   - PackedMore and the name of a further label in the same value, which PackedMoreSeparator separates;
//   - PackedConstant and the encoded value of the label before it, which is not in the packed value.
//
// The agent unpacks the labels when it is scraped.
const (
	PackedPrefix        = "pilotfish"
	PackedNameSeparator = "__"
	PackedConstant      = "0"
	PackedMore          = "1"
	// PackedSeparator separates the values. The last value may contain it.
	PackedSeparator     = ";"
	PackedMoreSeparator = ","
	// PackedPeerPrefix begins the name of a packed label whose value was sent by a client. This value contains one
	// value for each name in the packed label's name. The values consist of characters that IsPeerByte accepts.
	PackedPeerPrefix = PackedPrefix + "_peer"
)

const (
	// If protocolLabel is empty, its value is derived from grpcStatusLabel, which Envoy sets only for gRPC.
	protocolLabel   = "request_protocol"
	grpcStatusLabel = "grpc_response_status"

	// revisionSuffix is the suffix of labels whose value is latestValue if it is unknown, as in Istio's metrics.
	// principalSuffix is the suffix of labels whose value is unknown if it is empty.
	revisionSuffix  = "_canonical_revision"
	principalSuffix = "_principal"
	unknownValue    = "unknown"
	latestValue     = "latest"
	// invalidPeer begins the value of the first label of a client that sent an invalid value. Valid values contain no
	// colon, so the series of valid and invalid clients differ. Repeated series would make the scrape invalid.
	invalidPeer = "invalid:"
)

// IsPeerByte reports whether the value of a label that a client sends may contain the byte c.
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

// replace returns the labels that the n-th packed label of a line contains. text is the packed label, including its
// name and value.
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
	parts := strings.Split(name, PackedNameSeparator)
	names, values := unpackValues(parts[1:], value)
	if parts[0] == PackedPeerPrefix {
		names, values = parts[1:], unpackPeer(parts[1:], value)
	}
	for i, name := range names {
		b = fmt.Appendf(b, `%s="%s",`, name, values[i])
	}
	return bytes.TrimSuffix(b, []byte(","))
}

// packedGroup contains the labels of one value.
type packedGroup struct {
	names      []string
	constant   string
	isConstant bool
}

// unpackValues returns the labels that a packed label contains whose value Envoy has set, not a client. parts are the
// parts of its name after the prefix. packed is its value.
func unpackValues(parts []string, packed string) (names, values []string) {
	groups, variable := parseGroups(parts)
	var given []string
	if variable > 0 {
		given = strings.SplitN(packed, PackedSeparator, variable)
	}
	for _, g := range groups {
		names = append(names, g.names...)
		switch {
		case g.isConstant:
			values = append(values, g.constant)
		case len(given) == 0:
			values = append(values, unknownValues(g.names)...)
		default:
			values = append(values, g.split(given[0])...)
			given = given[1:]
		}
	}
	setDefaults(names, values)
	return names, values
}

// parseGroups parses the parts of a packed label's name. variable is the number of groups that are not constant.
func parseGroups(parts []string) (groups []packedGroup, variable int) {
	for _, part := range parts {
		last := len(groups) - 1
		switch {
		case last >= 0 && strings.HasPrefix(part, PackedConstant):
			groups[last].constant, groups[last].isConstant = decodeConstant(part[len(PackedConstant):]), true
			variable--
		case last >= 0 && strings.HasPrefix(part, PackedMore):
			groups[last].names = append(groups[last].names, part[len(PackedMore):])
		default:
			groups = append(groups, packedGroup{names: []string{part}})
			variable++
		}
	}
	return groups, variable
}

// split returns the values of the group's labels. They are unknown if value does not contain one value for each label,
// because Envoy had none.
func (g packedGroup) split(value string) []string {
	if len(g.names) == 1 {
		return []string{value}
	}
	values := strings.Split(value, PackedMoreSeparator)
	if len(values) != len(g.names) {
		return unknownValues(g.names)
	}
	return values
}

func unknownValues(names []string) []string {
	values := make([]string, len(names))
	for i, name := range names {
		values[i] = unknownValue
		if strings.HasSuffix(name, revisionSuffix) {
			values[i] = latestValue
		}
	}
	return values
}

// setDefaults sets the protocol and principals that Envoy does not know.
func setDefaults(names, values []string) {
	protocol := "http"
	for i, name := range names {
		if name == grpcStatusLabel && !isMissing(values[i]) {
			protocol = "grpc"
		}
	}
	for i, name := range names {
		switch {
		case name == protocolLabel && values[i] == "":
			values[i] = protocol
		case strings.HasSuffix(name, principalSuffix) && isMissing(values[i]):
			values[i] = unknownValue
		}
	}
}

// EncodeConstant returns the text of a constant in the name of a packed label. Envoy permits only letters, digits and
// underscores there.
func EncodeConstant(value string) string {
	var b []byte
	for i := range len(value) {
		if c := value[i]; c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' {
			b = append(b, c)
		} else {
			b = fmt.Appendf(b, "_%02x", c)
		}
	}
	return string(b)
}

// decodeConstant decodes a constant that EncodeConstant returned, and escapes it as an exposition requires.
func decodeConstant(text string) string {
	var b []byte
	for i := 0; i < len(text); i++ {
		if text[i] == '_' && i+2 < len(text) {
			if c, err := strconv.ParseUint(text[i+1:i+3], 16, 8); err == nil {
				b = append(b, byte(c))
				i += 2
				continue
			}
		}
		b = append(b, text[i])
	}
	return escapeLabel(string(b))
}

func escapeLabel(value string) string {
	quoted := appendQuoted(nil, value)
	return string(quoted[1 : len(quoted)-1])
}

// unpackPeer splits a value that a client has sent. Without a value the labels are unknown. If the value is invalid, the
// first label contains it in encoded form, and the others are unknown.
func unpackPeer(names []string, packed string) []string {
	unknown := unknownValues(names)
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
