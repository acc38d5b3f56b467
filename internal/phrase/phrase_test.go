package phrase

import "testing"

func TestNounsFollowTheirNumber(t *testing.T) {
	for want, got := range map[string]string{
		"0 warnings":            Count(0, "warning"),
		"1 warning":             Count(1, "warning"),
		"2 warnings":            Count(int32(2), "warning"),
		"1 policy":              Count(1, "policy"),
		"3 policies":            Count(uint64(3), "policy"),
		"2 keys":                Count(2, "key"),
		"2 matches":             Count(2, "match"),
		"2 addresses":           Count(2, "address"),
		"4 concurrent requests": Count(4, "concurrent request"),
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestListsHaveNoEmptyItems(t *testing.T) {
	for want, got := range map[string]string{
		"":        List(nil),
		"a":       List([]string{"", "a", ""}),
		"a, b":    List([]string{"a", "b"}),
		"a, b, …": ListFirst([]string{"a", "b", "c"}, 2),
		"b, c":    ListFirst([]string{"b", "c"}, 2),
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
