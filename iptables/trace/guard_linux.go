package trace

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// The guard is a process that outlives a trace that was killed. It holds the read end of a pipe, and the files that loggers
// are put back by. When the trace ends, however that happens, the pipe ends; unless the trace said before that all is in
// order, the guard puts back what was there.

// inOrder is what a trace writes into the pipe before its end.
const inOrder = "in order\n"

// firstFile is the descriptor of the first file that a guard is handed.
const firstFile = 3

// A guard needs the log group for itself. The kernel frees that of a killed trace a moment after the pipe's end; but another
// trace may have begun meanwhile, which would hear nothing any more if the logger were put back, and which does not know what
// that was before. So the guard waits for as long as a trace may take.
const (
	freeing      = Longest + time.Minute
	freeingPause = 20 * time.Millisecond
)

type guard struct {
	cmd  *exec.Cmd
	pipe io.WriteCloser
}

// startGuard starts a guard in the namespace of the calling thread, for all that was noted of loggers.
func startGuard(args []string, given []formerLogger) (g *guard, err error) {
	g = &guard{cmd: &exec.Cmd{Path: "/proc/self/exe", Args: slices.Clone(args)}}
	for _, former := range given {
		g.cmd.Args, g.cmd.ExtraFiles = append(g.cmd.Args, former.name), append(g.cmd.ExtraFiles, former.file)
	}
	g.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // a terminal's interrupt is for the trace alone
	if g.pipe, err = g.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err = g.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the process that puts the packets' logger back if this one is killed: %w", err)
	}
	return g, nil
}

// dismiss ends the guard. What was to be put back was, so that it does not matter if the guard was killed before.
func (g *guard) dismiss() {
	_, _ = io.WriteString(g.pipe, inOrder)
	_ = g.pipe.Close()
	_ = g.cmd.Wait()
}

// PutBack is the work of a guard, with the names of the loggers that it was started with. It returns when the trace has
// ended.
func PutBack(names []string) error {
	if said, _ := io.ReadAll(os.Stdin); string(said) == inOrder {
		return nil
	}
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	switch err := takeGroup(conn, freeing, freeingPause); {
	case isTaken(err): // who logs packets for so long is no trace, and has the logger that he needs
		return nil
	case err != nil:
		return err
	}
	var errs []error
	for i, name := range names {
		file := os.NewFile(uintptr(firstFile+i), name)
		_, err := file.WriteString(name)
		errs = append(errs, err, file.Close())
	}
	return errors.Join(errs...)
}
