package exposition

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"testing"
)

// pieces is a writer that records the text and the length of each write.
type pieces struct {
	bytes.Buffer
	lengths []int
}

func (p *pieces) Write(text []byte) (int, error) {
	p.lengths = append(p.lengths, len(text))
	return p.Buffer.Write(text)
}

func TestOutputBuffersWrites(t *testing.T) {
	for seed := range uint64(30) {
		random := rand.New(rand.NewPCG(seed, 1))
		var got pieces
		var want []byte
		out := output{to: &got}
		for range 100 {
			text := make([]byte, random.IntN(1<<random.IntN(19)))
			for i := range text {
				text[i] = "ab"[random.IntN(2)]
			}
			want = append(want, text...)
			out.write(text)
			clear(text) // the caller may reuse its slice
		}
		if err := out.flush(); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got.Bytes(), want) {
			t.Fatalf("seed %d: %d bytes were written, want %d bytes with the same content", seed, got.Len(), len(want))
		}
		for i, n := range got.lengths {
			if last := i == len(got.lengths)-1; n > maxPut || n < maxPut && !last || n == 0 {
				t.Fatalf("seed %d: writes of %d bytes", seed, got.lengths)
			}
		}
	}
}

// limitedWriter counts writes and returns an error after a number of them.
type limitedWriter struct{ writes, most int }

var errCounted = errors.New("no more")

func (c *limitedWriter) Write(p []byte) (int, error) {
	if c.writes++; c.writes > c.most {
		return 0, errCounted
	}
	return len(p), nil
}

func TestOutputReportsFirstError(t *testing.T) {
	to := &limitedWriter{most: 1}
	out := output{to: to}
	for range 5 {
		out.write(make([]byte, maxPut+1))
	}
	if err := out.flush(); !errors.Is(err, errCounted) || to.writes != 2 {
		t.Errorf("%v after %d writes", err, to.writes)
	}
}

// shortWriter is a writer that accepts half of the bytes and returns no error.
type shortWriter struct{}

func (shortWriter) Write(p []byte) (int, error) { return len(p) / 2, nil }

func TestOutputReportsShortWrite(t *testing.T) {
	out := output{to: shortWriter{}}
	out.write([]byte("ab"))
	if err := out.flush(); !errors.Is(err, io.ErrShortWrite) {
		t.Error(err)
	}
}
