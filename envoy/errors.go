package envoy

import (
	"fmt"
	"strings"
)

const installHint = "run `make envoy` or `pilotfish envoy install` to install a supported version, or specify a binary with --envoy-path or ENVOY_PATH"

// NotFoundError reports that no Envoy was found.
type NotFoundError struct {
	// Searched lists the searched locations and the rejected binaries, in search order.
	Searched []string
}

func (e *NotFoundError) Error() string {
	return fmt.Sprintf("no Envoy found (searched %s): %s", strings.Join(e.Searched, "; "), installHint)
}

// TooOldError reports an Envoy that is older than MinimumVersion.
type TooOldError struct {
	Binary  Binary
	Minimum Version
}

func (e *TooOldError) Error() string {
	return fmt.Sprintf("Envoy %s at %s (from %s) is too old, %s or newer is needed: %s",
		e.Binary.Version, e.Binary.Path, e.Binary.Source, e.Minimum, installHint)
}

// NotEnvoyError reports a file that cannot be used as Envoy.
type NotEnvoyError struct {
	Path   string
	Source Source
	// Output is the beginning of the file's output when it is run with --version.
	Output string
	Err    error
}

func (e *NotEnvoyError) Error() string {
	s := fmt.Sprintf("%s (from %s) cannot be used as Envoy: %v", e.Path, e.Source, e.Err)
	if e.Output != "" {
		s += fmt.Sprintf(" (it printed %q)", e.Output)
	}
	return s + ": " + installHint
}

func (e *NotEnvoyError) Unwrap() error { return e.Err }
