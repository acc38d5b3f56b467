package logging

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/spf13/pflag"
)

// syncBuffer is a buffer that several goroutines may use.
type syncBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// openLog opens a log with flags, and returns the content of stderr.
func openLog(t *testing.T, flags ...string) (*Log, *syncBuffer) {
	t.Helper()
	var o Options
	f := pflag.NewFlagSet("", pflag.ContinueOnError)
	o.AddTo(f)
	if err := f.Parse(flags); err != nil {
		t.Fatal(err)
	}
	out := &syncBuffer{}
	l, err := o.Open(io.Discard, out)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l, out
}

func TestLogFlagsDecideWhatIsLogged(t *testing.T) {
	for name, c := range map[string]struct {
		flags          []string
		want, wantNone string
	}{
		"default":             {nil, "plain-info xds-info", "debug"},
		"bare level":          {[]string{"--log_output_level=debug"}, "plain-debug xds-debug", "none"},
		"default scope":       {[]string{"--log_output_level=default:warn"}, "plain-warn xds-warn", "info"},
		"all scopes":          {[]string{"--log_output_level=all:debug"}, "plain-debug xds-debug", "none"},
		"one part":            {[]string{"--log_output_level=default:warn,xds:debug"}, "plain-warn xds-debug", "plain-info"},
		"Istio's scope":       {[]string{"--log_output_level=xdsproxy:debug"}, "plain-info xds-debug", "plain-debug"},
		"a scope of no part":  {[]string{"--log_output_level=default:info,wasm:debug"}, "plain-info xds-info", "debug"},
		"none":                {[]string{"--log_output_level=none"}, "", "error"},
		"error":               {[]string{"--log_output_level=error"}, "plain-error", "warn"},
		"caller of a part":    {[]string{"--log_caller=xds"}, "xds\tlogging/log_test.go", ""},
		"stack trace":         {[]string{"--log_stacktrace_level=error"}, "runtime/debug.Stack", ""},
		"no caller, no stack": {nil, "plain-error", "logging/log_test.go goroutine"},
		"ignored flag":        {[]string{"--vklog=9"}, "plain-info", "debug"},
	} {
		t.Run(name, func(t *testing.T) {
			l, out := openLog(t, c.flags...)
			l.Debug("plain-debug")
			l.Info("plain-info")
			l.Warn("plain-warn")
			l.Error("plain-error")
			xds := l.With("part", "xds").With("more", 1)
			xds.Debug("xds-debug")
			xds.Info("xds-info")
			xds.Warn("xds-warn")
			for _, want := range strings.Split(c.want, " ") {
				if !strings.Contains(out.String(), want) {
					t.Errorf("%q is missing:\n%s", want, out)
				}
			}
			for _, wrong := range strings.Fields(c.wantNone) {
				if strings.Contains(out.String(), wrong) {
					t.Errorf("%q is logged:\n%s", wrong, out)
				}
			}
		})
	}
}

func TestLogInJSONHasIstiosFields(t *testing.T) {
	l, out := openLog(t, "--log_as_json")
	l.With("part", "xds").Warn("lost")
	var line struct{ Level, Msg, Scope, Time string }
	if err := json.Unmarshal([]byte(out.String()), &line); err != nil {
		t.Fatal(err)
	}
	if line.Level != "warn" || line.Msg != "lost" || line.Scope != "xds" || line.Time == "" {
		t.Errorf("%+v", line)
	}
}

func TestInvalidLogFlagIsRejected(t *testing.T) {
	for want, o := range map[string]Options{
		"did you mean debug":     {level: "debgu", stack: "none"},
		"--log_stacktrace_level": {level: "info", stack: "loud"},
		"existing, writable":     {level: "info", stack: "none", targets: []string{"/nowhere/agent.log"}},
	} {
		_, err := o.Open(io.Discard, io.Discard)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

func TestLogFileIsReopenedWhenItWasMovedAway(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "agent.log")
	l, out := openLog(t, "--log_target="+path+",stderr")
	l.Info("one")
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	l.Info("two")
	if err := l.Reopen(); err != nil {
		t.Fatal(err)
	}
	l.Info("three")
	before, _ := os.ReadFile(path + ".1")
	after, _ := os.ReadFile(path)
	if got := string(before); !strings.Contains(got, "one") || !strings.Contains(got, "two") || strings.Contains(got, "three") {
		t.Errorf("the file that was moved away contains %q", got)
	}
	if got := string(after); strings.Contains(got, "two") || !strings.Contains(got, "three") {
		t.Errorf("the new file contains %q", got)
	}
	if got := out.String(); !strings.Contains(got, "three") {
		t.Errorf("the other target contains %q", got)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v: want mode 0600", info, err)
	}
}

func TestUnreopenableLogFileStaysInUse(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "logs")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	l, _ := openLog(t, "--log_target="+filepath.Join(dir, "agent.log"))
	if err := os.Rename(dir, dir+".moved"); err != nil {
		t.Fatal(err)
	}
	if err := l.Reopen(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Reopen: %v", err)
	}
	l.Info("still here")
	if text, err := os.ReadFile(filepath.Join(dir+".moved", "agent.log")); err != nil || !strings.Contains(string(text), "still here") {
		t.Errorf("%q, %v", text, err)
	}
}

func TestHiddenFlagsDoNotHideOtherFlags(t *testing.T) {
	f := pflag.NewFlagSet("test", pflag.ContinueOnError)
	f.Int("other", 0, "")
	AddHiddenFlags(f)
	if err := f.Parse([]string{"--log_output_level=debug", "--other=1"}); err != nil {
		t.Error(err)
	}
	if f.Lookup("other").Hidden || !f.Lookup("log_target").Hidden {
		t.Errorf("hidden: other %t, log_target %t, want false and true", f.Lookup("other").Hidden, f.Lookup("log_target").Hidden)
	}
}
