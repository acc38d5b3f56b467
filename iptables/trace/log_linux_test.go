package trace

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/testns"
	"github.com/pilotfish-mesh/pilotfish/iptables/backends"
)

func TestLoggerIsRestoredAfterTrace(t *testing.T) {
	ns, cfg := legacy(t)
	cfg.Legacy, cfg.For = placed(t, ns), 100*time.Millisecond
	before := loggers(t, ns)
	for _, cfg.Guard = range [][]string{nil, {os.Args[0], "guard"}} {
		if err := Run(t.Context(), cfg, func(Packet) error { return nil }); err != nil {
			t.Fatal(err)
		}
		if after := loggers(t, ns); after != before {
			t.Errorf("with the guard %q: before %v, after %v", cfg.Guard, before, after)
		}
	}
}

// loggers are the names of a namespace's, by family.
func loggers(t *testing.T, ns *testns.Namespace) (names [2]string) {
	t.Helper()
	err := ns.Run(func() (err error) {
		for i, family := range []byte{syscall.AF_INET, syscall.AF_INET6} {
			name, failure := readLogger(family)
			names[i], err = name, errors.Join(err, failure)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func TestLoggerIsRestoredAfterKilledTrace(t *testing.T) {
	if os.Getenv("TRACE_UNTIL_KILLED") != "" {
		rules, err := backends.LegacyRules(0)
		if err != nil || len(rules) == 0 {
			t.Fatalf("%d rules, %v", len(rules), err)
		}
		t.Fatal(Run(t.Context(), Config{Legacy: rules, For: time.Minute, Guard: []string{os.Args[0], "guard"}}, func(Packet) error { return nil }))
	}
	ns, _ := legacy(t)
	before := loggers(t, ns)
	traced := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	traced.Env = append(os.Environ(), "TRACE_UNTIL_KILLED=1")
	output, ended := ns.Start(t, traced)
	until := func(what string, is func([2]string) bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); !is(loggers(t, ns)); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s: the loggers are %v\n%s", what, loggers(t, ns), output)
			}
		}
	}
	until("while it traces", func(now [2]string) bool { return now == [2]string{loggerName, loggerName} })
	if err := traced.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-ended
	until("after it was killed", func(now [2]string) bool { return now == before })
}

// Who is refused must not put back the logger that the other one has replaced, which would hear nothing from then on.
func TestRefusedTraceDoesNotDisturbRunningOne(t *testing.T) {
	ns := testns.New(t)
	for range 20 {
		var loggers [2]*logger
		var errs [2]error
		var both sync.WaitGroup
		for i := range loggers {
			both.Go(func() {
				_ = ns.Run(func() error { loggers[i], errs[i] = newLogger(nil); return nil })
			})
		}
		both.Wait()
		if (errs[0] == nil) == (errs[1] == nil) {
			t.Fatalf("not one of two has the log: %v", errs)
		}
		err := ns.Run(func() error {
			name4, err4 := readLogger(syscall.AF_INET)
			name6, err6 := readLogger(syscall.AF_INET6)
			if name4 != loggerName || name6 != loggerName {
				t.Errorf("%s and %s while one traces", name4, name6)
			}
			return errors.Join(err4, err6)
		})
		for i, l := range loggers {
			if errs[i] == nil {
				err = errors.Join(err, l.Close())
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestBusyLogGroupIsReported(t *testing.T) {
	ns, cfg := legacy(t)
	cfg.Legacy, cfg.For = placed(t, ns), time.Minute
	ctx, cancel := context.WithCancel(t.Context())
	const held = "another program of this namespace listens to the log group 0"
	first := make(chan error, 1)
	go func() {
		var err error
		for again := true; again; again = ctx.Err() == nil && err != nil && strings.Contains(err.Error(), held) { // the other was faster
			err = Run(ctx, cfg, func(Packet) error { return nil })
		}
		first <- err
	}()
	var err error
	for end := time.Now().Add(20 * time.Second); err == nil && time.Now().Before(end); {
		second := cfg
		second.For = time.Millisecond
		err = Run(t.Context(), second, func(Packet) error { return nil })
		time.Sleep(10 * time.Millisecond) // the first has its turn
	}
	if err == nil || !strings.Contains(err.Error(), held) {
		t.Errorf("err = %v", err)
	}
	cancel()
	if err := <-first; err != nil && !strings.Contains(err.Error(), held) {
		t.Error(err)
	}
}
