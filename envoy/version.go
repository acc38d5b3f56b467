package envoy

import (
	"cmp"
	"fmt"
	"regexp"
	"strconv"
)

// Version is an Envoy version. The zero value is an unknown version.
type Version struct {
	Major, Minor, Patch int
	// Pre is the suffix of builds that are not releases, such as "dev".
	Pre string
}

// MinimumVersion is the oldest supported version of Envoy.
var MinimumVersion = Version{Major: 1, Minor: 36}

func (v Version) String() string {
	s := fmt.Sprintf("%d.%d.%d", v.Major, v.Minor, v.Patch)
	if v.Pre != "" {
		s += "-" + v.Pre
	}
	return s
}

// Compare compares the numbers of two versions and returns -1, 0 or 1. It ignores Pre, so 1.41.0-dev equals 1.41.0.
func (v Version) Compare(o Version) int {
	return cmp.Or(cmp.Compare(v.Major, o.Major), cmp.Compare(v.Minor, o.Minor), cmp.Compare(v.Patch, o.Patch))
}

var (
	versionPattern = regexp.MustCompile(`^(\d\d?\d?\d?)\.(\d\d?\d?\d?)\.(\d\d?\d?\d?)(?:-([0-9A-Za-z.-]+))?$`)
	// Envoy prints "<path>  version: <commit>/<version>/<Clean|Modified>/<RELEASE|DEBUG>/<TLS library>".
	outputPattern = regexp.MustCompile(`version: [0-9A-Za-z-]*/(\d[0-9A-Za-z.-]*)/[A-Za-z]+/[A-Za-z]+/`)
)

// maxPre limits the length of Pre.
const maxPre = 64

// ParseVersion parses "1.40.0" or "1.41.0-dev".
func ParseVersion(text string) (Version, error) {
	m := versionPattern.FindStringSubmatch(text)
	if m == nil || len(m[4]) > maxPre {
		return Version{}, fmt.Errorf("%q is not a version such as 1.40.0", text)
	}
	var v Version
	for i, part := range []*int{&v.Major, &v.Minor, &v.Patch} {
		*part, _ = strconv.Atoi(m[i+1]) // the pattern matches at most four digits, so Atoi does not fail
	}
	v.Pre = m[4]
	return v, nil
}

// parseVersionOutput parses the output of `envoy --version`.
func parseVersionOutput(out string) (Version, error) {
	m := outputPattern.FindStringSubmatch(out)
	if m == nil {
		return Version{}, fmt.Errorf("the output of its --version is not that of Envoy")
	}
	return ParseVersion(m[1])
}
