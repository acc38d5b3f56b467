package mesh

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/pilotfish-mesh/pilotfish/internal/usage"
)

// The guard is a small helper process that continues to run if the mesh is killed. It reads from a pipe whose write end
// closes when the mesh's process ends. If the mesh has not written orderlyExit before, the guard kills the mesh's
// remaining processes and removes its runtime directory. The kernel itself kills the direct children of the mesh, but
// not their descendants.

// orderlyExit is the message that the mesh writes into the pipe when it exits normally.
const orderlyExit = "in order\n"

// minGuardInterval is the minimum time between two starts of the guard.
const minGuardInterval = time.Second

// cleanupGuard is a running guard process.
type cleanupGuard struct {
	cmd  *exec.Cmd
	pipe *os.File
	done chan struct{}
}

// startGuard starts the guard and restarts it if it is killed.
func (m *Mesh) startGuard(context.Context) error {
	if len(m.cfg.GuardCommand) == 0 {
		return nil
	}
	g, err := m.newGuard()
	if err != nil {
		return err
	}
	ending, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		m.superviseGuard(g, ending)
	}()
	m.addCleanup(func() {
		close(ending)
		<-ended
	})
	return nil
}

func (m *Mesh) newGuard() (*cleanupGuard, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("creating the pipe of the cleanup guard: %w", err)
	}
	args := append(append([]string(nil), m.cfg.GuardCommand...), m.cfg.RuntimeDir, m.Name(), strconv.Itoa(os.Getpid()))
	cmd := exec.Command(args[0], args[1:]...) // #nosec G204 -- the command is our own executable
	cmd.Stdin, cmd.Dir, cmd.Env = r, "/", []string{"PATH=/usr/bin:/bin"}
	cmd.SysProcAttr = guardAttributes()
	err = cmd.Start()
	_ = r.Close()
	if err != nil {
		_ = w.Close()
		return nil, fmt.Errorf("starting the cleanup guard: %w", err)
	}
	g := &cleanupGuard{cmd: cmd, pipe: w, done: make(chan struct{})}
	go func() {
		defer close(g.done)
		_ = cmd.Wait()
	}()
	return g, nil
}

// superviseGuard restarts the guard whenever it ends. It returns when the mesh ends.
func (m *Mesh) superviseGuard(g *cleanupGuard, ending <-chan struct{}) {
	for g != nil {
		began := time.Now()
		select {
		case <-ending:
			_, _ = io.WriteString(g.pipe, orderlyExit)
			_ = g.pipe.Close()
			<-g.done
			return
		case <-g.done:
			_ = g.pipe.Close()
		}
		m.logf("the cleanup guard, which removes processes and files of the mesh if this process is killed, exited (%v); restarting the guard", g.cmd.ProcessState)
		g = m.restartGuard(minGuardInterval-time.Since(began), ending)
	}
}

// restartGuard waits for the duration pause, starts a guard, and retries until it succeeds. It returns nil if the mesh
// ends before.
func (m *Mesh) restartGuard(pause time.Duration, ending <-chan struct{}) *cleanupGuard {
	for logged := false; ; pause = minGuardInterval {
		select {
		case <-ending:
			return nil
		case <-time.After(pause):
		}
		g, err := m.newGuard()
		if err == nil {
			return g
		}
		if !logged {
			m.logf("error: %v; if this process is killed, the processes and files of the mesh remain", err)
			logged = true
		}
	}
}

// NewGuardCommand returns the hidden command that runs the guard; see Config.GuardCommand.
func NewGuardCommand() *cobra.Command {
	var remove string
	c := &cobra.Command{
		Use:    "guard RUNTIME-DIR MESH PID",
		Short:  "Clean up after a killed mesh (pilotfish up starts this command)",
		Hidden: true,
		Args:   usage.Args("RUNTIME-DIR", "MESH", "PID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			pid, err := strconv.Atoi(args[2])
			if err != nil {
				return fmt.Errorf("PID %q: write the number of the process to guard", args[2])
			}
			if waitOrderlyExit(cmd.InOrStdin()) {
				return nil
			}
			if remove != "" {
				defer os.RemoveAll(remove)
			}
			return cleanUp(args[0], args[1], pid)
		},
	}
	c.Flags().StringVar(&remove, "remove", "", "additional directory that the guard removes if the mesh was killed")
	return c
}

// waitOrderlyExit waits until the mesh's process ends. It reports whether the mesh exited normally.
func waitOrderlyExit(in io.Reader) bool {
	message, err := io.ReadAll(io.LimitReader(in, int64(len(orderlyExit))))
	return err == nil && string(message) == orderlyExit
}

// lockReleaseTimeout is how long the guard waits for the mesh's lock. When the mesh's process is killed, the kernel
// may close its end of the pipe before it releases the lock.
const lockReleaseTimeout = 5 * time.Second

// cleanUp removes the processes and files that remain after process pid of the mesh called name was killed. base is
// the directory that contains the mesh's runtime directory.
func cleanUp(base, name string, pid int) error {
	deadline := time.Now().Add(lockReleaseTimeout)
	for {
		dir, err := claimRuntimeDir(base, name)
		var running *AlreadyRunningError
		switch {
		case err == nil:
			dir.remove()
			return nil
		case !errors.As(err, &running):
			return err
		case running.PID != pid || time.Now().After(deadline):
			return nil // the next run of the mesh has already claimed the directory and removed the old files
		}
		time.Sleep(5 * time.Millisecond)
	}
}
