package xdsproxy

import "google.golang.org/grpc/mem"

// incrementalParser parses a response that is never in memory as a whole. It buffers only the bytes that do not yet
// form a complete field. A response is a sequence of fields, so any number of complete fields can be parsed as a
// response.
type incrementalParser struct {
	proto  variant
	writer chunkedWriter
	parsed response
	buffer mem.BufferSlice
	err    error
}

// add parses the next piece and takes ownership of it.
func (g *incrementalParser) add(piece mem.Buffer) {
	g.buffer = append(g.buffer, piece)
	n := completeFieldsLen(g.buffer)
	if n == 0 || g.err != nil {
		return
	}
	part := &frame{data: g.takePrefix(n)}
	defer part.free()
	r, err := peekResponse(g.proto, part.data)
	if err != nil {
		g.err = err
		return
	}
	g.merge(r)
	g.writer.add(r, part)
}

// finish parses the last piece, takes ownership of it, and returns the response. It fails if a field is incomplete.
func (g *incrementalParser) finish(last mem.Buffer) (response, error) {
	g.add(last)
	if g.err == nil && len(g.buffer) > 0 {
		g.err = errMalformed
	}
	return g.parsed, g.err
}

// merge adds the fields of a part. The last occurrence of a field counts, as in protobuf.
func (g *incrementalParser) merge(r response) {
	if r.typeURL != "" {
		g.parsed.typeURL = r.typeURL
	}
	if r.nonce != "" {
		g.parsed.nonce = r.nonce
	}
	if r.version != "" {
		g.parsed.version = r.version
	}
	g.parsed.resources = append(g.parsed.resources, r.resources...)
	g.parsed.removed = append(g.parsed.removed, r.removed...)
}

// takePrefix removes the first n bytes from the buffer and returns them.
func (g *incrementalParser) takePrefix(n int) (part mem.BufferSlice) {
	for n > 0 {
		first := g.buffer[0]
		if size := first.Len(); size > n {
			var rest mem.Buffer
			first, rest = mem.SplitUnsafe(first, n)
			g.buffer = append(mem.BufferSlice{rest}, g.buffer[1:]...)
		} else {
			g.buffer = g.buffer[1:]
		}
		n -= first.Len()
		part = append(part, first)
	}
	return part
}

func (g *incrementalParser) free() { g.buffer.Free() }

// completeFieldsLen returns the length of the complete fields at the beginning of data.
func completeFieldsLen(data mem.BufferSlice) (n int) {
	reader := data.Reader()
	defer func() { _ = reader.Close() }()
	c := &cursor{reader: reader}
	all := c.remaining()
	for c.remaining() > 0 {
		if _, length, err := c.field(); err != nil || c.skip(length) != nil {
			return n
		}
		n = all - c.remaining()
	}
	return n
}
