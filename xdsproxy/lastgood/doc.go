// Package lastgood stores the configuration that Envoy has accepted. An Envoy that starts while no control plane
// answers receives it again.
//
// The file is a log. Each response is written when it is sent to Envoy. It takes effect when Envoy accepts it; rejected
// responses have no effect. The writer appends a checkpoint when the accepted resources are consistent, and a reader
// restores the state at the last checkpoint. A truncated log is therefore as good as one that ends earlier. When the
// log is much longer than its content, it is rewritten to a second file, which then replaces it.
//
// If the disk cannot be written, the log is stored compressed in memory. It is written to the disk when that is possible
// again.
//
// Secrets are not stored: neither resources of type Secret, nor resources that contain a private key or a password.
package lastgood

import (
	"errors"
	"log/slog"
	"time"
)

// DefaultMaxBytes is the default size limit of the file.
const DefaultMaxBytes = 256 << 20

// DefaultMaxMemory is the default limit of memory if no disk can be written.
const DefaultMaxMemory = 32 << 20

// Config configures a Store.
type Config struct {
	// Dir is the directory of the file. It must not contain other files. It is created with mode 0700 if it does not
	// exist.
	Dir string
	// MaxBytes limits the size of the file; zero means DefaultMaxBytes.
	MaxBytes int64
	// MaxMemory limits the memory that is used if Dir cannot be written or is empty; zero disables storage in memory.
	MaxMemory int64
	// ReadOnly specifies that Dir cannot be written at present or is not set. Reason is the cause.
	ReadOnly bool
	Reason   error
	Logger   *slog.Logger
	// Now returns the current time; nil means time.Now.
	Now func() time.Time
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

// Reasons why a file cannot be used.
var (
	ErrForeign = errors.New("it is the configuration of another proxy")
	ErrCorrupt = errors.New("it is damaged")
	ErrFormat  = errors.New("it has the format of another version of this program")
	ErrEmpty   = errors.New("it contains no complete configuration")
	ErrLocked  = errors.New("another process uses the directory")
	ErrTooBig  = errors.New("the configuration is larger than the limit")
)
