package envoy

import (
	"runtime"
	"slices"
)

// pin identifies the binary of an Envoy release.
type pin struct{ version, arch string }

// pins contains the binaries of known releases, by their SHA-256 hash.
var pins = map[string]pin{
	"8aa137a7d00994ce43f613556f5a120709229f63bedb86eedde5ccbc402c2b80": {"1.40.0", "amd64"},
	"03cacc952561635c0b7d2a829291f341dadbebc32050475efbe7321b1bbe18c2": {"1.40.0", "arm64"},
	"a9a8a174b50ec2606dc6f73b31f7602e0de2a73dbc090141c31460f5613d179d": {"1.38.3", "amd64"},
	"da1d24686a680e9e3228f97496e947d940e510a5d6d271548b2ab26a8a69e793": {"1.38.3", "arm64"},
	"5a398095d8c1dd363ecc10b6b9dbd82154a8fbb5eb15510d5fb7cbdb9d0b0e59": {"1.36.4", "amd64"},
	"45551e3ba31b2368fb80cf4c124b21857c54e0e81aee3b708ebd7b0ba3f755b1": {"1.36.4", "arm64"},
}

// PinnedVersions returns the versions of the pinned releases for this processor, newest first.
func PinnedVersions() []string {
	var versions []string
	for _, p := range pins {
		if p.arch == runtime.GOARCH {
			versions = append(versions, p.version)
		}
	}
	slices.Sort(versions)
	slices.Reverse(versions)
	return versions
}

// FindPinnedRelease returns the version and architecture of the release program with this SHA-256 hash, in hexadecimal
// digits. Both are empty if there is no such release.
func FindPinnedRelease(hash string) (version, arch string) {
	p := pins[hash]
	return p.version, p.arch
}
