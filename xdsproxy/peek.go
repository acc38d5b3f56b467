package xdsproxy

import (
	"errors"
	"io"
	"slices"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// maxString bounds what is kept of a string that the other side chose, and that is only looked at.
const maxString = 4096

// request is what the relay reads of a DiscoveryRequest or a DeltaDiscoveryRequest.
type request struct {
	typeURL string
	nonce   string
	version string // version_info, of the SotW protocol
	node    []byte // as it came; only the first request of a stream needs to have it
	// names are resource_names; subscribe, unsubscribe and known (initial_resource_versions) are of the delta protocol.
	names, subscribe, unsubscribe []string
	known                         []resource
	rejected                      bool // error_detail is there
	reason                        string
}

// response is what the relay reads of a DiscoveryResponse or a DeltaDiscoveryResponse.
type response struct {
	typeURL   string
	nonce     string
	version   string
	resources []resource
	removed   []string
}

// resource is one resource's name and version; SotW resources have no version of their own.
type resource struct{ name, version string }

// asksForAll says that "*" is among the names asked for.
func (r *request) asksForAll() bool {
	return slices.Contains(r.names, wildcard) || slices.Contains(r.subscribe, wildcard)
}

// wildcard is the name that stands for all resources of a type.
const wildcard = "*"

var errMalformed = errors.New("not a protobuf message")

// peekRequest reads the fields of a request that the relay is interested in. Fields it does not know are skipped.
func peekRequest(v variant, data mem.BufferSlice) (request, error) {
	var r request
	field := r.sotwField
	if v == delta {
		field = r.deltaField
	}
	err := walk(data, field)
	return r, err
}

func (r *request) sotwField(number protowire.Number, c *cursor, length int) (err error) {
	switch number {
	case 1:
		r.version, err = c.text(length)
	case 2:
		r.node, err = c.bytes(length)
	case 3:
		r.names, err = c.appendText(r.names, length)
	case 4:
		r.typeURL, err = c.brief(length)
	case 5:
		r.nonce, err = c.text(length)
	case 6:
		r.rejected = true
		r.reason, err = statusMessage(c, length)
	default:
		err = c.skip(length)
	}
	return err
}

func (r *request) deltaField(number protowire.Number, c *cursor, length int) (err error) {
	switch number {
	case 1:
		r.node, err = c.bytes(length)
	case 2:
		r.typeURL, err = c.brief(length)
	case 3:
		r.subscribe, err = c.appendText(r.subscribe, length)
	case 4:
		r.unsubscribe, err = c.appendText(r.unsubscribe, length)
	case 5:
		var known resource
		known, err = c.pair(length)
		r.known = append(r.known, known)
	case 6:
		r.nonce, err = c.text(length)
	case 7:
		r.rejected = true
		r.reason, err = statusMessage(c, length)
	default:
		err = c.skip(length)
	}
	return err
}

// peekResponse reads the fields of a response that the relay is interested in, and passes over the resources' contents.
func peekResponse(v variant, data mem.BufferSlice) (response, error) {
	var r response
	err := walk(data, func(number protowire.Number, c *cursor, length int) (err error) {
		switch {
		case number == 1:
			r.version, err = c.text(length)
		case number == 2:
			var one resource
			if one, err = peekResource(v, c, length); err == nil {
				r.resources = append(r.resources, one)
			}
		case number == 4:
			r.typeURL, err = c.brief(length)
		case number == 5:
			r.nonce, err = c.text(length)
		case number == 6 && v == delta:
			r.removed, err = c.appendText(r.removed, length)
		default:
			err = c.skip(length)
		}
		return err
	})
	return r, err
}

// peekResource reads the name and version of a resource. What a SotW response has is the bare content, an Any.
func peekResource(v variant, c *cursor, length int) (resource, error) {
	var r resource
	if v == sotw {
		var err error
		r.name, err = peekAny(c, length)
		return r, err
	}
	err := c.message(length, func(number protowire.Number, length int) (err error) {
		switch number {
		case 1:
			r.version, err = c.text(length)
		case 3:
			r.name, err = c.text(length)
		default:
			err = c.skip(length)
		}
		return err
	})
	return r, err
}

// peekAny reads the name of what an Any holds. Every type of resource that Envoy knows has its name as field 1. Content
// that is not readable has no name, and is the business of whoever gets it.
func peekAny(c *cursor, length int) (name string, err error) {
	err = c.message(length, func(number protowire.Number, length int) error {
		if number != 2 || length == 0 {
			return c.skip(length)
		}
		content := c.remaining() - length
		if n, ok := c.openName(content); ok {
			if name, err = c.text(n); err != nil {
				return err
			}
		}
		return c.skip(c.remaining() - content)
	})
	return name, err
}

// openName reads the head of field 1, a string, if that is what comes first; it reads nothing past end.
func (c *cursor) openName(end int) (length int, ok bool) {
	if b, err := c.reader.ReadByte(); err != nil || b != 1<<3|byte(protowire.BytesType) {
		return 0, false
	}
	for shift := 0; shift < 28 && c.remaining() > end; shift += 7 {
		b, err := c.reader.ReadByte()
		if err != nil {
			return 0, false
		}
		length |= int(b&0x7f) << shift
		if b < 0x80 {
			return length, length <= c.remaining()-end
		}
	}
	return 0, false
}

// statusMessage reads the message of a google.rpc.Status.
func statusMessage(c *cursor, length int) (message string, err error) {
	err = c.message(length, func(number protowire.Number, n int) (err error) {
		if number == 2 {
			message, err = c.brief(n)
			return err
		}
		return c.skip(n)
	})
	return message, err
}

// pair reads an entry of a map from string to string.
func (c *cursor) pair(length int) (r resource, err error) {
	err = c.message(length, func(number protowire.Number, n int) (err error) {
		switch number {
		case 1:
			r.name, err = c.text(n)
		case 2:
			r.version, err = c.text(n)
		default:
			err = c.skip(n)
		}
		return err
	})
	return r, err
}

// message calls visit for every field that has a length of a message inside another one.
func (c *cursor) message(length int, visit func(protowire.Number, int) error) error {
	end := c.remaining() - length
	if end < 0 {
		return errMalformed
	}
	for c.remaining() > end {
		number, n, err := c.field()
		if err != nil {
			return err
		}
		if c.remaining() < end || n > c.remaining()-end {
			return errMalformed
		}
		if number == 0 {
			continue
		}
		if err := visit(number, n); err != nil {
			return err
		}
	}
	return nil
}

// walk calls visit for every field of a message that has a length, with the cursor at its content. visit has to
// consume exactly that length.
func walk(data mem.BufferSlice, visit func(protowire.Number, *cursor, int) error) error {
	reader := data.Reader()
	defer func() { _ = reader.Close() }()
	c := &cursor{reader: reader}
	for c.remaining() > 0 {
		number, length, err := c.field()
		if err != nil {
			return err
		}
		if length == 0 && number == 0 {
			continue
		}
		if err := visit(number, c, length); err != nil {
			return err
		}
	}
	return nil
}

// cursor reads protobuf wire format out of pieces, without joining them.
type cursor struct{ reader *mem.Reader }

func (c *cursor) remaining() int { return c.reader.Remaining() }

// field reads a tag, and the length of what follows. A field without a length is consumed and comes as number 0.
func (c *cursor) field() (protowire.Number, int, error) {
	tag, err := c.varint()
	if err != nil {
		return 0, 0, err
	}
	number, kind := protowire.DecodeTag(tag)
	if number < protowire.MinValidNumber {
		return 0, 0, errMalformed
	}
	switch kind {
	case protowire.BytesType:
		length, err := c.varint()
		if err != nil || length > uint64(c.remaining()) {
			return 0, 0, errMalformed
		}
		return number, int(length), nil
	case protowire.VarintType:
		_, err = c.varint()
	case protowire.Fixed32Type:
		err = c.skip(4)
	case protowire.Fixed64Type:
		err = c.skip(8)
	default: // groups are not in these messages
		err = errMalformed
	}
	return 0, 0, err
}

func (c *cursor) varint() (uint64, error) {
	var value uint64
	for shift := uint(0); shift < 64; shift += 7 {
		b, err := c.reader.ReadByte()
		if err != nil {
			return 0, errMalformed
		}
		if shift == 63 && b > 1 {
			return 0, errMalformed
		}
		value |= uint64(b&0x7f) << shift
		if b < 0x80 {
			return value, nil
		}
	}
	return 0, errMalformed
}

func (c *cursor) skip(n int) error {
	if n > c.remaining() {
		return errMalformed
	}
	if _, err := c.reader.Discard(n); err != nil {
		return errMalformed
	}
	return nil
}

func (c *cursor) appendText(list []string, n int) ([]string, error) {
	text, err := c.text(n)
	if err != nil {
		return list, err
	}
	return append(list, text), nil
}

// bytes reads a message inside another one, whole.
func (c *cursor) bytes(n int) ([]byte, error) {
	if n > c.remaining() {
		return nil, errMalformed
	}
	buf := make([]byte, n)
	if _, err := io.ReadFull(c.reader, buf); err != nil {
		return nil, errMalformed
	}
	return buf, nil
}

// into reads n bytes into a buffer, which grows where it is too small.
func (c *cursor) into(buf []byte, n int) ([]byte, error) {
	if n > c.remaining() {
		return buf, errMalformed
	}
	buf = slices.Grow(buf, n)[:n]
	if _, err := io.ReadFull(c.reader, buf); err != nil {
		return buf, errMalformed
	}
	return buf, nil
}

// text reads a string whole: what has a name, a nonce or a version is asked for by it again.
func (c *cursor) text(n int) (string, error) {
	text, err := c.bytes(n)
	return string(text), err
}

// brief reads a string that is only looked at, of which it keeps the beginning when it is very long.
func (c *cursor) brief(n int) (string, error) {
	if n > c.remaining() {
		return "", errMalformed
	}
	text, err := c.bytes(min(n, maxString))
	if err != nil {
		return "", err
	}
	return string(text), c.skip(n - len(text))
}
