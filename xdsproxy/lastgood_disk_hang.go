package xdsproxy

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pilotfish-mesh/pilotfish/xdsproxy/lastgood"
)

// hangRetry is the delay until all resources are requested again after the disk hung or resumed, in order to record
// them with the new writer.
const hangRetry = 100 * time.Millisecond

var errDiskHung = errors.New("the disk hangs: a read or write has not returned")

// diskHang handles a disk operation that does not return, for example on a network file system. It cannot be cancelled.
// The writer gets no further work, and a spare writer stores in memory until the operation returns.
type diskHang struct {
	timeout  time.Duration
	newSpare func() *lastGoodWriter // creates a spare writer; it may be nil or return nil
	count    atomic.Uint64          // number of hangs
	stop     func()                 // stops a spare writer
	onResume func()                 // called when the disk resumes; may be nil

	switchMu    sync.Mutex // held while switching to the spare writer and back
	hung        chan struct{}
	spareWriter atomic.Pointer[lastGoodWriter]
}

// active returns the spare writer while the disk hangs, and k otherwise.
func (k *lastGoodWriter) active() *lastGoodWriter {
	if k != nil {
		if next := k.hang.spareWriter.Load(); next != nil {
			return next
		}
	}
	return k
}

// hung returns a channel that is closed when the disk hangs.
func (k *lastGoodWriter) hung() <-chan struct{} {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.hang.hung
}

// watchOperation switches to the spare writer if a disk operation does not end within the timeout. The caller calls
// over when the operation ends.
func (k *lastGoodWriter) watchOperation() (over func()) {
	var isHung, ended bool // guarded by switchMu
	timer := time.AfterFunc(k.hang.timeout, func() {
		k.hang.switchMu.Lock()
		isHung = !ended
		if isHung {
			k.switchToSpare()
		}
		k.hang.switchMu.Unlock()
		if isHung {
			k.reportFailure()
		}
	})
	return func() {
		timer.Stop()
		k.hang.switchMu.Lock()
		defer k.hang.switchMu.Unlock()
		ended = true
		if isHung {
			k.resumeDisk()
		}
	}
}

// switchToSpare activates a spare writer; the caller holds switchMu.
func (k *lastGoodWriter) switchToSpare() {
	k.hang.count.Add(1)
	var spare *lastGoodWriter
	if k.hang.newSpare != nil {
		spare = k.hang.newSpare()
	}
	k.hang.spareWriter.Store(spare)
	k.mu.Lock()
	close(k.hang.hung)
	k.mu.Unlock()
	k.log.Warn("the disk of the last good configuration hangs; Envoy still receives its configuration",
		"inMemory", spare != nil, "after", k.hang.timeout, "remedy", "check the file system of the directory")
}

// startHung activates a spare writer for a disk that hangs when it is opened.
func (k *lastGoodWriter) startHung() {
	k.hang.switchMu.Lock()
	defer k.hang.switchMu.Unlock()
	k.switchToSpare()
}

// resumeDisk replaces the spare writer by k; the caller holds switchMu.
func (k *lastGoodWriter) resumeDisk() {
	k.mu.Lock()
	k.hang.hung = make(chan struct{})
	k.mu.Unlock()
	spare := k.hang.spareWriter.Swap(nil)
	k.log.Info("the disk of the last good configuration works again")
	if spare != nil {
		spare.reportFailure()
		go spare.hang.stop()
	}
	if k.hang.onResume != nil {
		k.hang.onResume()
	}
}

// retryLastGood serves the last good configuration to an Envoy that received nothing while the disk hung.
func (r *Relay) retryLastGood() {
	r.mu.Lock()
	s := r.activeSession
	r.mu.Unlock()
	if s != nil {
		s.retryLastGood()
	}
}

func (s *session) retryLastGood() {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := &s.record
	if s.writer == nil || k.isWriting || k.snapshot != nil {
		return
	}
	s.writer, k.isLookedUp = s.diskWriter.active(), false
	k.diskResumes++
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// newSpare starts a writer that stores in memory until it is stopped. It returns nil if storage in memory is disabled.
func (r *Relay) newSpare() *lastGoodWriter {
	c := r.config.LastGood
	if c.MaxMemory <= 0 {
		return nil
	}
	store, err := lastgood.Open(lastgood.Config{MaxBytes: c.MaxBytes, MaxMemory: c.MaxMemory, Logger: r.log, Now: r.config.Now, Reason: errDiskHung})
	if err != nil {
		r.log.Warn("the last good configuration cannot be stored in memory either", "error", err)
		return nil
	}
	spare := newLastGoodWriter(r.log)
	spare.store = store
	ctx, cancel := context.WithCancel(context.Background())
	var writing sync.WaitGroup
	writing.Go(func() { spare.run(ctx) })
	spare.hang.stop = sync.OnceFunc(func() {
		cancel()
		writing.Wait()
		store.Close()
	})
	return spare
}

// hangCount returns how often the disk hung.
func (r *Relay) hangCount() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.writer == nil {
		return 0
	}
	return r.writer.hang.count.Load()
}

// close waits for queued writes and closes the store. It does not wait for a hung disk, which would prevent the process
// from ending.
func (k *lastGoodWriter) close(written <-chan struct{}) {
	select {
	case <-written:
		k.store.Close()
	case <-k.hung():
	}
	if spare := k.hang.spareWriter.Load(); spare != nil {
		spare.hang.stop()
	}
}
