package exposition

import "hash/maphash"

// mostHad series of a source are remembered, in about 2 MB. Those after them are not looked for.
const mostHad = 1 << 16

// had remembers which series a source had, by their hashes. Nil remembers none.
type had struct {
	seed     maphash.Seed
	hashes   map[uint64]struct{}
	repeated int // samples that were left out
}

func newHad(wanted bool) *had {
	if !wanted {
		return nil
	}
	return &had{seed: maphash.MakeSeed(), hashes: make(map[uint64]struct{})}
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
	_, again := h.hashes[hash]
	if !again && len(h.hashes) < mostHad {
		h.hashes[hash] = struct{}{}
	}
	return again
}

func (h *had) count() int {
	if h == nil {
		return 0
	}
	return h.repeated
}
