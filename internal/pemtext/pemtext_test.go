package pemtext

import (
	"bytes"
	"encoding/pem"
	"strings"
	"testing"
)

func block(fill byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: bytes.Repeat([]byte{fill}, 100)})
}

func TestTextThatEndsAnywhereIsNotTakenForAllOfIt(t *testing.T) {
	first, second := string(block(1)), string(block(2))
	for end := range len(first+second) + 1 {
		text := (first + second)[:end]
		want := strings.Count(text, "-----END CERTIFICATE-----")
		whole := text == "" || strings.HasSuffix(strings.TrimSpace(text), "-----END CERTIFICATE-----")
		if got, err := Blocks([]byte(text)); len(got) != want || (err == nil) != whole {
			t.Fatalf("of the first %d bytes: %d blocks, %v", end, len(got), err)
		}
	}
}

func TestRemarksBetweenBlocksAreNone(t *testing.T) {
	for text, want := range map[string]int{
		"": 0, "hello": 0, "--- a rule ---\n" + strings.Repeat("-", 40) + "\n": 0,
		"# one\r\n" + strings.ReplaceAll(string(block(1)), "\n", "\r\n") + "-- and two --\n\n" + string(block(2)) + "# end": 2,
	} {
		if got, err := Blocks([]byte(text)); err != nil || len(got) != want {
			t.Errorf("%q: %d, %v", text, len(got), err)
		}
	}
}

func TestDamagedBlockIsMissed(t *testing.T) {
	first, second := string(block(1)), string(block(2))
	for _, text := range []string{
		first[:len(first)/2] + "\n" + second,
		strings.TrimSpace(first) + second, // without a newline between them
		strings.Replace(first, "AQEB", "AQ*B", 1) + second,
	} {
		if got, err := Blocks([]byte(text)); err == nil {
			t.Errorf("%q: %d blocks, and none is missed", text, len(got))
		}
	}
}
