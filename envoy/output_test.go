package envoy

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
)

func TestLongLinesAreTruncatedWithTheirLength(t *testing.T) {
	long := strings.Repeat("x", maxLine)
	for _, c := range []struct {
		in   string
		want []string
	}{
		{"", nil},
		{"a\nb\n", []string{"a", "b"}},
		{"a\r\n\nb", []string{"a", "", "b"}},
		{long + "\n", []string{long}},
		{long + "yyy\nz\n", []string{long + " … (3 bytes more)", "z"}},
		{long + long + long + "yy", []string{long + fmt.Sprintf(" … (%d bytes more)", 2*maxLine+2)}},
	} {
		var got []string
		forEachLine(strings.NewReader(c.in), func(l string) { got = append(got, l) })
		if !slices.Equal(got, c.want) {
			t.Errorf("%.20q… gives %.60q, want %.60q", c.in, got, c.want)
		}
	}
}

func TestTailContainsTheLastLinesInOrder(t *testing.T) {
	var r ring
	var want []string
	for i := range 3*tailLines + 7 {
		r.add(fmt.Sprint(i))
		want = append(want, fmt.Sprint(i))
		if got := r.lines(); !slices.Equal(got, want[max(0, len(want)-tailLines):]) {
			t.Fatalf("after %d lines the tail is %q", i+1, got)
		}
	}
}

func FuzzLines(f *testing.F) {
	f.Add([]byte("a\nb\r\n\n"), 3)
	f.Fuzz(func(t *testing.T, data []byte, repeat int) {
		data = bytes.Repeat(data, max(1, min(repeat, 2000)))
		forEachLine(io.LimitReader(bytes.NewReader(data), 1<<20), func(line string) {
			if len(line) > maxLine+64 || strings.Contains(line, "\n") {
				t.Fatalf("a line of %d bytes", len(line))
			}
		})
	})
}
