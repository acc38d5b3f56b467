package xdsproxy

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/pilotfish-mesh/pilotfish/xdsproxy/lastgood"
)

// maxAnswer is how much of the last good configuration goes into one response, where the protocol leaves the choice.
const maxAnswer = 1 << 20

// mostSilences bounds how often the patience with control planes that do not answer doubles.
const mostSilences = 6

// offer serves Envoy with the last good configuration if it is time for that. Otherwise it tells when it may be.
func (s *session) offer() (<-chan time.Time, error) {
	s.mu.Lock()
	k := &s.keeping
	wanted := s.wantsLastGood()
	id, keeper, resumed := k.id, s.keeper, k.resumed
	s.mu.Unlock()
	switch {
	case !wanted:
		return nil, nil
	case !k.due && !s.uplink.down.Load():
		if k.timer == nil {
			k.timer = time.After(s.relay.config.LastGood.Wait)
		}
		return k.timer, nil
	}
	snapshot := s.relay.loadLastGood(s.ctx, keeper, id)
	s.mu.Lock()
	k.offered = snapshot != nil || resumed == k.resumed // or else the disk went on meanwhile
	if snapshot == nil {
		s.mu.Unlock()
		return nil, nil
	}
	k.served, k.snapshot, k.upToDate = true, snapshot, snapshot.UpToDate
	k.begun = false // what a control plane began to send does not go on
	order := append([]string(nil), s.state.order...)
	s.mu.Unlock()
	for _, typeURL := range order {
		if err := s.answer(typeURL, nil); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// wantsLastGood says whether the last good configuration would help: Envoy came with nothing, and no control plane has given
// it all that it asked for. The caller holds the lock.
func (s *session) wantsLastGood() bool {
	k := &s.keeping
	return s.keeper != nil && k.known && !k.continued && !k.offered && !k.settled
}

// loadLastGood reads what is kept, if it is of any use.
func (r *Relay) loadLastGood(ctx context.Context, k *keeper, id lastgood.Identity) *lastgood.Snapshot {
	snapshot, err := k.load(ctx, id, r.config.LastGood.patience)
	if err != nil {
		r.log.Warn("the last good configuration is of no use; Envoy waits for a control plane",
			"error", err)
		return nil
	}
	if snapshot == nil {
		return nil
	}
	resources, size := snapshot.Size()
	if resources == 0 {
		_ = snapshot.Close()
		return nil
	}
	r.log.Info("Envoy gets the last good configuration, since no control plane answers",
		"upToDate", snapshot.UpToDate, "resources", resources, "bytes", size)
	r.served.Add(1)
	return snapshot
}

// answerLastGood answers a request from the last good configuration, for as long as no control plane has.
func (s *session) answerLastGood(h heard) {
	names := h.subscribe
	if h.first || s.proto == sotw {
		names = nil
	}
	err := s.answer(h.typeURL, names)
	if err == nil && h.typeURL == routesType {
		err = s.answerHostsOf(h.subscribe)
	}
	if err != nil {
		s.cancel(fmt.Errorf("sending to Envoy: %w", err))
	}
}

// answer sends Envoy what there is of a type: of these names, or of all that it asks for.
func (s *session) answer(typeURL string, names []string) error {
	for first := true; first || len(names) > 0; first = false {
		var r composed
		if r, names = s.compose(typeURL, names); r.frame == nil {
			return nil
		}
		if err := s.deliverAgain(r.response, r.frame); err != nil {
			return err
		}
	}
	return nil
}

// deliverAgain delivers a response of the last good configuration, rewritten where that is to be.
func (s *session) deliverAgain(r response, f *frame) error {
	rewrite, ok := s.relay.config.Rewrite[r.typeURL]
	if !ok {
		return s.deliver(0, r, f, nil)
	}
	s.relay.streams.Go(func() {
		job := rewriteJob{r, f}
		changed, again, err := rewritten(s.ctx, s.proto, rewrite, job)
		if err == nil {
			err = s.deliverRewritten(rewrite, job, changed, again)
		}
		if err != nil && s.ctx.Err() == nil {
			s.relay.log.Warn("a part of the last good configuration was left out", "type", r.typeURL, "reason", err)
		}
	})
	return nil
}

// deliverRewritten delivers what was rewritten of the last good configuration, unless a control plane was faster.
func (s *session) deliverRewritten(rewrite Rewriter, job rewriteJob, changed *frame, again []Resource) error {
	s.again.mu.Lock()
	defer s.again.mu.Unlock()
	if s.again.answered[job.typeURL] {
		return nil
	}
	s.again.supersede(job.response)
	if err := s.deliver(0, job.response, changed, nil); err != nil {
		return err
	}
	s.rewriteAgain(rewrite, job, again, false)
	return nil
}

// composed is a response that the relay has made.
type composed struct {
	response
	frame *frame
	// pieces are its fields, size bytes in all. Each resource is one of its own, as it was read: put together they would be
	// there several times.
	pieces mem.BufferSlice
	size   int
}

// compose makes one response of the last good configuration, and gives the names that are left for the next. There is none
// when nothing is known of the type, or when a control plane has answered meanwhile.
func (s *session) compose(typeURL string, names []string) (c composed, rest []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	snapshot, t := s.keeping.snapshot, s.state.types[typeURL]
	if snapshot == nil || t == nil {
		return c, nil
	}
	version, ok := snapshot.Version(typeURL)
	if !ok && isWhole(typeURL) {
		return c, nil
	}
	if names == nil {
		names = s.state.wanted(t, snapshot)
	}
	isOne, last := s.proto == sotw && isWhole(typeURL), ""
	for len(names) > 0 && (isOne || c.size < maxAnswer || typeURL == hostsType && routeOf(names[0]) == last) {
		last = routeOf(names[0])
		if err := c.add(s.proto, snapshot, typeURL, names[0]); err != nil {
			s.relay.log.Warn("a part of the last good configuration was left out", "type", typeURL, "name", names[0], "reason", err)
		}
		names = names[1:]
	}
	c.finish(typeURL, version, s.relay.nextNonce())
	return c, names
}

// add puts one resource, or that there is none, into the response.
func (c *composed) add(v variant, snapshot *lastgood.Snapshot, typeURL, name string) error {
	version, content, ok, err := snapshot.Resource(typeURL, name)
	switch {
	case err != nil:
		return err
	case ok:
		head := protowire.AppendVarint(protowire.AppendTag(nil, 2, protowire.BytesType), uint64(len(content)))
		c.append(head)
		c.append(content)
		c.resources = append(c.resources, resource{name: name, version: version})
	case v == delta && name != wildcard:
		c.append(appendText(nil, responseRemoved, name))
		c.removed = append(c.removed, name)
	}
	return nil
}

func (c *composed) append(piece []byte) {
	if len(piece) == 0 {
		return
	}
	c.pieces = append(c.pieces, mem.SliceBuffer(piece))
	c.size += len(piece)
}

func (c *composed) finish(typeURL, version, nonce string) {
	c.typeURL, c.version, c.nonce = typeURL, version, nonce
	tail := appendText(nil, responseVersion, version)
	tail = appendText(appendText(tail, responseType, typeURL), responseNonce, joinNonce(0, nonce))
	c.append(tail)
	c.frame = &frame{data: c.pieces}
}

// wanted are the names of a type that Envoy asks for, those that stand for all of them written out.
func (s *streamState) wanted(t *typeState, snapshot *lastgood.Snapshot) []string {
	_, starred := t.names[wildcard]
	v, names := s.proto, sorted(t.names)
	if t.all && t.url == hostsType {
		for _, name := range s.hostsOf(nil, snapshot) {
			if _, asked := t.names[name]; !asked { // of a name that is there twice Envoy refuses all
				names = append(names, name)
			}
		}
		return append(names, t.surplus(snapshot)...)
	}
	all := t.all || v == sotw && (starred || len(t.names) == 0 && isWhole(t.url))
	if all {
		for _, name := range snapshot.Names(t.url) {
			if _, asked := t.names[name]; !asked {
				names = append(names, name)
			}
		}
	}
	if t.all && v == delta {
		names = append(names, t.surplus(snapshot)...)
	}
	return names
}

// surplus are the resources that Envoy has from a control plane which gave out half way: they are taken away, so that what it
// has is from one time.
func (t *typeState) surplus(snapshot *lastgood.Snapshot) (names []string) {
	for _, name := range sorted(t.known(true)) {
		if _, asked := t.names[name]; !asked && !snapshot.Has(t.url, name) {
			names = append(names, name)
		}
	}
	return names
}

// watch ends a stream upstream on which nothing comes that Envoy waits for, when Envoy has no listeners yet, and the last good
// configuration or another control plane would help. Where what comes is slow, it ends the stream once, for Envoy to get the
// last good configuration meanwhile. It also lets others end it. What it returns ends the watch.
func (s *session) watch(a *ascent, renew context.CancelCauseFunc) (end func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keeping.renew = renew
	p := patience{lasts: s.relay.config.LastGood.Silence << min(s.silences, mostSilences)}
	a.heard.Store(int64(uptime()))
	var timer *time.Timer
	timer = time.AfterFunc(p.lasts, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.state.hasListeners() || s.state.continued || !s.wantsLastGood() && !s.uplink.several.Load() {
			return
		}
		quiet := uptime() - time.Duration(a.heard.Load())
		awaited := s.state.awaitsAnswer()
		if again := p.left(quiet, a.upstream.Arrived(), awaited); again > 0 {
			if quiet >= p.lasts && awaited && s.renewSlow(renew) {
				return
			}
			timer.Reset(again)
			return
		}
		s.silences++
		renew(errSilent)
	})
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		timer.Stop()
		s.keeping.renew = nil
	}
}

// renewSlow has the stream upstream begun anew, with the last good configuration first, where there may be one that Envoy was
// not offered yet, and says whether it does so. Never in the middle of a response of which Envoy may have a part; the caller
// holds the lock.
func (s *session) renewSlow(renew context.CancelCauseFunc) bool {
	if !s.wantsLastGood() || s.keeper.store.Status().Bytes == 0 || !s.delivering.TryLock() {
		return false
	}
	defer s.delivering.Unlock()
	renew(errRenewed)
	return true
}

// servedLastGood books a response of the last good configuration.
func (l *ledger) servedLastGood(r response, upToDate time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.account(r.typeURL)
	a.LastResources = len(r.resources)
	if len(a.pending) == maxPending {
		a.pending = a.pending[1:]
	}
	a.pending = append(a.pending, sent{nonce: r.nonce, version: r.version})
	l.bookOf(l.process).answered = true
	l.current, l.lastGood = upToDate, true
}
