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

// LastGood configures where the last good configuration is stored. The zero value disables it.
type LastGood struct {
	// Dirs are candidate directories without other files; the first usable one is used.
	Dirs []string
	// MaxBytes limits the size of the file; zero means lastgood.DefaultMaxBytes.
	MaxBytes int64
	// MaxMemory limits the memory that is used if no directory is writable; zero disables storage in memory.
	MaxMemory int64
	// ConnectWait is how long a starting Envoy waits for a connection to a control plane before it receives the last
	// good configuration; zero means 500 ms. It does not wait if the last attempt to connect has failed. SilenceTimeout
	// limits the wait for the first and each further response on a connection; zero means 3 s.
	ConnectWait, SilenceTimeout time.Duration

	retry, loadTimeout time.Duration
	hangTimeout        time.Duration // after which a disk operation counts as hung
	beforeOpen         func()        // for tests: called before a directory is opened
}

func (c *LastGood) setDefaults() {
	orDefault(&c.ConnectWait, 500*time.Millisecond)
	orDefault(&c.SilenceTimeout, 3*time.Second)
	c.retry = cmp.Or(c.retry, minRecordRetry)
	c.loadTimeout = cmp.Or(c.loadTimeout, writeTimeout)
	c.hangTimeout = cmp.Or(c.hangTimeout, writeTimeout)
}

// LastGoodStatus is the state of the last good configuration.
type LastGoodStatus struct {
	// Served reports that Envoy received the last good configuration, and no control plane has answered since.
	Served bool `json:"served"`
	// UpToDate is when Envoy's configuration was last known to be that of the control plane. It is zero while that is
	// the case.
	UpToDate time.Time `json:"upToDate,omitzero"`
	// Storage is the state of the store, or nil if nothing is stored.
	Storage *lastgood.Status `json:"kept,omitempty"`
}

// openLastGood opens the store. It logs a failure and returns nil: the relay works without a store.
func (r *Relay) openLastGood() *lastgood.Store {
	c := r.config.LastGood
	config := lastgood.Config{MaxBytes: c.MaxBytes, MaxMemory: c.MaxMemory, Logger: r.log, Now: r.config.Now}
	store, err := openFirst(config, c.Dirs)
	if store == nil && c.MaxMemory > 0 {
		store, err = openMemory(config, c.Dirs, err)
	}
	if err != nil {
		r.log.Warn("the last good configuration is not stored; an Envoy that starts will wait for a control plane",
			"error", err, "remedy", "make the directory writable, or name another")
	}
	return store
}

// openFirst opens a store in the first usable directory.
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

// openMemory opens a store in memory. If one of the directories is readable, its configuration can be served.
func openMemory(config lastgood.Config, dirs []string, why error) (*lastgood.Store, error) {
	config.ReadOnly, config.Reason = true, why
	if store, _ := openFirst(config, dirs); store != nil {
		return store, nil
	}
	return lastgood.Open(config)
}

// startWriter opens the store and starts its writer, which runs until stop is called. If opening hangs, it continues
// with a spare writer after hangTimeout.
func (r *Relay) startWriter() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	opened := make(chan *lastgood.Store, 1)
	go func() {
		if opening := r.config.LastGood.beforeOpen; opening != nil {
			opening()
		}
		opened <- r.openLastGood()
	}()
	timer := time.NewTimer(r.config.LastGood.hangTimeout)
	defer timer.Stop()
	k, written := r.newDiskWriter(), make(chan struct{})
	select {
	case k.store = <-opened:
		if k.store == nil {
			cancel()
			return func() {}
		}
		r.setWriter(k)
		go k.runAndClose(ctx, written)
	case <-timer.C:
		k.startHung()
		if k.active() != k {
			r.setWriter(k)
		}
		go r.openLate(ctx, k, opened, written)
	}
	return func() {
		cancel()
		k.close(written)
		r.setWriter(nil)
	}
}

func (r *Relay) newDiskWriter() *lastGoodWriter {
	k := newLastGoodWriter(r.log)
	k.hang.timeout, k.hang.newSpare = r.config.LastGood.hangTimeout, r.newSpare
	k.hang.onResume = func() { go r.retryLastGood() } // asynchronous: sessions may wait for the writer, which calls this
	return k
}

func (r *Relay) setWriter(k *lastGoodWriter) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.writer = k
}

// openLate replaces the spare writer when the hung disk has opened.
func (r *Relay) openLate(ctx context.Context, k *lastGoodWriter, opened <-chan *lastgood.Store, written chan<- struct{}) {
	select {
	case <-ctx.Done():
		go closeLate(opened)
		return
	case k.store = <-opened:
	}
	if k.store == nil {
		return
	}
	k.hang.switchMu.Lock()
	k.resumeDisk()
	k.hang.switchMu.Unlock()
	r.setWriter(k)
	k.runAndClose(ctx, written)
}

func closeLate(opened <-chan *lastgood.Store) {
	if store := <-opened; store != nil {
		store.Close()
	}
}

func (r *Relay) nextNonce() string { return strconv.FormatUint(r.nonces.Add(1), 10) }

func (r *Relay) lastGoodStatus() *LastGoodStatus {
	r.mu.Lock()
	k := r.writer
	r.mu.Unlock()
	st := r.tracker.lastGoodStatus()
	if k != nil {
		kept := k.active().store.Status()
		st.Storage = &kept
	}
	return &st
}

func (l *statusTracker) lastGoodStatus() LastGoodStatus {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isConnected {
		return LastGoodStatus{}
	}
	return LastGoodStatus{Served: l.lastGood, UpToDate: l.upToDate}
}

// registerLastGood registers the metrics of the last good configuration.
func (r *Relay) registerLastGood(registerer prometheus.Registerer) error {
	if registerer == nil {
		return nil
	}
	kept := func() lastgood.Status {
		if st := r.lastGoodStatus(); st.Storage != nil {
			return *st.Storage
		}
		return lastgood.Status{}
	}
	for _, c := range []prometheus.Collector{
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "pilotfish_xds_configuration_age_seconds",
			Help: "Seconds since Envoy's configuration was last known to be that of the control plane: 0 while it is connected.",
		}, func() float64 {
			if since := r.lastGoodStatus().UpToDate; !since.IsZero() {
				return max(0, r.config.Now().Sub(since).Seconds()) // the clock may have been set back
			}
			return 0
		}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "pilotfish_xds_last_good_bytes", Help: "Size of the file of the last good configuration.",
		}, func() float64 { return float64(kept().Bytes) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "pilotfish_xds_last_good_memory_bytes",
			Help: "Memory of the last good configuration while it cannot be stored on disk; otherwise 0.",
		}, func() float64 { return float64(kept().Memory) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "pilotfish_xds_last_good_failures_total", Help: "Failures to store the last good configuration.",
		}, func() float64 { return float64(kept().Failures) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "pilotfish_xds_last_good_stalls_total",
			Help: "Times that the disk of the last good configuration hung.",
		}, func() float64 { return float64(r.hangCount()) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "pilotfish_xds_last_good_served_total", Help: "Times that an Envoy received the last good configuration, because no control plane answered.",
		}, func() float64 { return float64(r.lastGoodServed.Load()) }),
	} {
		if err := registerer.Register(c); err != nil {
			return err
		}
	}
	return nil
}
