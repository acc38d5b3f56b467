package exposition

import "hash/maphash"

// maxSeries is the maximum number of series per source that are stored, which needs 1 MB. Repetitions of further series
// are not detected.
const maxSeries = 1 << 16

// seenSeries stores hashes of the series of a source, to detect repeated series. A nil *seenSeries detects none.
type seenSeries struct {
	seed maphash.Seed
	// slots is a hash table with linear probing. 0 is a free slot. It is accessed for each sample, and needs less
	// memory than a map.
	slots    []uint64
	series   int
	repeated int // number of dropped samples
}

func newSeenSeries(wanted bool) *seenSeries {
	if !wanted {
		return nil
	}
	return &seenSeries{seed: maphash.MakeSeed(), slots: make([]uint64, 1<<8)}
}

// repeats reports whether the series occurred before with the same timestamp. It records the series. A series may occur
// with several different timestamps.
func (h *seenSeries) repeats(series, time []byte) bool {
	if h == nil {
		return false
	}
	hash := maphash.Bytes(h.seed, series)
	if len(time) > 0 {
		hash = hash<<1 + maphash.Bytes(h.seed, time)
	}
	hash = max(hash, 1)
	at := h.slot(hash)
	if h.slots[at] != 0 {
		return true
	}
	if h.series < maxSeries {
		h.slots[at] = hash
		if h.series++; h.series > len(h.slots)/4*3 {
			h.grow()
		}
	}
	return false
}

// slot returns the index of the slot with the hash, or of the free slot where it is inserted.
func (h *seenSeries) slot(hash uint64) uint64 {
	mask := uint64(len(h.slots) - 1)
	at := hash & mask
	for h.slots[at] != 0 && h.slots[at] != hash {
		at = (at + 1) & mask
	}
	return at
}

func (h *seenSeries) grow() {
	before := h.slots
	h.slots = make([]uint64, 2*len(before))
	for _, hash := range before {
		if hash != 0 {
			h.slots[h.slot(hash)] = hash
		}
	}
}

func (h *seenSeries) count() int {
	if h == nil {
		return 0
	}
	return h.repeated
}
