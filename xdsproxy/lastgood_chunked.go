package xdsproxy

// writeBatchSize is the amount of data of a large response that is written at a time.
const writeBatchSize = 256 << 10

// chunkedWriter records a chunked response while it arrives. It buffers chunks that the disk has not accepted, and does
// not wait for the disk.
type chunkedWriter struct {
	session *session
	writer  *lastGoodWriter // the writer at the beginning of the response
	stage   uint64          // 0 if the response is not recorded
	chunks  []responseChunk
	bytes   int
}

// responseChunk is a part of a response with its parsed content.
type responseChunk struct {
	parsed response
	frame  *frame
}

// beginChunked starts to record a chunked response of the type.
func (s *session) beginChunked(typeURL string) chunkedWriter {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := chunkedWriter{session: s}
	if s.canRecord(typeURL) {
		k.writer = s.writer
		k.stage = k.writer.stage.Add(1)
	}
	return k
}

// add records a chunk; it acquires its own reference.
func (k *chunkedWriter) add(r response, part *frame) {
	if k.stage == 0 {
		return
	}
	k.chunks = append(k.chunks, responseChunk{r, part.share()})
	if k.bytes += part.data.Len(); k.bytes < writeBatchSize {
		return
	}
	k.session.mu.Lock()
	defer k.session.mu.Unlock()
	switch {
	case !k.isActive(): // recording was stopped; it resumes with the next response at the earliest
		k.discard()
		k.stage = 0
	case k.writer.tryEnqueue(k.writeFunc(k.chunks)):
		k.chunks, k.bytes = nil, 0
	}
}

// writeFunc returns a function that writes the chunks and frees them.
func (k *chunkedWriter) writeFunc(parts []responseChunk) func() {
	writer, stage := k.writer, k.stage
	return func() {
		for _, part := range parts {
			writer.writeResources(stage, part.parsed, part.frame)
			part.frame.free()
		}
	}
}

// finish records the rest of the response and returns its stage, or 0 if it is not recorded; the caller does not hold
// the session's mu.
func (k *chunkedWriter) finish(r response) (stage uint64) {
	if k.stage == 0 {
		return 0
	}
	k.session.mu.Lock()
	defer k.session.mu.Unlock()
	rest, writer, proto := k.writeFunc(k.chunks), k.writer, k.session.proto
	stage = k.stage
	ok := k.isActive() && k.session.enqueueWrite(func() {
		rest()
		writer.writeResponseEnd(proto, stage, r)
	})
	if !ok {
		k.discard()
		return 0
	}
	k.chunks = nil
	return stage
}

// abandon discards a response that was cut off.
func (k *chunkedWriter) abandon() {
	if k.stage == 0 {
		return
	}
	k.discard()
	k.session.mu.Lock()
	defer k.session.mu.Unlock()
	if writer, stage := k.writer, k.stage; k.isActive() {
		k.session.enqueueWrite(func() { writer.store.Reject(stage) })
	}
}

// isActive reports whether the session still records with the same writer; the caller holds the session's mu.
func (k *chunkedWriter) isActive() bool {
	m := &k.session.record
	return m.isWriting && !m.hasFailed && k.session.writer == k.writer
}

func (k *chunkedWriter) discard() {
	for _, part := range k.chunks {
		part.frame.free()
	}
	k.chunks = nil
}
