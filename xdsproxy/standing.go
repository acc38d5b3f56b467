package xdsproxy

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pilotfish-mesh/pilotfish/xdsproxy/lastgood"
)

// soonKeeping is how long after the disk has come to a stand, or goes on, everything is asked for anew, to be kept there
// where it can be.
const soonKeeping = 100 * time.Millisecond

var errStands = errors.New("the disk has come to a stand: what was to be written or read there is still on its way")

// standing is what a keeper has for a disk that takes a write or a read and does not end it, as that of a network may.
// Nobody can call such a thing off. So nothing more is given to it, and a spare keeps in memory until it goes on.
type standing struct {
	patience time.Duration
	spare    func() *keeper // makes one; nil, or what gives nil, is for none
	told     atomic.Uint64  // how often the disk came to a stand
	stop     func()         // of a spare
	resumed  func()         // is called when the disk goes on, if it is set

	turn   sync.Mutex // of coming to a stand, and going on
	halted chan struct{}
	next   atomic.Pointer[keeper]
}

// inForce is the keeper itself, or its spare while its disk stands still.
func (k *keeper) inForce() *keeper {
	if k != nil {
		if next := k.standing.next.Load(); next != nil {
			return next
		}
	}
	return k
}

// halted is closed when the disk comes to a stand.
func (k *keeper) halted() <-chan struct{} {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.standing.halted
}

// watch looks after something that is done at the disk, until it is over.
func (k *keeper) watch() (over func()) {
	var stands, ended bool // guarded by turn
	timer := time.AfterFunc(k.standing.patience, func() {
		k.standing.turn.Lock()
		stands = !ended
		if stands {
			k.stand()
		}
		k.standing.turn.Unlock()
		if stands {
			k.fail()
		}
	})
	return func() {
		timer.Stop()
		k.standing.turn.Lock()
		defer k.standing.turn.Unlock()
		ended = true
		if stands {
			k.goOn()
		}
	}
}

// stand has a spare take over; the caller has the turn.
func (k *keeper) stand() {
	k.standing.told.Add(1)
	var spare *keeper
	if k.standing.spare != nil {
		spare = k.standing.spare()
	}
	k.standing.next.Store(spare)
	k.mu.Lock()
	close(k.standing.halted)
	k.mu.Unlock()
	k.log.Warn("the last good configuration is not kept on the disk, which has come to a stand; Envoy gets its configuration as before",
		"inMemory", spare != nil, "after", k.standing.patience, "remedy", "look at the file system of the directory that it is kept in")
}

// beginStanding is for a disk that stands still from the start.
func (k *keeper) beginStanding() {
	k.standing.turn.Lock()
	defer k.standing.turn.Unlock()
	k.stand()
}

// goOn takes over from the spare; the caller has the turn.
func (k *keeper) goOn() {
	k.mu.Lock()
	k.standing.halted = make(chan struct{})
	k.mu.Unlock()
	spare := k.standing.next.Swap(nil)
	k.log.Info("the disk goes on, on which the last good configuration is kept")
	if spare != nil {
		spare.fail()
		go spare.standing.stop()
	}
	if k.standing.resumed != nil {
		k.standing.resumed()
	}
}

// lookAgain has an Envoy that got nothing while the disk stood still get what is there.
func (r *Relay) lookAgain() {
	r.mu.Lock()
	s := r.current
	r.mu.Unlock()
	if s != nil {
		s.lookAgain()
	}
}

func (s *session) lookAgain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := &s.keeping
	if s.keeper == nil || k.begun || k.snapshot != nil {
		return
	}
	s.keeper, k.offered = s.disk.inForce(), false
	k.resumed++
	select {
	case s.woken <- struct{}{}:
	default:
	}
}

// newSpare makes a keeper that writes to memory until it is stopped; nil where that is not wanted.
func (r *Relay) newSpare() *keeper {
	c := r.config.LastGood
	if c.MaxMemory <= 0 {
		return nil
	}
	store, err := lastgood.Open(lastgood.Config{MaxBytes: c.MaxBytes, MaxMemory: c.MaxMemory, Logger: r.log, Now: r.config.Now, Why: errStands})
	if err != nil {
		r.log.Warn("the last good configuration is not kept in memory either", "error", err)
		return nil
	}
	spare := newKeeper(r.log)
	spare.store = store
	ctx, cancel := context.WithCancel(context.Background())
	var writing sync.WaitGroup
	writing.Go(func() { spare.run(ctx) })
	spare.standing.stop = sync.OnceFunc(func() {
		cancel()
		writing.Wait()
		store.Close()
	})
	return spare
}

// stalls counts how often the disk came to a stand.
func (r *Relay) stalls() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.keeper == nil {
		return 0
	}
	return r.keeper.standing.told.Load()
}

// end waits for what is still written, and gives the directory free. A disk that stands still is left alone: the process
// could not end for it.
func (k *keeper) end(written <-chan struct{}) {
	select {
	case <-written:
		k.store.Close()
	case <-k.halted():
	}
	if spare := k.standing.next.Load(); spare != nil {
		spare.standing.stop()
	}
}
