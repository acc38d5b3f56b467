package exposition

import "hash/maphash"

// mostHad series of a source are remembered, in 1 MB. Those after them are not looked for.
const mostHad = 1 << 16

// had remembers which series a source had, by their hashes. Nil remembers none.
type had struct {
	seed maphash.Seed
	// slots is a table of hashes, each in the first free place from its own on; 0 is a free one. It is asked for each sample,
	// and holds less memory than a map does.
	slots    []uint64
	series   int
	repeated int // samples that were left out
}

func newHad(wanted bool) *had {
	if !wanted {
		return nil
	}
	return &had{seed: maphash.MakeSeed(), slots: make([]uint64, 1<<8)}
}

// again says whether the series, as it is written, was there already. A series may be there at several times.
func (h *had) again(series, time []byte) bool {
	if h == nil {
		return false
	}
	hash := maphash.Bytes(h.seed, series)
	if len(time) > 0 {
		hash = hash<<1 + maphash.Bytes(h.seed, time)
	}
	hash = max(hash, 1)
	at := h.place(hash)
	if h.slots[at] != 0 {
		return true
	}
	if h.series < mostHad {
		h.slots[at] = hash
		if h.series++; h.series > len(h.slots)/4*3 {
			h.grow()
		}
	}
	return false
}

// place is where the hash is, or would be.
func (h *had) place(hash uint64) uint64 {
	mask := uint64(len(h.slots) - 1)
	at := hash & mask
	for h.slots[at] != 0 && h.slots[at] != hash {
		at = (at + 1) & mask
	}
	return at
}

func (h *had) grow() {
	before := h.slots
	h.slots = make([]uint64, 2*len(before))
	for _, hash := range before {
		if hash != 0 {
			h.slots[h.place(hash)] = hash
		}
	}
}

func (h *had) count() int {
	if h == nil {
		return 0
	}
	return h.repeated
}
