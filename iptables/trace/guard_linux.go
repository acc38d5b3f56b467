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

// The guard is a process that restores the loggers if the trace is killed. It holds the read end of a pipe and the
// files through which the loggers are restored. When the trace ends for any reason, the pipe is closed. Unless the
// trace has written guardDismissed before, the guard restores the loggers.

// guardDismissed is what a trace writes into the pipe before it ends.
const guardDismissed = "in order\n"

// firstFile is the descriptor of the first file that a guard inherits.
const firstFile = 3

// The guard must own the log group before it restores the loggers. The kernel releases the group of a killed trace
// shortly after the pipe is closed. Another trace may have started in the meantime. It would receive no more messages
// if the logger were restored, and it does not know the previous logger. So the guard waits for the maximum duration of
// a trace.
const (
	guardTimeout = MaxDuration + time.Minute
	guardPause   = 20 * time.Millisecond
)

type guard struct {
	cmd  *exec.Cmd
	pipe io.WriteCloser
}

// startGuard starts a guard for the previous loggers, in the namespace of the calling thread.
func startGuard(args []string, given []previousLogger) (g *guard, err error) {
	g = &guard{cmd: &exec.Cmd{Path: "/proc/self/exe", Args: slices.Clone(args)}}
	for _, former := range given {
		g.cmd.Args, g.cmd.ExtraFiles = append(g.cmd.Args, former.name), append(g.cmd.ExtraFiles, former.file)
	}
	g.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // the terminal's SIGINT reaches only the trace
	if g.pipe, err = g.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err = g.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the process that puts the packets' logger back if this one is killed: %w", err)
	}
	return g, nil
}

// dismiss ends the guard. The loggers have been restored by then, so it does not matter if the guard was killed
// earlier.
func (g *guard) dismiss() {
	_, _ = io.WriteString(g.pipe, guardDismissed)
	_ = g.pipe.Close()
	_ = g.cmd.Wait()
}

// PutBack is the main function of a guard; names are those of the previous loggers. It waits for the end of the trace.
func PutBack(names []string) error {
	if input, _ := io.ReadAll(os.Stdin); string(input) == guardDismissed {
		return nil
	}
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	switch err := bindGroup(conn, guardTimeout, guardPause); {
	case isGroupBusy(err): // the owner of the group is not a trace, and its logger must remain
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
