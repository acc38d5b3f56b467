//go:build unix

package xdsproxy

import (
	"fmt"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/mem"
)

// pageStep is how much memory is given back at a time: a large page, where the system has such.
const pageStep = 2 << 20

// pages is memory beside Go's heap, for one thing that is large and soon over: on the heap it would stay until the next
// collection and longer, and until then have the heap grow to twice of it.
type pages struct {
	room          []byte
	used, dropped int
}

// newPages makes room for so many bytes. They are the system's until they are used.
func newPages(size int) (*pages, error) {
	size = (size + pageStep - 1) / pageStep * pageStep
	room, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("asking for %d bytes of memory: %w", size, err)
	}
	preferLarge(room)
	return &pages{room: room}, nil
}

// append copies what there is room for.
func (p *pages) append(data mem.BufferSlice) {
	for _, part := range data {
		p.used += copy(p.room[p.used:], part.ReadOnlyData())
	}
}

// frame is what was copied, as one message that has to be of no use any more when the pages are freed.
func (p *pages) frame() *frame {
	return &frame{data: mem.BufferSlice{mem.SliceBuffer(p.room[:p.used])}}
}

// drop gives back what lies before so many bytes: it is not read any more.
func (p *pages) drop(read int) {
	if whole := read / pageStep * pageStep; whole > p.dropped {
		giveBack(p.room[p.dropped:whole])
		p.dropped = whole
	}
}

func (p *pages) free() {
	_ = unix.Munmap(p.room)
	*p = pages{}
}
