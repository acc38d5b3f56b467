package trace

import "testing"

func FuzzRulesNameIsReadOrRefused(f *testing.F) {
	f.Add(traceMessage(f, number(1, 7)))
	f.Add([]byte{1, 0, 0, 0, 8, 0, 7, 0, 0, 3, 'a', 'b'})
	f.Fuzz(func(t *testing.T, data []byte) {
		if _, name, _ := parseRuleName(data); len(name) > len(data) {
			t.Errorf("%q", name)
		}
		_ = userDataComment(data)
		_ = xtablesComment(data)
	})
}
