package xdsproxy

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/pilotfish-mesh/pilotfish/xdsproxy/lastgood"
	"github.com/pilotfish-mesh/pilotfish/xdsproxy/wire"
)

// maxStoredResponse is the size in bytes above which the relay splits a response from the last accepted configuration.
// It does not split SotW responses with clusters or listeners, because one response must contain all of them.
const maxStoredResponse = 1 << 20

// maxLoadWait limits how long a session waits for the snapshot from the store. Meanwhile the session uses no connection
// to a control plane, because it cannot receive the snapshot while an upstream stream runs. The wait is limited because
// the disk may hang.
const maxLoadWait = 5 * time.Second

// maxSilenceDoublings limits how often SilenceTimeout doubles. It doubles after each silent upstream stream.
const maxSilenceDoublings = 6

// loadIfDue starts to load the last accepted configuration if Envoy needs it and no control plane is reachable. If
// ConnectWait has not passed yet, it returns a channel that fires at that time. Otherwise it returns nil.
func (s *session) loadIfDue() <-chan time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := &s.record
	switch {
	case !s.needsLastGood() || k.loading != nil:
		return nil
	case !k.isDue && !s.upstream.isDown.Load():
		if k.timer == nil {
			k.timer = time.After(s.relay.config.LastGood.ConnectWait)
		}
		return k.timer
	}
	k.loading, k.isLoaded = s.store.Load(s.ctx, k.id), true
	k.loadWait = time.After(maxLoadWait)
	return nil
}

// serveLastGood sends the last accepted configuration to Envoy. It sends nothing if snapshot is nil or empty, or if
// Envoy has meanwhile accepted everything that it requested.
func (s *session) serveLastGood(snapshot *lastgood.Snapshot) error {
	s.mu.Lock()
	k := &s.record
	k.loading, k.loadWait = nil, nil
	if snapshot == nil {
		s.mu.Unlock()
		return nil
	}
	resources, size := snapshot.Size()
	if resources == 0 || k.isComplete {
		s.mu.Unlock()
		return snapshot.Close()
	}
	k.snapshot, k.upToDate = snapshot, snapshot.UpToDate
	if k.recording != nil { // do not store resources from a control plane that failed before it had sent everything
		k.recording.Discard()
	}
	order := append([]string(nil), s.state.typeOrder...)
	s.mu.Unlock()
	s.relay.log.Info("Envoy receives the last accepted configuration, because no control plane responds",
		"upToDate", snapshot.UpToDate, "resources", resources, "bytes", size)
	s.relay.lastGoodServed.Add(1)
	for _, typeURL := range order {
		if err := s.sendStoredResources(typeURL, nil); err != nil {
			return err
		}
	}
	return nil
}

// needsLastGood reports whether Envoy needs the last accepted configuration: Envoy started without configuration, and
// has not accepted everything that it requested. It returns false if the session has already requested the snapshot, or
// if the relay stores nothing for this client. The caller holds mu.
func (s *session) needsLastGood() bool {
	k := &s.record
	return s.store != nil && k.isIdentified && !k.hadConfig && !k.isLoaded && !k.isComplete
}

// serveFromLastGood responds to the request h of Envoy with stored resources. It is called until a control plane
// responds. If sending fails, it cancels the session.
func (s *session) serveFromLastGood(h requestInfo) {
	names := h.Subscribe
	if h.first || s.proto == wire.SotW {
		names = nil
	}
	err := s.sendStoredResources(h.TypeURL, names)
	if err == nil && h.TypeURL == routeConfigType {
		err = s.sendVirtualHosts(h.Subscribe)
	}
	if err != nil {
		s.cancel(fmt.Errorf("sending to Envoy: %w", err))
	}
}

// sendStoredResources sends the stored resources with these names. If names is nil, it sends all resources of the type
// that Envoy requests.
func (s *session) sendStoredResources(typeURL string, names []string) error {
	for first := true; first || len(names) > 0; first = false {
		var r storedResponse
		if r, names = s.buildStored(typeURL, names); r.message == nil {
			return nil
		}
		if err := s.sendStoredResponse(r.Response, r.message); err != nil {
			return err
		}
	}
	return nil
}

// sendStoredResponse sends a stored response to Envoy. If there is a Rewriter for its type, it sends the response
// asynchronously.
func (s *session) sendStoredResponse(r wire.Response, f *wire.Message) error {
	rewrite, ok := s.relay.config.Rewrite[r.TypeURL]
	if !ok {
		return s.sendToEnvoy(0, r, f, nil)
	}
	s.relay.streams.Go(func() {
		job := rewriteJob{r, f}
		changed, retries, err := rewriteResponse(s.ctx, s.proto, rewrite, job)
		if err == nil {
			err = s.sendRewrittenStored(rewrite, job, changed, retries)
		}
		if err != nil && s.ctx.Err() == nil {
			s.relay.log.Warn("skipped a part of the last accepted configuration; Envoy does not receive that part", "type", r.TypeURL, "reason", err)
		}
	})
	return nil
}

// sendRewrittenStored sends a rewritten stored response, unless a control plane has sent resources of the type
// meanwhile.
func (s *session) sendRewrittenStored(rewrite Rewriter, job rewriteJob, changed *wire.Message, retries []Resource) error {
	s.retries.mu.Lock()
	defer s.retries.mu.Unlock()
	if s.retries.receivedTypes[job.TypeURL] {
		return nil
	}
	s.retries.supersede(job.Response)
	if err := s.sendToEnvoy(0, job.Response, changed, nil); err != nil {
		return err
	}
	s.scheduleRetries(rewrite, job, retries, false)
	return nil
}

// storedResponse is a response that the relay builds from stored resources.
type storedResponse struct {
	wire.Response
	message *wire.Message
	// pieces contains the encoded fields, size bytes in all. Each resource is a separate piece to avoid a copy.
	pieces mem.BufferSlice
	size   int
}

// buildStored builds one response from stored resources and returns in rest the names that did not fit. The response
// has no message if Envoy has not requested the type or a control plane has responded meanwhile.
func (s *session) buildStored(typeURL string, names []string) (c storedResponse, rest []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	snapshot, t := s.record.snapshot, s.state.types[typeURL]
	if snapshot == nil || t == nil {
		return c, nil
	}
	version, ok := snapshot.Version(typeURL)
	if !ok && isFullState(typeURL) {
		return c, nil
	}
	if names == nil {
		names = s.state.expandNames(t, snapshot)
	}
	isSingle, last := s.proto == wire.SotW && isFullState(typeURL), ""
	// Do not split the virtual hosts of one route configuration.
	for len(names) > 0 && (isSingle || c.size < maxStoredResponse || typeURL == virtualHostType && routeName(names[0]) == last) {
		last = routeName(names[0])
		if err := c.addResource(s.proto, snapshot, typeURL, names[0]); err != nil {
			s.relay.log.Warn("skipped a part of the last accepted configuration; Envoy does not receive that part", "type", typeURL, "name", names[0], "reason", err)
		}
		names = names[1:]
	}
	c.finish(typeURL, version, s.relay.nextNonce())
	return c, names
}

// addResource adds a resource to the response. If the resource is not stored, it adds the name to the removed resources
// of a delta response.
func (c *storedResponse) addResource(v wire.Variant, snapshot *lastgood.Snapshot, typeURL, name string) error {
	version, content, ok, err := snapshot.Resource(typeURL, name)
	switch {
	case err != nil:
		return err
	case ok:
		head := protowire.AppendVarint(protowire.AppendTag(nil, 2, protowire.BytesType), uint64(len(content)))
		c.appendPiece(head)
		c.appendPiece(content)
		c.Resources = append(c.Resources, wire.Resource{Name: name, Version: version})
	case v == wire.Delta && name != wire.Wildcard:
		c.appendPiece(wire.AppendText(nil, wire.ResponseRemoved, name))
		c.Removed = append(c.Removed, name)
	}
	return nil
}

func (c *storedResponse) appendPiece(piece []byte) {
	if len(piece) == 0 {
		return
	}
	c.pieces = append(c.pieces, mem.SliceBuffer(piece))
	c.size += len(piece)
}

// finish appends the remaining fields (version, type URL and nonce) to pieces, and sets message to all pieces.
func (c *storedResponse) finish(typeURL, version, nonce string) {
	c.TypeURL, c.Version, c.Nonce = typeURL, version, nonce
	tail := wire.AppendText(nil, wire.ResponseVersion, version)
	tail = wire.AppendText(wire.AppendText(tail, wire.ResponseType, typeURL), wire.ResponseNonce, joinNonce(0, nonce))
	c.appendPiece(tail)
	c.message = &wire.Message{Data: c.pieces}
}

// expandNames returns the names for a response with everything that Envoy requests of the type t. These are the
// requested names and, if Envoy requests all resources, the names of all stored ones. A delta response reports names
// that are not stored as removed (see addResource).
func (s *streamState) expandNames(t *typeState, snapshot *lastgood.Snapshot) []string {
	_, hasWildcard := t.names[wire.Wildcard]
	v, names := s.proto, sortedKeys(t.names)
	if t.all && t.url == virtualHostType {
		for _, name := range s.virtualHosts(nil, snapshot) {
			if _, ok := t.names[name]; !ok { // Envoy rejects a response with duplicate names
				names = append(names, name)
			}
		}
		return append(names, t.extraNames(snapshot)...)
	}
	all := t.all || v == wire.SotW && (hasWildcard || len(t.names) == 0 && isFullState(t.url))
	if all {
		for _, name := range snapshot.Names(t.url) {
			if _, ok := t.names[name]; !ok {
				names = append(names, name)
			}
		}
	}
	if t.all && v == wire.Delta {
		names = append(names, t.extraNames(snapshot)...)
	}
	return names
}

// extraNames returns the names of resources that Envoy has but that are not stored, because a control plane failed
// before it had sent everything. The response removes them, so that Envoy's configuration is consistent.
func (t *typeState) extraNames(snapshot *lastgood.Snapshot) (names []string) {
	for _, name := range sortedKeys(t.knownVersions(true)) {
		if _, ok := t.names[name]; !ok && !snapshot.HasResource(t.url, name) {
			names = append(names, name)
		}
	}
	return names
}

// monitorSilence cancels an upstream stream with errSilent if a response for which Envoy waits does not arrive in time.
// It does so only while Envoy, which started without configuration, has no listeners. In addition, the session must
// need the last accepted configuration, or there must be another control plane. If a response arrives slowly,
// monitorSilence restarts the stream once, so that Envoy receives the last accepted configuration meanwhile. The caller
// must call stop when the stream ends.
func (s *session) monitorSilence(a *upstreamStream, cancel context.CancelCauseFunc) (stop func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := silenceDetector{timeout: s.relay.config.LastGood.SilenceTimeout << min(s.silentUpstreams, maxSilenceDoublings)}
	a.lastHeard.Store(int64(uptime()))
	var timer *time.Timer
	timer = time.AfterFunc(p.timeout, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.state.hasListeners() || s.state.hadConfig || !s.needsLastGood() && !s.upstream.hasAlternatives.Load() {
			return
		}
		quiet := uptime() - time.Duration(a.lastHeard.Load())
		awaited := s.state.isAwaitingResponse()
		if wait := p.checkSilence(quiet, int(a.lease.received.Load()), awaited); wait > 0 {
			if quiet >= p.timeout && awaited && s.restartSlowStream(cancel) {
				return
			}
			timer.Reset(wait)
			return
		}
		s.silentUpstreams++
		cancel(errSilent)
	})
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		timer.Stop()
	}
}

// restartSlowStream cancels the upstream stream with errRestarted if the relay can serve a stored configuration
// meanwhile. It reports whether it did. The caller holds mu.
func (s *session) restartSlowStream(cancel context.CancelCauseFunc) bool {
	if !s.needsLastGood() || s.store.Status().Bytes == 0 {
		return false
	}
	cancel(errRestarted)
	return true
}

// recordStoredResponse records that the relay sends a response from the last accepted configuration to Envoy. upToDate
// is the last time at which this configuration was known to be that of the control plane.
func (l *statusTracker) recordStoredResponse(r wire.Response, upToDate time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.ensureType(r.TypeURL)
	a.LastResources = len(r.Resources)
	if len(a.pending) == maxPending {
		a.pending = a.pending[1:]
	}
	a.pending = append(a.pending, sentVersion{nonce: r.Nonce, version: r.Version})
	l.ensureEnvoy(l.process).hasResponse = true
	l.upToDate, l.lastGood = upToDate, true
}
