package xdsproxy

import (
	"errors"
	"io"
	"slices"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// maxString limits the stored length of strings from peers that are only displayed or searched.
const maxString = 4096

// request contains the fields of a DiscoveryRequest or DeltaDiscoveryRequest that the relay reads.
type request struct {
	typeURL string
	nonce   string
	version string // version_info (SotW)
	node    []byte // encoded; only the first request of a stream must contain it
	// names are resource_names (SotW). subscribe, unsubscribe and known (initial_resource_versions) belong to delta.
	names, subscribe, unsubscribe []string
	known                         []resource
	rejected                      bool // has error_detail
	reason                        string
}

// response contains the fields of a DiscoveryResponse or DeltaDiscoveryResponse that the relay reads.
type response struct {
	typeURL   string
	nonce     string
	version   string
	resources []resource
	removed   []string
}

// resource is the name and version of a resource. SotW resources have no version of their own.
type resource struct{ name, version string }

// hasWildcard reports whether the request contains the name "*".
func (r *request) hasWildcard() bool {
	return slices.Contains(r.names, wildcard) || slices.Contains(r.subscribe, wildcard)
}

// wildcard is the name that requests all resources of a type.
const wildcard = "*"

var errMalformed = errors.New("not a protobuf message")

// peekRequest parses the fields of a request that the relay reads, and skips all others.
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
		r.typeURL, err = c.truncatedText(length)
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
		r.typeURL, err = c.truncatedText(length)
	case 3:
		r.subscribe, err = c.appendText(r.subscribe, length)
	case 4:
		r.unsubscribe, err = c.appendText(r.unsubscribe, length)
	case 5:
		var known resource
		known, err = c.stringPair(length)
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

// peekResponse parses the fields of a response that the relay reads, and skips the contents of resources.
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
			r.typeURL, err = c.truncatedText(length)
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

// peekResource reads the name and version of a resource. A SotW resource is only an Any.
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

// peekAny reads the name of the resource in an Any. All of Envoy's resource types have the name in field 1. It returns
// "" if the content is not readable; Envoy then rejects it.
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

// openName reads the tag and length of a leading string field 1. It returns false if another field is first. It reads
// nothing after end.
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
			message, err = c.truncatedText(n)
			return err
		}
		return c.skip(n)
	})
	return message, err
}

// stringPair reads an entry of a string map.
func (c *cursor) stringPair(length int) (r resource, err error) {
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

// message calls visit for each length-delimited field of a nested message.
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

// walk calls visit for each length-delimited field of a message, with the cursor at its content. visit must consume
// exactly length bytes.
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

// cursor reads the protobuf wire format from several buffers without joining them.
type cursor struct{ reader *mem.Reader }

func (c *cursor) remaining() int { return c.reader.Remaining() }

// field reads the tag and length of a field. It skips a field of another wire type and returns number 0.
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
	default: // discovery messages contain no groups
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

// bytes reads n bytes into a new slice.
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

// bytesInto reads n bytes into buf, which it grows if necessary.
func (c *cursor) bytesInto(buf []byte, n int) ([]byte, error) {
	if n > c.remaining() {
		return buf, errMalformed
	}
	buf = slices.Grow(buf, n)[:n]
	if _, err := io.ReadFull(c.reader, buf); err != nil {
		return buf, errMalformed
	}
	return buf, nil
}

// text reads a complete string: names, nonces and versions are sent again.
func (c *cursor) text(n int) (string, error) {
	text, err := c.bytes(n)
	return string(text), err
}

// truncatedText reads a string of n bytes and returns at most maxString of them.
func (c *cursor) truncatedText(n int) (string, error) {
	if n > c.remaining() {
		return "", errMalformed
	}
	text, err := c.bytes(min(n, maxString))
	if err != nil {
		return "", err
	}
	return string(text), c.skip(n - len(text))
}
