// Package lastgood keeps the configuration that an Envoy has accepted, so that it outlives its source: an Envoy that starts
// while no control plane answers gets it again.
//
// It is a log. What Envoy is sent is written when it is sent, and counts once Envoy has accepted it; what it rejected never
// counts. From time to time the writer marks the log, when what counts fits together, and what is read is the state at the
// last mark: a log that ends in the middle of something is as good as one that ends before it. When the log has become
// much longer than what it says, it is written anew, beside the old one, and takes its place.
//
// Where a disk cannot be written to, the log is kept in memory, packed, and is written to the disk once that can be done.
//
// Nothing secret is written: resources of type Secret are not, and neither is a resource that has a private key in it.
package lastgood

import (
	"errors"
	"log/slog"
	"time"
)

// DefaultMaxBytes is how large the file may become.
const DefaultMaxBytes = 256 << 20

// DefaultMaxMemory is how much memory it may take where no disk can be written to.
const DefaultMaxMemory = 32 << 20

// Config is what a Store needs.
type Config struct {
	// Dir is the directory that the file is kept in, with nothing else; it is made, with mode 0700.
	Dir string
	// MaxBytes bounds the file; zero is DefaultMaxBytes.
	MaxBytes int64
	// MaxMemory bounds the memory that it may be kept in where the directory cannot be written to, or none is given; zero
	// keeps nothing there.
	MaxMemory int64
	// ReadOnly says that the directory cannot be written to at present, and Why that is so, or that none is given.
	ReadOnly bool
	Why      error
	Logger   *slog.Logger
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// Identity is whose configuration it is. That of another is of no use.
type Identity struct {
	// Node and Cluster are the node's id and cluster.
	Node    string `json:"node"`
	Cluster string `json:"cluster,omitempty"`
	// Protocol is "delta" or "sotw": what versions are of differs.
	Protocol string `json:"protocol"`
}

// sotw is the protocol in which a type has one version for all its resources.
const sotw = "sotw"

// Reasons that there is nothing to be had from a file.
var (
	ErrForeign = errors.New("it is the configuration of another proxy")
	ErrCorrupt = errors.New("it is damaged")
	ErrFormat  = errors.New("it has another format, of another version of this program")
	ErrEmpty   = errors.New("there is nothing whole in it")
	ErrLocked  = errors.New("another process keeps its configuration there")
	ErrTooBig  = errors.New("the configuration is larger than the limit")
)
