package xt

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	netlock "github.com/pilotfish-mesh/pilotfish/iptables/namespace"
)

// namespace is the network namespace that programs are run in.
type namespace struct {
	fd   int           // 0 or less: that of the calling thread
	turn *netlock.Turn // that they are part of, if they are of one
}

const (
	commandLimit = 40 * time.Second // more than the wait for the lock
	versionLimit = 5 * time.Second
	// drainLimit bounds how long what a program started may hold its output open after its end: binaries may be wrappers. A
	// busy machine takes a second to read the output of one that has ended well.
	drainLimit  = 10 * time.Second
	outputLimit = 16 << 20
)

// ownLock is a file that every process has for itself. The lock of iptables-legacy is by default one for the whole host,
// where we would wait for whoever works on other namespaces; that of the namespace itself is held by us already.
const ownLock = "/proc/self/comm"

// run runs a program of iptables in the namespace.
func (n namespace) run(ctx context.Context, input, path string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, commandLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C", "XTABLES_LOCKFILE=" + ownLock}
	if n.turn != nil {
		if held := n.turn.Held(); held != nil {
			cmd.ExtraFiles = []*os.File{held}
		}
	}
	cmd.Stdin = strings.NewReader(input)
	cmd.WaitDelay = drainLimit
	var out, trouble bounded
	cmd.Stdout, cmd.Stderr = &out, &trouble
	// Start is what has to be in the namespace; the rest may go on elsewhere.
	if err := n.within(cmd.Start); err != nil {
		return "", err
	}
	err := cmd.Wait()
	switch {
	case err != nil && ctx.Err() != nil:
		return "", fmt.Errorf("%s did not end: %w", path, ctx.Err())
	case err != nil:
		return "", fmt.Errorf("%s: %w: %s", path, err, complaint(trouble.String()))
	case out.full:
		return "", fmt.Errorf("%s printed more than %d MiB", path, outputLimit>>20)
	}
	return out.String(), nil
}

// complaint is what a program said of its failure, on one line.
func complaint(said string) string {
	return strings.Join(strings.FieldsFunc(said, func(r rune) bool { return r == '\n' }), "; ")
}

// bounded keeps the first of what is written to it. It is a Writer and nothing else: io.Copy would go past Write to a
// ReadFrom.
type bounded struct {
	kept bytes.Buffer
	full bool
}

func (b *bounded) Write(p []byte) (int, error) {
	if room := outputLimit - b.kept.Len(); len(p) > room {
		b.full = true
		b.kept.Write(p[:room])
		return len(p), nil
	}
	return b.kept.Write(p)
}

func (b *bounded) String() string { return b.kept.String() }

// legacyTables names the tables of the legacy flavour that the namespace has. To list one that it has not would make it.
func (n namespace) legacyTables(family string) ([]string, error) {
	var data []byte
	err := n.within(func() (err error) {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		data, err = os.ReadFile("/proc/thread-self/net/" + family)
		return err
	})
	if errors.Is(err, os.ErrNotExist) { // the kernel has no such flavour, or not yet
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("which tables iptables-legacy has: %w", err)
	}
	return strings.Fields(string(data)), nil
}
