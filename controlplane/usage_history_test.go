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

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// cancelledContext returns a cancelled context. run(ctx) with it writes the file once and returns.
func cancelledContext() context.Context {
	ctx, end := context.WithCancel(context.Background())
	end()
	return ctx
}

func TestUsageHistoryIsLimited(t *testing.T) {
	path := filepath.Join(t.TempDir(), usageHistoryFile)
	if err := os.WriteFile(path, []byte("null"), 0o600); err != nil {
		t.Fatal(err)
	}
	clock := time.Unix(1_000_000, 0)
	now := func() time.Time { return clock }
	l := openUsageHistory(path, now, slog.New(slog.DiscardHandler))
	l.record("shop/stays/stays", "outbound|80||old")
	for i := range maxTotalUsage/maxWorkloadUsage + 20 { // short-lived workloads
		clock = clock.Add(time.Second)
		l.record("shop/stays/stays", "outbound|80||old")
		for n := range maxWorkloadUsage + 10 {
			l.record(fmt.Sprint("shop/pod/", i), fmt.Sprint("outbound|80||s", n))
		}
	}
	if l.size > maxTotalUsage {
		t.Errorf("%d clusters are stored", l.size)
	}
	last := fmt.Sprint("shop/pod/", maxTotalUsage/maxWorkloadUsage+19)
	if n := len(l.recentNames(last)); n != maxWorkloadUsage {
		t.Errorf("%d clusters of the newest workload are stored", n)
	}
	if !slices.Equal(l.recentNames("shop/stays/stays"), []string{"outbound|80||old"}) {
		t.Error("a recently requested name is missing")
	}
	l.run(cancelledContext())
	again := openUsageHistory(path, now, slog.New(slog.DiscardHandler))
	if again.size != l.size || len(again.recentNames(last)) != maxWorkloadUsage {
		t.Errorf("%d clusters are stored after a restart, %d before it", again.size, l.size)
	}
	clock = clock.Add(maxUsageAge + time.Minute)
	if got := again.recentNames(last); len(got) != 0 || again.workloads[last] != nil {
		t.Errorf("names are still stored after maxUsageAge: %d", len(got))
	}
}

func TestFailedWriteOfUsageHistoryIsRetried(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state", usageHistoryFile)
	var logged strings.Builder
	l := openUsageHistory(path, time.Now, slog.New(slog.NewTextHandler(&logged, nil)))
	l.record("shop/a/a", "outbound|80||b")
	l.run(cancelledContext()) // the directory does not exist
	l.run(cancelledContext())
	if n := strings.Count(logged.String(), "writing the usage history"); n != 1 {
		t.Errorf("the failed write is logged %d times: %s", n, logged.String())
	}
	if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	l.run(cancelledContext())
	if got := openUsageHistory(path, time.Now, slog.New(slog.DiscardHandler)).recentNames("shop/a/a"); len(got) != 1 {
		t.Errorf("after a restart the history contains %q", got)
	}
}

func TestFailedWriteOfStateFileIsRetriedAndLoggedOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state", "file")
	var logged strings.Builder
	file := newStateFile(path, "the file cannot be written", slog.New(slog.NewTextHandler(&logged, nil)))
	tried := make(chan struct{}, 100)
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		file.run(ctx, func() ([]byte, error) { tried <- struct{}{}; return []byte("content"), nil })
		close(ended)
	}()
	file.schedule()
	<-tried
	<-tried
	if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "it is stored", func() error {
		_, err := os.Stat(path)
		return err
	})
	end()
	<-ended
	if strings.Count(logged.String(), "cannot be written") != 1 {
		t.Errorf("the log is %q", logged.String())
	}
}
