package wire

import (
	"errors"
	"slices"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// MaxString is the maximum length in bytes of strings that the relay stores only to display or search them. It
// truncates longer strings of peers.
const MaxString = 4096

// Request contains those fields of a DiscoveryRequest or DeltaDiscoveryRequest that the relay uses.
type Request struct {
	TypeURL string
	Nonce   string
	Version string // version_info (SotW)
	Node    []byte // encoded; only the first request of a stream must contain it
	// Names is resource_names, which exists only in SotW. Subscribe, Unsubscribe and Known (initial_resource_versions)
	// exist only in delta.
	Names, Subscribe, Unsubscribe []string
	Known                         []Resource
	// Rejected is set for a NACK (a request with error_detail), and Reason is its error message.
	Rejected bool
	Reason   string
}

// Response contains those fields of a DiscoveryResponse or DeltaDiscoveryResponse that the relay uses.
type Response struct {
	TypeURL   string
	Nonce     string
	Version   string
	Resources []Resource
	Removed   []string // removed_resources (delta)
}

// Resource is the name and version of a resource. In SotW the version is empty, because only whole responses have a
// version.
type Resource struct{ Name, Version string }

// HasWildcard reports whether the request contains the name "*".
func (r *Request) HasWildcard() bool {
	return slices.Contains(r.Names, Wildcard) || slices.Contains(r.Subscribe, Wildcard)
}

// Wildcard is the name that requests all resources of a type.
const Wildcard = "*"

// ErrMalformed is returned for bytes that are not an encoded message.
var ErrMalformed = errors.New("not a protobuf message")

// ParseRequest parses an encoded request. It reads only the fields of Request.
func ParseRequest(v Variant, data mem.BufferSlice) (Request, error) {
	var r Request
	field := r.sotwField
	if v == Delta {
		field = r.deltaField
	}
	err := Walk(data, field)
	return r, err
}

func (r *Request) sotwField(number protowire.Number, c *Cursor, length int) (err error) {
	switch number {
	case 1:
		r.Version, err = c.text(length)
	case 2:
		r.Node, err = c.bytes(length)
	case 3:
		r.Names, err = c.appendText(r.Names, length)
	case 4:
		r.TypeURL, err = c.truncatedText(length)
	case 5:
		r.Nonce, err = c.text(length)
	case 6:
		r.Rejected = true
		r.Reason, err = statusMessage(c, length)
	default:
		err = c.Skip(length)
	}
	return err
}

func (r *Request) deltaField(number protowire.Number, c *Cursor, length int) (err error) {
	switch number {
	case 1:
		r.Node, err = c.bytes(length)
	case 2:
		r.TypeURL, err = c.truncatedText(length)
	case 3:
		r.Subscribe, err = c.appendText(r.Subscribe, length)
	case 4:
		r.Unsubscribe, err = c.appendText(r.Unsubscribe, length)
	case 5:
		var known Resource
		known, err = c.stringPair(length)
		r.Known = append(r.Known, known)
	case 6:
		r.Nonce, err = c.text(length)
	case 7:
		r.Rejected = true
		r.Reason, err = statusMessage(c, length)
	default:
		err = c.Skip(length)
	}
	return err
}

// ParseResponse parses an encoded response. It reads only the fields of Response, and skips the contents of resources.
func ParseResponse(v Variant, data mem.BufferSlice) (Response, error) {
	var r Response
	err := Walk(data, func(number protowire.Number, c *Cursor, length int) (err error) {
		switch {
		case number == 1:
			r.Version, err = c.text(length)
		case number == 2:
			var one Resource
			if one, err = ParseResource(v, c, length); err == nil {
				r.Resources = append(r.Resources, one)
			}
		case number == 4:
			r.TypeURL, err = c.truncatedText(length)
		case number == 5:
			r.Nonce, err = c.text(length)
		case number == 6 && v == Delta:
			r.Removed, err = c.appendText(r.Removed, length)
		default:
			err = c.Skip(length)
		}
		return err
	})
	return r, err
}

// ParseResource reads the name and version of a resource whose encoding has length bytes. In SotW a resource is an Any
// without a version.
func ParseResource(v Variant, c *Cursor, length int) (Resource, error) {
	var r Resource
	if v == SotW {
		var err error
		r.Name, err = parseAny(c, length)
		return r, err
	}
	err := c.message(length, func(number protowire.Number, length int) (err error) {
		switch number {
		case 1:
			r.Version, err = c.text(length)
		case 3:
			r.Name, err = c.text(length)
		default:
			err = c.Skip(length)
		}
		return err
	})
	return r, err
}

// parseAny returns the name of the resource in an Any: its field 1, which contains the name in all of Envoy's resource
// types. It returns "" if the content does not start with this field.
func parseAny(c *Cursor, length int) (name string, err error) {
	err = c.message(length, func(number protowire.Number, length int) error {
		if number != 2 || length == 0 {
			return c.Skip(length)
		}
		content := c.Remaining() - length
		if n, ok := c.openName(content); ok {
			if name, err = c.text(n); err != nil {
				return err
			}
		}
		return c.Skip(c.Remaining() - content)
	})
	return name, err
}

// openName reads the tag and length of field 1, a string. The cursor must be at the start of the content. It returns
// false if the content starts with another field. end is the value of Remaining at the end of the content.
func (c *Cursor) openName(end int) (length int, ok bool) {
	if b, err := c.readByte(); err != nil || b != 1<<3|byte(protowire.BytesType) {
		return 0, false
	}
	for shift := 0; shift < 28 && c.Remaining() > end; shift += 7 {
		b, err := c.readByte()
		if err != nil {
			return 0, false
		}
		length |= int(b&0x7f) << shift
		if b < 0x80 {
			return length, length <= c.Remaining()-end
		}
	}
	return 0, false
}

// statusMessage reads the error message in a google.rpc.Status.
func statusMessage(c *Cursor, length int) (message string, err error) {
	err = c.message(length, func(number protowire.Number, n int) (err error) {
		if number == 2 {
			message, err = c.truncatedText(n)
			return err
		}
		return c.Skip(n)
	})
	return message, err
}

// stringPair reads an entry of a map<string, string>. It returns the key in Name and the value in Version.
func (c *Cursor) stringPair(length int) (r Resource, err error) {
	err = c.message(length, func(number protowire.Number, n int) (err error) {
		switch number {
		case 1:
			r.Name, err = c.text(n)
		case 2:
			r.Version, err = c.text(n)
		default:
			err = c.Skip(n)
		}
		return err
	})
	return r, err
}

// message calls visit for each length-delimited field of a nested message that has length bytes. visit must consume the
// field's content.
func (c *Cursor) message(length int, visit func(protowire.Number, int) error) error {
	end := c.Remaining() - length
	if end < 0 {
		return ErrMalformed
	}
	for c.Remaining() > end {
		number, n, err := c.field()
		if err != nil {
			return err
		}
		if c.Remaining() < end || n > c.Remaining()-end {
			return ErrMalformed
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

// Walk calls visit for each length-delimited field of an encoded message. It passes a cursor at the field's content.
// visit must consume exactly as many bytes as the length that it receives.
func Walk(data mem.BufferSlice, visit func(protowire.Number, *Cursor, int) error) error {
	c := NewCursor(data)
	for c.Remaining() > 0 {
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

// Cursor reads the protobuf wire format from several buffers without joining them. It does not own the buffers.
type Cursor struct {
	buffer    []byte // the rest of the current buffer
	next      mem.BufferSlice
	remaining int
}

// NewCursor returns a cursor at the beginning of data.
func NewCursor(data mem.BufferSlice) *Cursor { return &Cursor{next: data, remaining: data.Len()} }

// Remaining returns the number of bytes that the cursor has not read yet.
func (c *Cursor) Remaining() int { return c.remaining }

// fill advances to the next buffer if the current one is empty. It returns false at the end of the data.
func (c *Cursor) fill() bool {
	for len(c.buffer) == 0 {
		if len(c.next) == 0 {
			return false
		}
		c.buffer, c.next = c.next[0].ReadOnlyData(), c.next[1:]
	}
	return true
}

func (c *Cursor) readByte() (byte, error) {
	if !c.fill() {
		return 0, ErrMalformed
	}
	b := c.buffer[0]
	c.buffer = c.buffer[1:]
	c.remaining--
	return b, nil
}

// read fills b. b must not be longer than the remaining bytes.
func (c *Cursor) read(b []byte) {
	c.remaining -= len(b)
	for len(b) > 0 && c.fill() {
		n := copy(b, c.buffer)
		b, c.buffer = b[n:], c.buffer[n:]
	}
}

// field reads the tag and length of a length-delimited field. It skips a field of another wire type and returns number
// 0.
func (c *Cursor) field() (protowire.Number, int, error) {
	tag, err := c.varint()
	if err != nil {
		return 0, 0, err
	}
	number, kind := protowire.DecodeTag(tag)
	if number < protowire.MinValidNumber {
		return 0, 0, ErrMalformed
	}
	switch kind {
	case protowire.BytesType:
		length, err := c.varint()
		if err != nil || length > uint64(c.Remaining()) {
			return 0, 0, ErrMalformed
		}
		return number, int(length), nil
	case protowire.VarintType:
		_, err = c.varint()
	case protowire.Fixed32Type:
		err = c.Skip(4)
	case protowire.Fixed64Type:
		err = c.Skip(8)
	default: // discovery messages contain no groups
		err = ErrMalformed
	}
	return 0, 0, err
}

func (c *Cursor) varint() (uint64, error) {
	var value uint64
	for shift := uint(0); shift < 64; shift += 7 {
		b, err := c.readByte()
		if err != nil {
			return 0, ErrMalformed
		}
		if shift == 63 && b > 1 {
			return 0, ErrMalformed
		}
		value |= uint64(b&0x7f) << shift
		if b < 0x80 {
			return value, nil
		}
	}
	return 0, ErrMalformed
}

// Skip skips n bytes.
func (c *Cursor) Skip(n int) error {
	if n > c.remaining {
		return ErrMalformed
	}
	c.remaining -= n
	for n > 0 && c.fill() {
		step := min(n, len(c.buffer))
		n, c.buffer = n-step, c.buffer[step:]
	}
	return nil
}

func (c *Cursor) appendText(list []string, n int) ([]string, error) {
	text, err := c.text(n)
	if err != nil {
		return list, err
	}
	return append(list, text), nil
}

// bytes reads n bytes into a new slice.
func (c *Cursor) bytes(n int) ([]byte, error) {
	if n > c.remaining {
		return nil, ErrMalformed
	}
	b := make([]byte, n)
	c.read(b)
	return b, nil
}

// ReadInto reads n bytes into buf, which it grows if necessary.
func (c *Cursor) ReadInto(buf []byte, n int) ([]byte, error) {
	if n > c.remaining {
		return buf, ErrMalformed
	}
	buf = slices.Grow(buf, n)[:n]
	c.read(buf)
	return buf, nil
}

// text reads a string of n bytes. It does not truncate the string, because the relay sends names, nonces and versions
// again.
func (c *Cursor) text(n int) (string, error) {
	if n <= len(c.buffer) {
		text := string(c.buffer[:n])
		return text, c.Skip(n)
	}
	text, err := c.bytes(n)
	return string(text), err
}

// truncatedText reads a string of n bytes and returns at most MaxString of them.
func (c *Cursor) truncatedText(n int) (string, error) {
	if n > c.remaining {
		return "", ErrMalformed
	}
	text, err := c.text(min(n, MaxString))
	if err != nil {
		return "", err
	}
	return text, c.Skip(n - len(text))
}

// EachResource calls visit for each resource of an encoded response. It passes a cursor at the encoded resource. visit
// must consume exactly as many bytes as the length that it receives.
func EachResource(data mem.BufferSlice, visit func(c *Cursor, length int) error) error {
	return Walk(data, func(number protowire.Number, c *Cursor, length int) error {
		if number != ResponseResources {
			return c.Skip(length)
		}
		return visit(c, length)
	})
}
