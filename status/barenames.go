package status

import (
	"bytes"
	"io"
)

// meshMetrics begins the names that Envoy gives to the mesh's standard metrics. Dashboards, alerts and Istio's own proxies
// know them without the first part, which Envoy puts before all that it counts.
var (
	meshMetrics = []byte("envoy_istio_")
	envoyPart   = len("envoy_")
)

const bareBuffer = 32 << 10

// bareNames gives the mesh's standard metrics in a text the names that they are known by.
type bareNames struct {
	from  io.Reader
	buf   []byte
	held  int    // bytes in buf that are the beginning of a line
	ready []byte // in buf
	err   error
}

func newBareNames(from io.Reader) io.Reader {
	return &bareNames{from: from, buf: make([]byte, bareBuffer)}
}

func (b *bareNames) Read(p []byte) (int, error) {
	for len(b.ready) == 0 {
		if b.err != nil {
			return 0, b.err
		}
		b.fill()
	}
	n := copy(p, b.ready)
	b.ready = b.ready[n:]
	return n, nil
}

// fill reads on, and makes whole lines ready; what is longer than the buffer passes as it is.
func (b *bareNames) fill() {
	begun := b.buf[len(b.buf)-b.held:]
	copy(b.buf, begun)
	n, err := b.from.Read(b.buf[b.held:])
	text := b.buf[:b.held+n]
	b.held, b.err = 0, err
	whole := bytes.LastIndexByte(text, '\n') + 1
	if err != nil || whole == 0 && len(text) == len(b.buf) {
		whole = len(text)
	}
	rest := text[whole:]
	b.held = len(rest)
	b.ready = bare(text[:whole])
	copy(b.buf[len(b.buf)-b.held:], rest)
}

// bare takes the first part off the names in whole lines, in place.
func bare(text []byte) []byte {
	out, at := 0, 0
	for {
		i := bytes.Index(text[at:], meshMetrics)
		if i < 0 {
			break
		}
		name := at + i
		next := name + len(meshMetrics)
		line := text[bytes.LastIndexByte(text[:name], '\n')+1 : name]
		if len(line) != 0 && string(line) != "# TYPE " && string(line) != "# HELP " {
			out += copy(text[out:], text[at:next])
			at = next
			continue
		}
		out += copy(text[out:], text[at:name])
		at = name + envoyPart
		out += copy(text[out:], text[at:next])
		at = next
	}
	out += copy(text[out:], text[at:])
	return text[:out]
}
