// Package lastgood stores the last accepted configuration: the resources that Envoy has accepted. An Envoy that starts
// while no control plane answers receives them.
//
// There is one snapshot file per resource type. Accepted changes are collected in memory and saved some seconds after
// the last change. The store then writes the current content with the changes to a new file, which replaces the current
// one atomically. It does not parse the contents of resources. A file contains the identity of its proxy, and a
// checksum.
//
// If the disk is full or hangs, the store saves nothing until Envoy's next stream, and the files stay unchanged.
//
// The store does not store secrets: neither resources of type Secret, nor resources that contain a private key or a
// password.
package lastgood

import (
	"cmp"
	"errors"
	"log/slog"
	"time"
)

// DefaultMaxBytes is the default size limit of all files.
const DefaultMaxBytes = 256 << 20

// maxWriteRate limits how many bytes the store writes per second on average, because a control plane may change one
// resource of a large configuration every few seconds, and each save writes whole files. maxPause limits the time
// between two saves.
const (
	maxWriteRate = 20 << 10
	maxPause     = 5 * time.Minute
)

// Config configures a Store.
type Config struct {
	// Dirs lists candidate directories. The store uses the first usable one. A directory must not contain other files.
	// If it does not exist, the store creates it with mode 0700.
	Dirs []string
	// MaxBytes limits the total size of the files; zero selects DefaultMaxBytes.
	MaxBytes int64
	// The store saves changes when Delay has passed without a further change, and at the latest MaxDelay after the
	// first change. Zero selects 5 s and 1 min. The store delays a save further if the previous one was large: see
	// maxWriteRate.
	Delay, MaxDelay time.Duration
	// HangTimeout is the time after which a disk operation counts as hung; zero selects 10 s.
	HangTimeout time.Duration
	Logger      *slog.Logger
	// Now returns the current time; nil selects time.Now.
	Now func() time.Time

	beforeOpen func() // set by tests; called before a directory is opened
}

func (c *Config) setDefaults() {
	c.MaxBytes = cmp.Or(c.MaxBytes, DefaultMaxBytes)
	c.Delay = cmp.Or(c.Delay, 5*time.Second)
	c.MaxDelay = cmp.Or(c.MaxDelay, time.Minute)
	c.HangTimeout = cmp.Or(c.HangTimeout, 10*time.Second)
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
}

// Identity identifies a proxy. Load returns configuration only to the identity for which it was stored.
type Identity struct {
	// Node and Cluster are the id and cluster of the xDS node.
	Node    string `json:"node"`
	Cluster string `json:"cluster,omitempty"`
	// Protocol is "delta" (each resource has a version) or "sotw" (all resources of a type have one version).
	Protocol string `json:"protocol"`
}

// sotw is the Identity.Protocol of the SotW variant.
const sotw = "sotw"

// listenerType is the type of listeners. An Envoy does not become ready without listeners.
const listenerType = "type.googleapis.com/envoy.config.listener.v3.Listener"

// Errors of reading and saving files.
var (
	ErrForeign = errors.New("the file contains the configuration of another proxy")
	ErrCorrupt = errors.New("the file is damaged")
	ErrLocked  = errors.New("another process uses the directory")
	ErrTooBig  = errors.New("the configuration is larger than the limit")
	errHung    = errors.New("the disk hangs: a read or write has not returned")
)
