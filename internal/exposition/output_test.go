package exposition

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"
)

func TestOutputWritesAllInOrderWhereverItStands(t *testing.T) {
	for seed := range uint64(30) {
		random := rand.New(rand.NewPCG(seed, 1))
		var got, want bytes.Buffer
		out := output{to: &got}
		window := make([]byte, 40<<10)
		for range 20 {
			for i := range window {
				window[i] = "ab"[random.IntN(2)]
			}
			for at := 0; at < len(window); {
				end := min(len(window), at+1+random.IntN(1<<random.IntN(16)))
				text := window[at:end]
				want.Write(text)
				switch random.IntN(3) {
				case 0:
					out.write(bytes.Clone(text))
				default:
					out.pass(text)
				}
				at = end + random.IntN(3) // something may be left out
			}
			out.settle()
		}
		if err := out.flush(); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got.Bytes(), want.Bytes()) {
			t.Fatalf("seed %d: %d bytes were written, not the %d that were to be, or others", seed, got.Len(), want.Len())
		}
	}
}

// counted counts writes, and fails from some on.
type counted struct{ writes, most int }

var errCounted = errors.New("no more")

func (c *counted) Write(p []byte) (int, error) {
	if c.writes++; c.writes > c.most {
		return 0, errCounted
	}
	return len(p), nil
}

func TestWhatStandsAsItIsToBeWrittenIsWrittenInOnePiece(t *testing.T) {
	text := []byte(statistics())
	to := &counted{most: len(text)}
	m := NewMerger(to, Text)
	for range 2 { // the second time it knows all labels
		m.Reset(to, Text)
		to.writes = 0
		if _, err := m.Copy(bytes.NewReader(text), Source{}); err != nil {
			t.Fatal(err)
		}
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if most := len(text)/(firstBuffer-200) + 2; to.writes > most {
		t.Errorf("%d writes for %d bytes, not at most %d", to.writes, len(text), most)
	}
}

func TestOutputTellsTheFirstError(t *testing.T) {
	to := &counted{most: 1}
	out := output{to: to}
	for range 5 {
		out.pass(make([]byte, mostPut+1))
		out.settle()
	}
	if err := out.flush(); !errors.Is(err, errCounted) || to.writes != 2 {
		t.Errorf("%v after %d writes", err, to.writes)
	}
}
