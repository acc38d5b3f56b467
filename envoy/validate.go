package envoy

import (
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"time"
)

const (
	versionTime  = 10 * time.Second
	validateTime = 30 * time.Second
	mostReport   = 64 << 10
	// drainLimit bounds how long what a binary started may hold its output open after its end: it may be a wrapper. A busy
	// machine takes a second to read the output of one that has ended well.
	drainLimit = 10 * time.Second
)

// InvalidError says that an Envoy does not take a configuration.
type InvalidError struct {
	Path, ConfigPath string
	// Reason is what Envoy says of it.
	Reason string
	Err    error
}

func (e *InvalidError) Error() string {
	return fmt.Sprintf("Envoy %s does not accept %s: %s", e.Path, e.ConfigPath, e.Reason)
}

func (e *InvalidError) Unwrap() error { return e.Err }

// Validate asks a binary whether it accepts the bootstrap and the other options. It starts nothing that serves. The error
// is an *InvalidError when Envoy says no, with its reason.
func Validate(ctx context.Context, path string, o Options) error {
	o.HotRestart = nil
	o.Extra = append(o.Extra[:len(o.Extra):len(o.Extra)], "--mode", "validate")
	ctx, cancel := context.WithTimeout(ctx, validateTime)
	defer cancel()
	out, err := ask(ctx, path, validateTime, o.Args()...)
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return fmt.Errorf("asking %s to validate %s: %w", path, o.ConfigPath, err)
	}
	return &InvalidError{Path: path, ConfigPath: o.ConfigPath, Reason: complaint(out.String()), Err: err}
}

// linePrefix is what Envoy writes before each message: time, thread, level, component, place in the source.
var linePrefix = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^\[[^\]]*\]\[\d+\]\[(error|critical)\]\[[^\]]*\] (\[[^\]]*\] )?`)
})

// complaint finds the reason in what a binary wrote: the last error, with the lines that belong to it.
func complaint(output string) string {
	lines := strings.Split(strings.TrimSpace(output), "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		if prefix := linePrefix().FindString(lines[i]); prefix != "" {
			lines[i] = lines[i][len(prefix):]
			return strings.Join(strings.Fields(strings.Join(lines[i:], " ")), " ")
		}
	}
	return firstLine(strings.Join(strings.Fields(output), " "))
}

// ask runs a binary that answers and ends.
func ask(ctx context.Context, path string, timeout time.Duration, args ...string) (*headBuffer, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	out := &headBuffer{limit: mostReport}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Stdout, cmd.Stderr = out, out
	ownGroup(cmd)
	cmd.Cancel = func() error { return killGroup(cmd.Process.Pid) }
	cmd.WaitDelay = drainLimit
	err := cmd.Run()
	if ctx.Err() != nil {
		err = fmt.Errorf("no answer within %v: %w", timeout, context.Cause(ctx))
	}
	return out, err
}
