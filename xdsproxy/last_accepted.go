package xdsproxy

import (
	"cmp"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pilotfish-mesh/pilotfish/xdsproxy/lastgood"
)

// LastGood configures the storage of the last accepted configuration: the resources that Envoy has accepted. The zero
// value disables the storage.
type LastGood struct {
	// Dirs lists candidate directories. The relay uses the first usable one. A directory must not contain other files.
	Dirs []string
	// MaxBytes limits the total size of the files; zero selects lastgood.DefaultMaxBytes.
	MaxBytes int64
	// ConnectWait is how long a starting Envoy waits for a connection to a control plane before the relay sends it the
	// last accepted configuration; zero selects 500 ms. If the last attempt to connect failed, Envoy does not wait.
	// SilenceTimeout is how long Envoy waits for a response on an open connection; zero selects 3 s.
	ConnectWait, SilenceTimeout time.Duration

	saveDelay, maxSaveDelay time.Duration // set by tests; zero selects the defaults of lastgood.Config
}

func (c *LastGood) setDefaults() {
	orDefault(&c.ConnectWait, 500*time.Millisecond)
	orDefault(&c.SilenceTimeout, 3*time.Second)
	c.MaxBytes = cmp.Or(c.MaxBytes, lastgood.DefaultMaxBytes)
}

// LastGoodStatus is the state of the last accepted configuration.
type LastGoodStatus struct {
	// Served reports whether Envoy received the last accepted configuration, and no control plane has responded since.
	Served bool `json:"served"`
	// UpToDate is the last time at which Envoy's configuration was known to be that of the control plane. It is zero
	// while a control plane is connected.
	UpToDate time.Time `json:"upToDate,omitzero"`
	// Storage is the state of the store, or nil if nothing is stored.
	Storage *lastgood.Status `json:"kept,omitempty"`
}

// openLastGood opens the store of the last accepted configuration. It returns nil if no directory is configured.
func (r *Relay) openLastGood() *lastgood.Store {
	c := r.config.LastGood
	if len(c.Dirs) == 0 {
		return nil
	}
	return lastgood.Open(lastgood.Config{Dirs: c.Dirs, MaxBytes: c.MaxBytes, Delay: c.saveDelay, MaxDelay: c.maxSaveDelay, Logger: r.log, Now: r.config.Now})
}

// nextNonce returns a unique nonce for a response that the relay itself builds.
func (r *Relay) nextNonce() string { return strconv.FormatUint(r.nonces.Add(1), 10) }

func (r *Relay) lastGoodStatus() *LastGoodStatus {
	st := r.tracker.lastGoodStatus()
	if store := r.store.Load(); store != nil {
		stored := store.Status()
		st.Storage = &stored
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

// registerLastGood registers the metrics of the last accepted configuration.
func (r *Relay) registerLastGood(registerer prometheus.Registerer) error {
	if registerer == nil {
		return nil
	}
	stored := func() lastgood.Status {
		if st := r.lastGoodStatus(); st.Storage != nil {
			return *st.Storage
		}
		return lastgood.Status{}
	}
	for _, c := range []prometheus.Collector{
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "pilotfish_xds_configuration_age_seconds",
			Help: "Seconds since the control plane last confirmed Envoy's configuration; 0 while a control plane is connected.",
		}, func() float64 {
			if since := r.lastGoodStatus().UpToDate; !since.IsZero() {
				// The clock may have been set back, so the difference may be negative.
				return max(0, r.config.Now().Sub(since).Seconds())
			}
			return 0
		}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "pilotfish_xds_last_good_bytes", Help: "Size of the files of the last accepted configuration.",
		}, func() float64 { return float64(stored().Bytes) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "pilotfish_xds_last_good_failures_total", Help: "Failed and hung disk operations for the last accepted configuration. After a failed save or a hung operation, the agent saves nothing until Envoy's next stream.",
		}, func() float64 { return float64(stored().Failures) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "pilotfish_xds_last_good_served_total", Help: "Number of times that an Envoy received the last accepted configuration, because no control plane responded.",
		}, func() float64 { return float64(r.lastGoodServed.Load()) }),
	} {
		if err := registerer.Register(c); err != nil {
			return err
		}
	}
	return nil
}
