package envoy

import (
	"slices"
	"strings"
	"testing"
)

func TestAdvisoriesOfVersions(t *testing.T) {
	const (
		http2, san, upgrade, host, path, certificate = "CVE-2026-47774", "CVE-2026-47778", "CVE-2026-73548", "CVE-2026-73550", "CVE-2026-73553", "CVE-2026-35189"

		newest = "use Envoy 1.40.0 or newer"
	)
	all := []string{http2, san, upgrade, host, path, certificate}
	for _, c := range []struct {
		version string
		ids     []string
		remedy  string
	}{
		{"1.29.12", all, newest},
		{"1.34.14", all, newest},
		{"1.35.10", all, newest},
		{"1.35.11", all[1:], newest},
		{"1.35.13", all[2:], newest},
		{"1.36.4", all, "use Envoy 1.36.11 or a later release of 1.36, or 1.40.0 or newer"},
		{"1.36.6", all, "use Envoy 1.36.11 or a later release of 1.36, or 1.40.0 or newer"},
		{"1.36.7", all[1:], "use Envoy 1.36.11 or a later release of 1.36, or 1.40.0 or newer"},
		{"1.36.9", all[2:], "use Envoy 1.36.11 or a later release of 1.36, or 1.40.0 or newer"},
		{"1.36.10", []string{certificate}, "use Envoy 1.36.11 or a later release of 1.36, or 1.40.0 or newer"},
		{"1.36.11", nil, ""},
		{"1.36.13", nil, ""},
		{"1.37.6", []string{certificate}, "use Envoy 1.37.7 or a later release of 1.37, or 1.40.0 or newer"},
		{"1.37.7", nil, ""},
		{"1.38.0", all, "use Envoy 1.38.5 or a later release of 1.38, or 1.40.0 or newer"},
		{"1.38.3", all[2:], "use Envoy 1.38.5 or a later release of 1.38, or 1.40.0 or newer"},
		{"1.38.5", nil, ""},
		{"1.39.0", all[2:], "use Envoy 1.39.2 or a later release of 1.39, or 1.40.0 or newer"},
		{"1.39.2", nil, ""},
		{"1.40.0", nil, ""},
		{"1.41.0", nil, ""},
		{"2.0.0", nil, ""},

		{"1.36.4-dev", all, "use Envoy 1.36.11 or a later release of 1.36, or 1.40.0 or newer"},
		{"1.36.10-vendor.3", []string{certificate}, "use Envoy 1.36.11 or a later release of 1.36, or 1.40.0 or newer"},
		{"1.36.11-dev", nil, ""},
		{"1.40.0-dev", nil, ""},
	} {
		v, err := ParseVersion(c.version)
		if err != nil {
			t.Fatal(err)
		}
		report := v.Advisories()
		var ids []string
		for _, a := range report.Advisories {
			ids = append(ids, a.ID)
		}
		if !slices.Equal(ids, c.ids) || report.IsEmpty() != (c.ids == nil) {
			t.Errorf("%s: advisories %v, want %v", c.version, ids, c.ids)
		}
		if c.ids == nil {
			continue
		}
		if report.Remedy() != c.remedy {
			t.Errorf("%s: remedy %q, want %q", c.version, report.Remedy(), c.remedy)
		}
		text := report.String()
		for _, want := range append([]string{c.version, c.remedy}, c.ids...) {
			if !strings.Contains(text, want) {
				t.Errorf("%s: the warning %q lacks %q", c.version, text, want)
			}
		}
		if strings.Contains(text, "\n") {
			t.Errorf("%s: the warning has several lines: %q", c.version, text)
		}
	}
}

func TestUnknownVersionHasNoAdvisories(t *testing.T) {
	if r := (Version{}).Advisories(); !r.IsEmpty() {
		t.Errorf("advisories of an unknown version: %v", r.Advisories)
	}
}

func TestTableOfAdvisoriesIsConsistent(t *testing.T) {
	if r := newestRelease.Advisories(); !r.IsEmpty() {
		t.Errorf("the recommended Envoy is affected: %s", r)
	}
	for _, a := range advisories {
		if a.ID == "" || a.Attack == "" || len(a.Fixed) == 0 {
			t.Errorf("incomplete advisory: %+v", a)
		}
		if !slices.IsSortedFunc(a.Fixed, Version.Compare) {
			t.Errorf("%s: the fixed releases are not in order: %v", a.ID, a.Fixed)
		}
		for i, f := range a.Fixed[1:] {
			if before := a.Fixed[i]; f.Major != before.Major || f.Minor != before.Minor+1 {
				t.Errorf("%s: there must be one fixed release of each minor version, in order: %s follows %s", a.ID, f, before)
			}
		}
	}
}
