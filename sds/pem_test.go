package sds

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testpki"
)

// A file that is read while it is being written may be truncated at any position. The missing part may contain a
// trusted root or a revoked certificate.
func TestTruncatedPEMIsRejected(t *testing.T) {
	one, two := testpki.New(t, "one"), testpki.New(t, "two")
	for what, c := range map[string]struct {
		first, second []byte
		read          func([]byte) (int, error)
	}{
		"certificates": {one.PEM(), two.PEM(), func(text []byte) (int, error) { all, err := parseCertificates(text); return len(all), err }},
		"revocation lists": {revoke(t, one), revoke(t, two), func(text []byte) (int, error) {
			all, err := parseRevocations(text)
			return len(all), err
		}},
	} {
		whole := slices.Concat(c.first, c.second)
		for end := range len(whole) + 1 {
			text := whole[:end]
			want := 0
			switch trimmed := bytes.TrimSpace(text); {
			case bytes.Equal(trimmed, bytes.TrimSpace(c.first)):
				want = 1
			case bytes.Equal(trimmed, bytes.TrimSpace(whole)):
				want = 2
			}
			if got, err := c.read(text); (err == nil) != (want > 0) || err == nil && got != want {
				t.Fatalf("%s: of the first %d of %d bytes: %d, %v", what, end, len(whole), got, err)
			}
		}
		damaged := slices.Concat(c.first[:len(c.first)/2], []byte("\n"), c.second)
		if got, err := c.read(damaged); err == nil {
			t.Errorf("%s: %d items are returned although the first is damaged", what, got)
		}
		text := slices.Concat([]byte("# one:\n"+strings.Repeat("-", 40)+"\n"), c.first, []byte("# and two\n"), c.second, []byte("# end"))
		if got, err := c.read(text); err != nil || got != 2 {
			t.Errorf("%s: with text between the blocks: %d, %v", what, got, err)
		}
	}
}
