package controlplane

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// ended is a context within which what is to be kept is tried once.
func ended() context.Context {
	ctx, end := context.WithCancel(context.Background())
	end()
	return ctx
}

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
	l.run(ended())
	again := openLearned(path, now, slog.New(slog.DiscardHandler))
	if again.size != l.size || len(again.of(last)) != maxLearned {
		t.Errorf("after a restart %d are remembered, before it %d", again.size, l.size)
	}
	clock = clock.Add(learnedFor + time.Minute)
	if got := again.of(last); len(got) != 0 || again.workloads[last] != nil {
		t.Errorf("what was not asked for in a long time is remembered: %d", len(got))
	}
}

func TestWhatCouldNotBeKeptIsKeptOnceItCan(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state", learnedFile)
	var told strings.Builder
	l := openLearned(path, time.Now, slog.New(slog.NewTextHandler(&told, nil)))
	l.note("shop/a/a", "outbound|80||b")
	l.run(ended()) // where there is no such directory
	l.run(ended())
	if n := strings.Count(told.String(), "is not kept"); n != 1 {
		t.Errorf("it is told %d times: %s", n, told.String())
	}
	if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	l.run(ended())
	if got := openLearned(path, time.Now, slog.New(slog.DiscardHandler)).of("shop/a/a"); len(got) != 1 {
		t.Errorf("after a restart it knows %q", got)
	}
}

func TestVersionsOfFiltersThatCouldNotBeKeptAreKeptOnceTheyCan(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state", filtersFile)
	told, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = told.Close() }()
	var v filterVersions
	v.open(path, slog.New(slog.NewTextHandler(told, nil)))
	resources, problems := config.Parser{}.Parse("f.yaml", []byte("apiVersion: networking.istio.io/v1alpha3\nkind: EnvoyFilter\nmetadata: {name: f}\nspec: {configPatches: [{applyTo: CLUSTER, patch: {operation: MERGE, value: {alt_stat_name: a}}}]}\n"))
	if len(resources) != 1 {
		t.Fatal(problems)
	}
	v.current = map[config.Key]*snapshot.EnvoyFilter{resources[0].Key: snapshot.NewEnvoyFilter(resources[0])}
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { v.run(ctx); close(ended) }()
	defer func() { end(); <-ended }()
	v.file.note()
	testenv.Eventually(t, "it was tried", func() error {
		if text, err := os.ReadFile(told.Name()); err != nil || !strings.Contains(string(text), "are not kept") {
			return fmt.Errorf("it is told %q, %v", text, err)
		}
		return nil
	})
	if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "it is kept", func() error {
		_, err := os.Stat(path)
		return err
	})
}
