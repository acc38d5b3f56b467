package envoy

import (
	"fmt"
	"slices"
	"strings"
)

// Advisory is a published vulnerability of Envoy that a client or an upstream server can exploit.
type Advisory struct {
	// ID is the advisory's CVE number.
	ID string
	// Attack states what an attacker can do.
	Attack string
	// Fixed lists the first fixed release of each minor version that has a fix. A minor version that is not in the list
	// is affected if it is older than the newest release in the list.
	Fixed []Version
}

// newestRelease is the release to recommend if a minor version has no fix. None of the advisories affects it.
var newestRelease = Version{Major: 1, Minor: 40}

// advisories lists Envoy's advisories of critical or high severity, and those that bypass authentication or
// authorization. To add one, copy the first fixed release of each minor version from Envoy's advisory or its release
// notes.
var advisories = []Advisory{
	// GHSA-22m2-hvr2-xqc8
	{"CVE-2026-47774", "clients exhaust memory over HTTP/2", fixedIn("1.35.11", "1.36.7", "1.37.3", "1.38.1")},
	// GHSA-f8x4-rw5x-f3r7
	{"CVE-2026-47778", "a certificate with a NUL byte in its SAN is accepted as another identity", fixedIn("1.35.13", "1.36.9", "1.37.5", "1.38.3")},
	// GHSA-3vhp-c83q-jqc2
	{"CVE-2026-73548", "clients smuggle requests after an upgrade", fixedIn("1.36.10", "1.37.6", "1.38.4", "1.39.1")},
	// GHSA-qgf6-qvhw-4hvh
	{"CVE-2026-73550", "clients exhaust memory over HTTP/2 with Host headers that Envoy drops", fixedIn("1.36.10", "1.37.6", "1.38.4", "1.39.1")},
	// GHSA-77x5-xqjg-hprq
	{"CVE-2026-73553", "path parameters bypass authorization policies", fixedIn("1.36.10", "1.37.6", "1.38.4", "1.39.1")},
	// Builds of Envoy with the FIPS module have no fix in 1.36.11.
	{"CVE-2026-35189", "a crafted certificate exhausts memory in a TLS handshake", fixedIn("1.36.11", "1.37.7", "1.38.5", "1.39.2")},
}

func fixedIn(releases ...string) []Version {
	versions := make([]Version, len(releases))
	for i, text := range releases {
		v, err := ParseVersion(text)
		if err != nil {
			panic("envoy: advisories: " + err.Error())
		}
		versions[i] = v
	}
	return versions
}

// fixFor returns the fixed release of v's minor version, if there is one.
func (a Advisory) fixFor(v Version) (Version, bool) {
	i := slices.IndexFunc(a.Fixed, func(f Version) bool { return f.Major == v.Major && f.Minor == v.Minor })
	if i < 0 {
		return Version{}, false
	}
	return a.Fixed[i], true
}

func (a Advisory) affects(v Version) bool {
	fixed, ok := a.fixFor(v)
	if !ok {
		fixed = slices.MaxFunc(a.Fixed, Version.Compare)
	}
	return v.Compare(fixed) < 0
}

// AdvisoryReport lists the known vulnerabilities of one version of Envoy.
type AdvisoryReport struct {
	Version    Version
	Advisories []Advisory
}

// Advisories returns the known vulnerabilities of this version. Only version numbers are compared, so a build with
// backported fixes is still reported. For the zero Version, the report is empty.
func (v Version) Advisories() AdvisoryReport {
	r := AdvisoryReport{Version: v}
	if v == (Version{}) {
		return r
	}
	for _, a := range advisories {
		if a.affects(v) {
			r.Advisories = append(r.Advisories, a)
		}
	}
	return r
}

// IsEmpty reports whether the report lists no vulnerability.
func (r AdvisoryReport) IsEmpty() bool { return len(r.Advisories) == 0 }

// Attacks returns one line: each advisory's ID and what an attacker can do.
func (r AdvisoryReport) Attacks() string {
	var parts []string
	for _, a := range r.Advisories {
		parts = append(parts, a.ID+": "+a.Attack)
	}
	return strings.Join(parts, "; ")
}

// Remedy recommends releases that fix all vulnerabilities of the report: one of the same minor version if there is one,
// and the newest release.
func (r AdvisoryReport) Remedy() string {
	var fixed Version
	for _, a := range r.Advisories {
		f, ok := a.fixFor(r.Version)
		if !ok {
			return fmt.Sprintf("use Envoy %s or newer", newestRelease)
		}
		if f.Compare(fixed) > 0 {
			fixed = f
		}
	}
	return fmt.Sprintf("use Envoy %s or a later release of %d.%d, or %s or newer", fixed, fixed.Major, fixed.Minor, newestRelease)
}

// String returns the report as a one-line warning. The report must not be empty.
func (r AdvisoryReport) String() string {
	return fmt.Sprintf("Envoy %s has known vulnerabilities (%s): %s", r.Version, r.Attacks(), r.Remedy())
}
