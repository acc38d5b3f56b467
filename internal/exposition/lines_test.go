package exposition

import (
	"io"
	"strings"
	"testing"
)

// What was read together with the end of a long line is not the line.
func TestLinesAfterTooLongLineAreRead(t *testing.T) {
	text := `a{x="` + strings.Repeat("x", 130<<10) + "\"} 1\n" + strings.Repeat("a{x=\"y\"} 1\n", 40<<10)
	copied, err := NewMerger(io.Discard, Text).Copy(strings.NewReader(text), Source{})
	if err != nil || copied.Invalid != 0 || copied.Bytes != int64(len(text)) {
		t.Errorf("%+v, %v", copied, err)
	}
}
