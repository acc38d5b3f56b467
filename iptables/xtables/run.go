package xtables

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

	"github.com/pilotfish-mesh/pilotfish/iptables"
	netlock "github.com/pilotfish-mesh/pilotfish/iptables/namespace"
)

// namespace is the network namespace in which programs run.
type namespace struct {
	fd   int           // 0 or less: the calling thread's
	lock *netlock.Lock // the lock under which they run, if any
}

func (n namespace) runInside(f func() error) error { return netlock.Do(n.fd, f) }

const (
	commandLimit = 40 * time.Second // exceeds the wait for the lock
	versionLimit = 5 * time.Second
	// drainLimit limits how long descendants of a program may hold its output open after its exit: binaries may be
	// wrappers. A busy machine needs a second to read the output after a normal exit.
	drainLimit  = 10 * time.Second
	outputLimit = 16 << 20
)

// ownLock is a file that is private to each process. The default lock of iptables-legacy is shared by the whole host,
// so that changes in other namespaces would delay this one. The caller already holds the lock of the namespace.
const ownLock = "/proc/self/comm"

// run runs an iptables program in the namespace and returns its output.
func (n namespace) run(ctx context.Context, input, path string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, commandLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C", "XTABLES_LOCKFILE=" + ownLock}
	if n.lock != nil {
		if held := n.lock.File(); held != nil {
			cmd.ExtraFiles = []*os.File{held}
		}
	}
	cmd.Stdin = strings.NewReader(input)
	cmd.WaitDelay = drainLimit
	var out, trouble limitedBuffer
	cmd.Stdout, cmd.Stderr = &out, &trouble
	// Only Start must run in the namespace.
	if err := n.runInside(cmd.Start); err != nil {
		return "", err
	}
	err := cmd.Wait()
	switch {
	case err != nil && ctx.Err() != nil:
		return "", fmt.Errorf("%s did not end: %w", path, ctx.Err())
	case err != nil:
		return "", fmt.Errorf("%s: %w: %s", path, err, errorOutput(trouble.String()))
	case out.full:
		return "", fmt.Errorf("the output of %s exceeds %d MiB", path, outputLimit>>20)
	}
	return out.String(), nil
}

// errorOutput returns a program's error output on one line.
func errorOutput(said string) string {
	return strings.Join(strings.FieldsFunc(said, func(r rune) bool { return r == '\n' }), "; ")
}

// limitedBuffer retains the first bytes that are written to it. It embeds no other methods: io.Copy would bypass Write
// if it had ReadFrom.
type limitedBuffer struct {
	buffer bytes.Buffer
	full   bool
}

func (b *limitedBuffer) Write(p []byte) (int, error) {
	if room := outputLimit - b.buffer.Len(); len(p) > room {
		b.full = true
		b.buffer.Write(p[:room])
		return len(p), nil
	}
	return b.buffer.Write(p)
}

func (b *limitedBuffer) String() string { return b.buffer.String() }

// legacyTables returns the names of the namespace's legacy tables. Reading a table that does not exist would create it.
func (n namespace) legacyTables() (map[iptables.Families][]string, error) {
	names := map[iptables.Families][]string{}
	err := n.runInside(func() error {
		runtime.LockOSThread() // /proc/thread-self refers to this thread
		defer runtime.UnlockOSThread()
		for family, file := range map[iptables.Families]string{iptables.IPv4: "ip_tables_names", iptables.IPv6: "ip6_tables_names"} {
			data, err := os.ReadFile("/proc/thread-self/net/" + file)
			// Without the file, the kernel lacks this flavour or has not loaded it. Permission is denied if the namespace
			// belongs to a user namespace that had no mapped users at its creation (unshare --user --net). Only the
			// machine's root can then read the list.
			if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, os.ErrPermission) {
				return fmt.Errorf("listing the tables of iptables-legacy: %w", err)
			}
			names[family] = strings.Fields(string(data))
		}
		return nil
	})
	return names, err
}
