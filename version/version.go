// Package version identifies the build. The linker sets its variables (see the Makefile).
package version

import (
	"fmt"
	"runtime"
)

var (
	// Version is the release, as in "0.1.0"; "dev" outside a release build.
	Version = "dev"
	// Commit is the revision that was built, with "-dirty" behind it when the tree had changes.
	Commit = "unknown"
)

// String is the line that every command prints for its version.
func String() string {
	return fmt.Sprintf("%s (commit %s, %s, %s/%s)", Version, Commit, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
