package cni

import (
	"io"
	"strings"
	"testing"
	"time"
)

func TestInputOfTheRuntimeIsLimited(t *testing.T) {
	endless, never := io.Pipe()
	defer never.Close()
	for name, tc := range map[string]struct {
		from  io.Reader
		limit time.Duration
		want  string
	}{
		"just so":   {strings.NewReader("12345"), time.Minute, ""},
		"too large": {strings.NewReader("123456"), time.Minute, "larger than"},
		"endless":   {endless, time.Millisecond, "did not end within 1ms"},
	} {
		text, err := readWithin(tc.from, 5, tc.limit)
		switch {
		case tc.want == "" && (err != nil || string(text) != "12345"):
			t.Errorf("%s: %q, %v", name, text, err)
		case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
			t.Errorf("%s: %v", name, err)
		}
	}
}
