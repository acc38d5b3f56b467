package envoy

import (
	"fmt"
	"strings"
)

const remedy = "run `make envoy` to install a pinned one, or name one with --envoy-path or ENVOY_PATH"

// NotFoundError says that no Envoy was found, and where it was looked for.
type NotFoundError struct {
	// Looked tells each place and what was there, in the order of the search.
	Looked []string
}

func (e *NotFoundError) Error() string {
	return fmt.Sprintf("no Envoy found (looked at %s): %s", strings.Join(e.Looked, "; "), remedy)
}

// TooOldError says that an Envoy is older than what works.
type TooOldError struct {
	Binary  Binary
	Minimum Version
}

func (e *TooOldError) Error() string {
	return fmt.Sprintf("Envoy %s at %s (from %s) is too old, %s or newer is needed: %s",
		e.Binary.Version, e.Binary.Path, e.Binary.Source, e.Minimum, remedy)
}

// NotEnvoyError says that a file is there and cannot be used as an Envoy.
type NotEnvoyError struct {
	Path   string
	Source Source
	// Output is the beginning of what it printed when it was asked for its version.
	Output string
	Err    error
}

func (e *NotEnvoyError) Error() string {
	s := fmt.Sprintf("%s (from %s) cannot be used as Envoy: %v", e.Path, e.Source, e.Err)
	if e.Output != "" {
		s += fmt.Sprintf(" (it printed %q)", e.Output)
	}
	return s + ": " + remedy
}

func (e *NotEnvoyError) Unwrap() error { return e.Err }
