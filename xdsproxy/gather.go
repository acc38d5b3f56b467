package xdsproxy

import "google.golang.org/grpc/mem"

// gathering reads a response that is never there as a whole: of the pieces that have come only what does not yet make a whole
// field is held. A response is a row of fields, so that any number of whole ones can be read as a response.
type gathering struct {
	proto   variant
	keeping flowKeeping
	about   response
	window  mem.BufferSlice
	err     error
}

// add takes the next piece over.
func (g *gathering) add(piece mem.Buffer) {
	g.window = append(g.window, piece)
	n := wholeFields(g.window)
	if n == 0 || g.err != nil {
		return
	}
	part := &frame{data: g.cut(n)}
	defer part.free()
	r, err := peekResponse(g.proto, part.data)
	if err != nil {
		g.err = err
		return
	}
	g.merge(r)
	g.keeping.add(r, part)
}

// end takes the last piece over, and gives what was gathered.
func (g *gathering) end(last mem.Buffer) (response, error) {
	g.add(last)
	if g.err == nil && len(g.window) > 0 {
		g.err = errMalformed
	}
	return g.about, g.err
}

// merge takes over what a part says: of a field that is there twice, protobuf takes the last.
func (g *gathering) merge(r response) {
	if r.typeURL != "" {
		g.about.typeURL = r.typeURL
	}
	if r.nonce != "" {
		g.about.nonce = r.nonce
	}
	if r.version != "" {
		g.about.version = r.version
	}
	g.about.resources = append(g.about.resources, r.resources...)
	g.about.removed = append(g.about.removed, r.removed...)
}

// cut takes the first bytes of the window out of it.
func (g *gathering) cut(n int) (part mem.BufferSlice) {
	for n > 0 {
		first := g.window[0]
		if size := first.Len(); size > n {
			var rest mem.Buffer
			first, rest = mem.SplitUnsafe(first, n)
			g.window = append(mem.BufferSlice{rest}, g.window[1:]...)
		} else {
			g.window = g.window[1:]
		}
		n -= first.Len()
		part = append(part, first)
	}
	return part
}

func (g *gathering) free() { g.window.Free() }

// wholeFields is how many bytes of the beginning are whole fields.
func wholeFields(data mem.BufferSlice) (n int) {
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
