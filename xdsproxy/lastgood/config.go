// Package lastgood stores the configuration that Envoy has accepted. An Envoy that starts while no control plane
// answers receives it.
//
// There is one snapshot file per resource type. Accepted changes are collected in memory and saved some seconds after
// the last one: the store merges them with the current file into a new one, which replaces it atomically. The contents
// of resources are not parsed. A file contains the proxy that owns it and a checksum.
//
// If the disk is full or hangs, saving stops until Envoy's next stream. The files remain as they are.
//
// Secrets are not stored: neither resources of type Secret, nor resources that contain a private key or a password.
package lastgood

import (
	"cmp"
	"errors"
	"log/slog"
	"time"
)

// DefaultMaxBytes is the default size limit of all files.
const DefaultMaxBytes = 256 << 20

// Config configures a Store.
type Config struct {
	// Dirs are candidate directories; the first usable one is used. A directory must not contain other files. It is
	// created with mode 0700 if it does not exist.
	Dirs []string
	// MaxBytes limits the total size of the files; zero means DefaultMaxBytes.
	MaxBytes int64
	// Delay is the time from the last accepted change until it is saved, and MaxDelay the time from the first one; zero
	// means 5 s and 1 min.
	Delay, MaxDelay time.Duration
	// HangTimeout is the time after which a disk operation counts as hung; zero means 10 s.
	HangTimeout time.Duration
	Logger      *slog.Logger
	// Now returns the current time; nil means time.Now.
	Now func() time.Time

	beforeOpen func() // for tests: called before a directory is opened
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

// Identity identifies the proxy. A proxy does not use the configuration of another identity.
type Identity struct {
	// Node and Cluster are the id and cluster of the xDS node.
	Node    string `json:"node"`
	Cluster string `json:"cluster,omitempty"`
	// Protocol is "delta" or "sotw". Versions belong to resources in delta, and to types in SotW.
	Protocol string `json:"protocol"`
}

// sotw is the protocol with one version for all resources of a type.
const sotw = "sotw"

// listenerType is the type without which an Envoy does not become ready.
const listenerType = "type.googleapis.com/envoy.config.listener.v3.Listener"

// Reasons why a file cannot be used or written.
var (
	ErrForeign = errors.New("it is the configuration of another proxy")
	ErrCorrupt = errors.New("it is damaged")
	ErrLocked  = errors.New("another process uses the directory")
	ErrTooBig  = errors.New("the configuration is larger than the limit")
	errHung    = errors.New("the disk hangs: a read or write has not returned")
)
