// Package version identifies the build. The linker sets its variables (see the Makefile).
package version

import (
	"fmt"
	"runtime"
	"strings"
)

var (
	// Version is the release, such as "0.1.0", or "dev" in other builds.
	Version = "dev"
	// Commit is the Git revision of the build, with the suffix "-dirty" if the tree had uncommitted changes.
	Commit = "unknown"
)

// String returns the line that all programs print as their version.
func String() string {
	return fmt.Sprintf("%s (commit %s, %s, %s/%s)", Version, Commit, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// Status returns the state of the source tree from which the program was built, in Istio's words.
func Status() string {
	switch {
	case Commit == "unknown":
		return "unknown"
	case strings.HasSuffix(Commit, "-dirty"):
		return "Modified"
	}
	return "Clean"
}
