package consul

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/url"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/backoff"
)

// follow reads the instances of a service and follows their changes until ctx ends.
func (d *datacenter) follow(ctx context.Context, s *service) {
	retry := backoff.Backoff{Min: d.source.cfg.minServiceRetry, Max: maxRetry}
	for index := uint64(0); ; {
		started := time.Now()
		next, err := d.read(ctx, s, index)
		if ctx.Err() != nil {
			return
		}
		rest := minInterval - time.Since(started)
		if err != nil {
			d.setFailure(s, err)
			next, rest = 0, retry.Next()
		} else {
			retry.Reset()
		}
		index = next
		if !backoff.Sleep(ctx, rest) {
			return
		}
	}
}

// read sends one query for the instances of a service, and publishes the response. It returns the index for the next
// query. If index is not 0, the query blocks, unless there are too many blocking queries.
func (d *datacenter) read(ctx context.Context, s *service, index uint64) (next uint64, err error) {
	release, blocking, err := d.source.acquire(ctx, index > 0)
	if err != nil {
		return 0, err
	}
	defer release()
	if !blocking {
		index = 0
	}
	var entries []entry
	r, err := d.get(ctx, query{path: "/v1/health/service/" + url.PathEscape(s.name), index: index}, &entries)
	switch {
	case err != nil:
		return 0, err
	case len(entries) == 0 && r.filtered:
		return 0, errHidden
	case len(entries) > maxInstances:
		return 0, fmt.Errorf("it has %d instances, of which at most %d are supported", len(entries), maxInstances)
	}
	d.replace(s, entries)
	return r.index, nil
}

// replace stores the instances of a service and publishes them.
func (d *datacenter) replace(s *service, entries []entry) {
	instances, flaws := readInstances(s.key, entries, d.source.cfg.Tags)
	d.source.mu.Lock()
	if d.services[s.key] != s { // the service was removed during the query
		d.source.mu.Unlock()
		return
	}
	d.count(s.instances, instances)
	first := !s.read
	s.instances, s.flaws, s.read, s.failure, s.failures = instances, flaws, true, "", 0
	d.source.mu.Unlock()
	d.source.publish(s.key)
	if first {
		d.source.checkSynced()
	}
}

// setFailure records why a query for a service failed.
func (d *datacenter) setFailure(s *service, err error) {
	d.source.mu.Lock()
	if s.failure == "" {
		d.source.log.Warn("the control plane cannot read a service of Consul; its last known instances stay in force", "datacenter", d.label, "service", s.name, "error", err)
	}
	s.failure = err.Error()
	s.failures++
	d.source.mu.Unlock()
	d.source.checkSynced()
}

// acquire waits until the source may send a query. It returns whether the query may block, and a function that must be
// called after the response. If there are too many blocking queries, acquire waits for the poll interval, and the query must
// not block.
func (s *Source) acquire(ctx context.Context, wantsToBlock bool) (release func(), blocking bool, err error) {
	if wantsToBlock && s.client.multiplexes.Load() {
		return func() {}, true, nil
	}
	if wantsToBlock {
		select {
		case s.watches <- struct{}{}:
			return func() { <-s.watches }, true, nil
		default:
		}
		interval := s.cfg.pollInterval
		if !backoff.Sleep(ctx, interval*3/4+rand.N(interval/2)) {
			return nil, false, ctx.Err()
		}
	}
	select {
	case s.reads <- struct{}{}:
		return func() { <-s.reads }, false, nil
	case <-ctx.Done():
		return nil, false, ctx.Err()
	}
}
