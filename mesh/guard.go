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
)

// The guard is a small process that outlives a mesh that was killed. It holds the read end of a pipe: when the mesh's
// process ends, however that happens, the pipe ends, and unless the mesh said that all is in order, the guard kills
// what is left of it and removes its runtime directory. The kernel kills the mesh's children with it anyway; but what
// they started themselves, and the files, only someone who is still there can clear away.

// inOrder is what the mesh writes into the pipe before an ordered end.
const inOrder = "in order\n"

// guardPause is how long a guard lives at least, or is waited for before the next one is started.
const guardPause = time.Second

// guard is a guard that was started.
type guard struct {
	cmd   *exec.Cmd
	pipe  *os.File
	ended chan struct{}
}

// startGuard starts the guard, and another one should it be killed.
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
		m.keepGuard(g, ending)
	}()
	m.onEnd(func() {
		close(ending)
		<-ended
	})
	return nil
}

func (m *Mesh) newGuard() (*guard, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("making the guard's pipe: %w", err)
	}
	args := append(append([]string(nil), m.cfg.GuardCommand...), m.cfg.RuntimeDir, m.Name(), strconv.Itoa(os.Getpid()))
	cmd := exec.Command(args[0], args[1:]...) // #nosec G204 -- our own executable
	cmd.Stdin, cmd.Dir, cmd.Env = r, "/", []string{"PATH=/usr/bin:/bin"}
	cmd.SysProcAttr = guardAttributes()
	err = cmd.Start()
	_ = r.Close()
	if err != nil {
		_ = w.Close()
		return nil, fmt.Errorf("starting the guard: %w", err)
	}
	g := &guard{cmd: cmd, pipe: w, ended: make(chan struct{})}
	go func() {
		defer close(g.ended)
		_ = cmd.Wait()
	}()
	return g, nil
}

// keepGuard has a guard there until the mesh ends.
func (m *Mesh) keepGuard(g *guard, ending <-chan struct{}) {
	for g != nil {
		began := time.Now()
		select {
		case <-ending:
			_, _ = io.WriteString(g.pipe, inOrder)
			_ = g.pipe.Close()
			<-g.ended
			return
		case <-g.ended:
			_ = g.pipe.Close()
		}
		m.say("the guard, which clears up should this process be killed, has ended (%v): another one is started", g.cmd.ProcessState)
		g = m.nextGuard(guardPause-time.Since(began), ending)
	}
}

// nextGuard starts a guard after a pause, as often as it takes; nil when the mesh ends before.
func (m *Mesh) nextGuard(pause time.Duration, ending <-chan struct{}) *guard {
	for told := false; ; pause = guardPause {
		select {
		case <-ending:
			return nil
		case <-time.After(pause):
		}
		g, err := m.newGuard()
		if err == nil {
			return g
		}
		if !told {
			m.say("error: %v: should this process be killed, nobody clears up after it", err)
			told = true
		}
	}
}

// NewGuardCommand is the guard: a hidden command of the executable that Config.GuardCommand names.
func NewGuardCommand() *cobra.Command {
	var remove string
	c := &cobra.Command{
		Use:    "guard RUNTIME-DIR MESH PID",
		Short:  "Clean up after a mesh that was killed (started by up itself)",
		Hidden: true,
		Args:   cobra.ExactArgs(3),
		RunE: func(cmd *cobra.Command, args []string) error {
			pid, err := strconv.Atoi(args[2])
			if err != nil {
				return fmt.Errorf("the process to guard: %w", err)
			}
			if endedInOrder(cmd.InOrStdin()) {
				return nil
			}
			if remove != "" {
				defer os.RemoveAll(remove)
			}
			return clearUp(args[0], args[1], pid)
		},
	}
	c.Flags().StringVar(&remove, "remove", "", "folder that goes too when the mesh was killed")
	return c
}

// endedInOrder waits for the end of the mesh's process.
func endedInOrder(in io.Reader) bool {
	said, err := io.ReadAll(io.LimitReader(in, int64(len(inOrder))))
	return err == nil && string(said) == inOrder
}

// dyingTime is how long the lock of a process that dies may outlive its pipe.
const dyingTime = 5 * time.Second

// clearUp takes away what a mesh left whose process was killed.
func clearUp(base, name string, pid int) error {
	deadline := time.Now().Add(dyingTime)
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
			return nil // the next run of the mesh was faster, and has cleared up itself
		}
		time.Sleep(5 * time.Millisecond)
	}
}
