package suggest

import "testing"

func TestTheProbablyMeantNameIsFound(t *testing.T) {
	names := []string{"timeout", "retries", "route", "exportTo", "reviews.default.svc.cluster.local", "http"}
	for written, want := range map[string]string{
		"timeuot": "timeout", "Timeout": "timeout", "retrys": "retries", "export_to": "exportTo", "htp": "http",
		"review.default.svc.cluster.local": "reviews.default.svc.cluster.local",
		"completelyelse":                   "", "": "", "x": "",
	} {
		if got := Name(written, names); got != want {
			t.Errorf("Name(%q) = %q, want %q", written, got, want)
		}
	}
	if got := ClosestWithin("ratings.default.svc.cluster.local", names, 2); got != "" {
		t.Errorf("a name with more than two mistakes matched %q", got)
	}
}
