package controlplane

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

func TestWhatIsLearnedIsBoundedAndMakesRoomForNewWorkloads(t *testing.T) {
	path := filepath.Join(t.TempDir(), learnedFile)
	if err := os.WriteFile(path, []byte("null"), 0o600); err != nil {
		t.Fatal(err)
	}
	clock := time.Unix(1_000_000, 0)
	now := func() time.Time { return clock }
	l := openLearned(path, now, slog.New(slog.DiscardHandler))
	l.note("shop/stays/stays", "outbound|80||old")
	for i := range maxLearnedOfAll/maxLearned + 20 { // workloads that come and go
		clock = clock.Add(time.Second)
		l.note("shop/stays/stays", "outbound|80||old")
		for n := range maxLearned + 10 {
			l.note(fmt.Sprint("shop/pod/", i), fmt.Sprint("outbound|80||s", n))
		}
	}
	if l.size > maxLearnedOfAll {
		t.Errorf("%d clusters are remembered", l.size)
	}
	last := fmt.Sprint("shop/pod/", maxLearnedOfAll/maxLearned+19)
	if n := len(l.of(last)); n != maxLearned {
		t.Errorf("of the newest workload %d are remembered", n)
	}
	if !slices.Equal(l.of("shop/stays/stays"), []string{"outbound|80||old"}) {
		t.Error("what was asked for lately is forgotten")
	}
	l.write()
	again := openLearned(path, now, slog.New(slog.DiscardHandler))
	if again.size != l.size || len(again.of(last)) != maxLearned {
		t.Errorf("after a restart %d are remembered, before it %d", again.size, l.size)
	}
	clock = clock.Add(learnedFor + time.Minute)
	if got := again.of(last); len(got) != 0 || again.workloads[last] != nil {
		t.Errorf("what was not asked for in a long time is remembered: %d", len(got))
	}
}
