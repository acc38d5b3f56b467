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
	versionTimeout    = 10 * time.Second
	validateTimeout   = 30 * time.Second
	maxValidateOutput = 64 << 10
	// outputWaitDelay limits how long a binary's output is read after the binary's exit. If the binary is a wrapper
	// script, its children may hold the output open. On a busy machine, reading the output after a normal exit can take
	// a second.
	outputWaitDelay = 10 * time.Second
)

// InvalidError reports a configuration that Envoy rejects.
type InvalidError struct {
	Path, ConfigPath string
	// Reason is Envoy's error message.
	Reason string
	Err    error
}

func (e *InvalidError) Error() string {
	return fmt.Sprintf("Envoy %s does not accept %s: %s", e.Path, e.ConfigPath, e.Reason)
}

func (e *InvalidError) Unwrap() error { return e.Err }

// Validate runs an Envoy binary to check the bootstrap and the other options. This Envoy does not start listeners. If
// it rejects the options, the error is an *InvalidError.
func Validate(ctx context.Context, path string, o Options) error {
	o.HotRestart, o.LogFormat = nil, "" // extractError parses Envoy's default format
	o.Extra = append(o.Extra[:len(o.Extra):len(o.Extra)], "--mode", "validate")
	ctx, cancel := context.WithTimeout(ctx, validateTimeout)
	defer cancel()
	out, err := runBinary(ctx, path, validateTimeout, o.Args()...)
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return fmt.Errorf("validating %s with %s: %w", o.ConfigPath, path, err)
	}
	return &InvalidError{Path: path, ConfigPath: o.ConfigPath, Reason: extractError(out.String()), Err: err}
}

// linePrefix matches the prefix of Envoy's log lines: time, thread, level, component, source line.
var linePrefix = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^\[[^\]]*\]\[\d+\]\[(error|critical)\]\[[^\]]*\] (\[[^\]]*\] )?`)
})

// extractError returns the last error in a binary's output, with its continuation lines.
func extractError(output string) string {
	lines := strings.Split(strings.TrimSpace(output), "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		if prefix := linePrefix().FindString(lines[i]); prefix != "" {
			lines[i] = lines[i][len(prefix):]
			return strings.Join(strings.Fields(strings.Join(lines[i:], " ")), " ")
		}
	}
	return firstLine(strings.Join(strings.Fields(output), " "))
}

// runBinary runs a binary and returns the beginning of its output. It ends the binary after timeout.
func runBinary(ctx context.Context, path string, timeout time.Duration, args ...string) (*headBuffer, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	out := &headBuffer{limit: maxValidateOutput}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Stdout, cmd.Stderr = out, out
	setProcessGroup(cmd)
	cmd.Cancel = func() error { return killGroup(cmd.Process.Pid) }
	cmd.WaitDelay = outputWaitDelay
	err := cmd.Run()
	if ctx.Err() != nil {
		err = fmt.Errorf("no response within %v: %w", timeout, context.Cause(ctx))
	}
	return out, err
}
