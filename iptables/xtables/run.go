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
	fd   int           // file descriptor; 0 or less selects the calling thread's namespace
	lock *netlock.Lock // namespace lock, which programs inherit; nil for none
}

func (n namespace) runInside(f func() error) error { return netlock.Do(n.fd, f) }

const (
	commandLimit = 40 * time.Second // longer than iptables waits for its lock
	versionLimit = 5 * time.Second
	// drainLimit limits how long the output of a program is read after the program has exited. If the binary is a
	// wrapper script, its child processes may hold the output open. On a busy machine, reading the output after a
	// normal exit can take a second.
	drainLimit  = 10 * time.Second
	outputLimit = 16 << 20
)

// ownLock is the lock file for iptables-legacy. It is a different file in each process, so programs never wait for this
// lock. The lock is not necessary, because the caller holds the namespace lock. All namespaces of the host share the
// default lock file, so changes in other namespaces would delay this one.
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
	// The child process inherits the namespace of the thread that starts it.
	if err := n.runInside(cmd.Start); err != nil {
		return "", err
	}
	err := cmd.Wait()
	switch {
	case err != nil && ctx.Err() != nil:
		return "", fmt.Errorf("%s did not exit in time: %w", path, ctx.Err())
	case err != nil:
		return "", fmt.Errorf("%s: %w: %s", path, err, errorOutput(trouble.String()))
	case out.full:
		return "", fmt.Errorf("the output of %s exceeds %d MiB", path, outputLimit>>20)
	}
	return out.String(), nil
}

// errorOutput returns a program's error output as one line.
func errorOutput(said string) string {
	return strings.Join(strings.FieldsFunc(said, func(r rune) bool { return r == '\n' }), "; ")
}

// limitedBuffer retains the first outputLimit bytes that are written to it. It does not embed bytes.Buffer, because
// io.Copy would then call ReadFrom and bypass Write.
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

// legacyTables returns the names of the namespace's iptables-legacy tables. The caller must read only these tables,
// because the kernel creates a table that does not exist when it is read.
func (n namespace) legacyTables() (map[iptables.Families][]string, error) {
	names := map[iptables.Families][]string{}
	err := n.runInside(func() error {
		runtime.LockOSThread() // /proc/thread-self refers to this thread
		defer runtime.UnlockOSThread()
		for family, file := range map[iptables.Families]string{iptables.IPv4: "ip_tables_names", iptables.IPv6: "ip6_tables_names"} {
			data, err := os.ReadFile("/proc/thread-self/net/" + file)
			// The file does not exist if the kernel does not support iptables-legacy or has not loaded its module.
			// Permission is denied if the namespace belongs to a user namespace that had no mapped users when it was
			// created (unshare --user --net). Only the machine's root can then read the file.
			if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, os.ErrPermission) {
				return fmt.Errorf("listing the tables of iptables-legacy: %w", err)
			}
			names[family] = strings.Fields(string(data))
		}
		return nil
	})
	return names, err
}
