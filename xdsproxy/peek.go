package xdsproxy

import (
	"errors"
	"io"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// maxString bounds what is kept of a string that the other side chose.
const maxString = 4096

// request is what the relay reads of a DiscoveryRequest or a DeltaDiscoveryRequest.
type request struct {
	typeURL string
	nonce   string
	// names counts resource_names; subscribe, unsubscribe and known count the names of the delta protocol.
	names, subscribe, unsubscribe, known int
	star                                 bool // "*" is among the names asked for
	rejected                             bool // error_detail is there
	reason                               string
}

// response is what the relay reads of a DiscoveryResponse or a DeltaDiscoveryResponse.
type response struct {
	typeURL   string
	nonce     string
	version   string
	resources int
	removed   int
}

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
	case 3:
		r.names++
		err = r.name(c, length)
	case 4:
		r.typeURL, err = c.text(length)
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
	case 2:
		r.typeURL, err = c.text(length)
	case 3:
		r.subscribe++
		err = r.name(c, length)
	case 4:
		r.unsubscribe++
		err = c.skip(length)
	case 5:
		r.known++
		err = c.skip(length)
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

// name looks at a resource name only to see whether it is the wildcard.
func (r *request) name(c *cursor, length int) error {
	if length != 1 {
		return c.skip(length)
	}
	name, err := c.text(length)
	r.star = r.star || name == "*"
	return err
}

// peekResponse reads the fields of a response that the relay is interested in, and passes over the resources.
func peekResponse(v variant, data mem.BufferSlice) (response, error) {
	var r response
	err := walk(data, func(number protowire.Number, c *cursor, length int) (err error) {
		switch {
		case number == 1:
			r.version, err = c.text(length)
		case number == 2:
			r.resources++
			err = c.skip(length)
		case number == 4:
			r.typeURL, err = c.text(length)
		case number == 5:
			r.nonce, err = c.text(length)
		case number == 6 && v == delta:
			r.removed++
			err = c.skip(length)
		default:
			err = c.skip(length)
		}
		return err
	})
	return r, err
}

// statusMessage reads the message of a google.rpc.Status.
func statusMessage(c *cursor, length int) (string, error) {
	var message string
	end := c.remaining() - length
	if end < 0 {
		return "", errMalformed
	}
	for c.remaining() > end {
		number, n, err := c.field()
		if err != nil {
			return "", err
		}
		if n > c.remaining()-end {
			return "", errMalformed
		}
		if number == 2 {
			message, err = c.text(n)
		} else {
			err = c.skip(n)
		}
		if err != nil {
			return "", err
		}
	}
	return message, nil
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

// text reads a string, of which it keeps the beginning when it is very long.
func (c *cursor) text(n int) (string, error) {
	if n > c.remaining() {
		return "", errMalformed
	}
	buf := make([]byte, min(n, maxString))
	if _, err := io.ReadFull(c.reader, buf); err != nil {
		return "", errMalformed
	}
	return string(buf), c.skip(n - len(buf))
}
