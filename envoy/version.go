package envoy

import (
	"cmp"
	"fmt"
	"regexp"
	"strconv"
)

// Version is the version of an Envoy. The zero value is no version.
type Version struct {
	Major, Minor, Patch int
	// Pre is what follows the numbers in builds that are not releases, as "dev".
	Pre string
}

// MinimumVersion is the oldest Envoy that is tested.
var MinimumVersion = Version{Major: 1, Minor: 36}

func (v Version) String() string {
	s := fmt.Sprintf("%d.%d.%d", v.Major, v.Minor, v.Patch)
	if v.Pre != "" {
		s += "-" + v.Pre
	}
	return s
}

// Compare orders versions by their numbers: -1, 0 or 1. What precedes a release counts as that release, since a
// development build of 1.41.0 has what 1.40.0 has.
func (v Version) Compare(o Version) int {
	return cmp.Or(cmp.Compare(v.Major, o.Major), cmp.Compare(v.Minor, o.Minor), cmp.Compare(v.Patch, o.Patch))
}

var (
	versionPattern = regexp.MustCompile(`^(\d\d?\d?\d?)\.(\d\d?\d?\d?)\.(\d\d?\d?\d?)(?:-([0-9A-Za-z.-]+))?$`)
	// Envoy prints "<path>  version: <commit>/<version>/<Clean|Modified>/<RELEASE|DEBUG>/<TLS library>".
	outputPattern = regexp.MustCompile(`version: [0-9A-Za-z-]*/(\d[0-9A-Za-z.-]*)/[A-Za-z]+/[A-Za-z]+/`)
)

// longestPre bounds what stands after a version's number.
const longestPre = 64

// ParseVersion reads "1.40.0" or "1.41.0-dev".
func ParseVersion(text string) (Version, error) {
	m := versionPattern.FindStringSubmatch(text)
	if m == nil || len(m[4]) > longestPre {
		return Version{}, fmt.Errorf("%q is not a version such as 1.40.0", text)
	}
	var v Version
	for i, part := range []*int{&v.Major, &v.Minor, &v.Patch} {
		*part, _ = strconv.Atoi(m[i+1]) // the pattern allows four digits at most
	}
	v.Pre = m[4]
	return v, nil
}

// parseVersionOutput reads what `envoy --version` prints.
func parseVersionOutput(out string) (Version, error) {
	m := outputPattern.FindStringSubmatch(out)
	if m == nil {
		return Version{}, fmt.Errorf("its --version does not answer as Envoy's does")
	}
	return ParseVersion(m[1])
}
