package exposition

import (
	"io"
	"strings"
	"testing"
)

// The buffer may contain the next line after the end of a line that is too long. The next line must not be dropped.
func TestLinesAfterTooLongLineAreRead(t *testing.T) {
	text := `a{x="` + strings.Repeat("x", 130<<10) + "\"} 1\n" + strings.Repeat("a{x=\"y\"} 1\n", 40<<10)
	copied, err := NewMerger(io.Discard, Text).Copy(strings.NewReader(text), Source{})
	if err != nil || copied.Invalid != 0 || copied.Bytes != int64(len(text)) {
		t.Errorf("%+v, %v", copied, err)
	}
}
