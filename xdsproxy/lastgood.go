package xdsproxy

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pilotfish-mesh/pilotfish/xdsproxy/lastgood"
)

// LastGood says where the last good configuration is kept. The zero value keeps none.
type LastGood struct {
	// Dirs are directories for it alone; the first that can be used is.
	Dirs []string
	// MaxBytes bounds its size; zero is lastgood.DefaultMaxBytes.
	MaxBytes int64
	// MaxMemory bounds the memory that it is kept in where none of the directories can be written to, or there is none; zero
	// keeps nothing there.
	MaxMemory int64
	// Wait is how long an Envoy that starts waits for a connection to a control plane before it gets the last good
	// configuration, unless connecting is known to fail; zero is 500 ms. Silence is how long it waits for the first answer on
	// a connection, or for the next one; zero is 3 s.
	Wait, Silence time.Duration

	retry, patience time.Duration
	stands          time.Duration // after which a disk is given up that does not answer
	opening         func()        // before a directory is opened
}

func (c *LastGood) setDefaults() {
	orDefault(&c.Wait, 500*time.Millisecond)
	orDefault(&c.Silence, 3*time.Second)
	c.retry = cmp.Or(c.retry, retryKeeping)
	c.patience = cmp.Or(c.patience, keepPatience)
	c.stands = cmp.Or(c.stands, keepPatience)
}

// LastGoodStatus is what is known of the last good configuration.
type LastGoodStatus struct {
	// Served says that Envoy got its configuration from there, and no control plane has answered since.
	Served bool `json:"served"`
	// UpToDate is until when what Envoy has was known to be what the control plane has; zero while it is so.
	UpToDate time.Time `json:"upToDate,omitzero"`
	// Kept tells where it is; nil where nothing is kept.
	Kept *lastgood.Status `json:"kept,omitempty"`
}

// openLastGood takes the directory. What cannot be kept is no reason not to serve: then there is none.
func (r *Relay) openLastGood() *lastgood.Store {
	c := r.config.LastGood
	config := lastgood.Config{MaxBytes: c.MaxBytes, MaxMemory: c.MaxMemory, Logger: r.log, Now: r.config.Now}
	store, err := openFirst(config, c.Dirs)
	if store == nil && c.MaxMemory > 0 {
		store, err = openMemory(config, c.Dirs, err)
	}
	if err != nil {
		r.log.Warn("the last good configuration is not kept; an Envoy that starts will wait for a control plane",
			"error", err, "remedy", "make the directory writable, or name another")
	}
	return store
}

// openFirst opens the first of the directories that can be used.
func openFirst(config lastgood.Config, dirs []string) (*lastgood.Store, error) {
	var failed error
	for _, dir := range dirs {
		config.Dir = dir
		store, err := lastgood.Open(config)
		if err == nil {
			return store, nil
		}
		failed = errors.Join(failed, err)
	}
	return nil, failed
}

// openMemory keeps in memory what no directory takes. What one of them has from before can be served all the same.
func openMemory(config lastgood.Config, dirs []string, why error) (*lastgood.Store, error) {
	config.ReadOnly, config.Why = true, why
	if store, _ := openFirst(config, dirs); store != nil {
		return store, nil
	}
	return lastgood.Open(config)
}

// runKeeper writes until stop is called. It waits for the directory, but not for long.
func (r *Relay) runKeeper() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	opened := make(chan *lastgood.Store, 1)
	go func() {
		if opening := r.config.LastGood.opening; opening != nil {
			opening()
		}
		opened <- r.openLastGood()
	}()
	timer := time.NewTimer(r.config.LastGood.stands)
	defer timer.Stop()
	k, written := r.newKeeper(), make(chan struct{})
	select {
	case k.store = <-opened:
		if k.store == nil {
			cancel()
			return func() {}
		}
		r.setKeeper(k)
		go k.runUntil(ctx, written)
	case <-timer.C:
		k.beginStanding()
		if k.inForce() != k {
			r.setKeeper(k)
		}
		go r.openLate(ctx, k, opened, written)
	}
	return func() {
		cancel()
		k.end(written)
		r.setKeeper(nil)
	}
}

func (r *Relay) newKeeper() *keeper {
	k := newKeeper(r.log)
	k.standing.patience, k.standing.spare = r.config.LastGood.stands, r.newSpare
	k.standing.resumed = func() { go r.lookAgain() } // streams may wait for who writes, which is who calls this
	return k
}

func (r *Relay) setKeeper(k *keeper) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.keeper = k
}

// openLate takes over from the spare once the disk has let itself be opened.
func (r *Relay) openLate(ctx context.Context, k *keeper, opened <-chan *lastgood.Store, written chan<- struct{}) {
	select {
	case <-ctx.Done():
		go closeLate(opened)
		return
	case k.store = <-opened:
	}
	if k.store == nil {
		return
	}
	k.standing.turn.Lock()
	k.goOn()
	k.standing.turn.Unlock()
	r.setKeeper(k)
	k.runUntil(ctx, written)
}

func closeLate(opened <-chan *lastgood.Store) {
	if store := <-opened; store != nil {
		store.Close()
	}
}

func (r *Relay) nextNonce() string { return strconv.FormatUint(r.nonces.Add(1), 10) }

func (r *Relay) lastGoodStatus() *LastGoodStatus {
	r.mu.Lock()
	k := r.keeper
	r.mu.Unlock()
	st := r.book.age()
	if k != nil {
		kept := k.inForce().store.Status()
		st.Kept = &kept
	}
	return &st
}

func (l *ledger) age() LastGoodStatus {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isConnected {
		return LastGoodStatus{}
	}
	return LastGoodStatus{Served: l.lastGood, UpToDate: l.current}
}

// registerLastGood registers what is measured of the last good configuration.
func (r *Relay) registerLastGood(registerer prometheus.Registerer) error {
	if registerer == nil {
		return nil
	}
	kept := func() lastgood.Status {
		if st := r.lastGoodStatus(); st.Kept != nil {
			return *st.Kept
		}
		return lastgood.Status{}
	}
	for _, c := range []prometheus.Collector{
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "pilotfish_xds_configuration_age_seconds",
			Help: "How long ago Envoy's configuration was last known to be the control plane's: 0 while it is connected.",
		}, func() float64 {
			if since := r.lastGoodStatus().UpToDate; !since.IsZero() {
				return max(0, r.config.Now().Sub(since).Seconds()) // the clock may have been set back
			}
			return 0
		}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "pilotfish_xds_last_good_bytes", Help: "Size of the file that the last good configuration is kept in.",
		}, func() float64 { return float64(kept().Bytes) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "pilotfish_xds_last_good_memory_bytes",
			Help: "Memory that the last good configuration is kept in, where it cannot be kept on disk: 0 where it is.",
		}, func() float64 { return float64(kept().Memory) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "pilotfish_xds_last_good_failures_total", Help: "Times that the last good configuration could not be kept.",
		}, func() float64 { return float64(kept().Failures) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "pilotfish_xds_last_good_stalls_total",
			Help: "Times that the disk came to a stand on which the last good configuration is kept.",
		}, func() float64 { return float64(r.stalls()) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "pilotfish_xds_last_good_served_total", Help: "Times that an Envoy got the last good configuration, since no control plane answered.",
		}, func() float64 { return float64(r.served.Load()) }),
	} {
		if err := registerer.Register(c); err != nil {
			return err
		}
	}
	return nil
}
