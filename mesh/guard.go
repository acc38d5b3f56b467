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

// startGuard starts the guard.
func (m *Mesh) startGuard(context.Context) error {
	if len(m.cfg.GuardCommand) == 0 {
		return nil
	}
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("making the guard's pipe: %w", err)
	}
	args := append(append([]string(nil), m.cfg.GuardCommand...), m.cfg.RuntimeDir, m.Name(), strconv.Itoa(os.Getpid()))
	cmd := exec.Command(args[0], args[1:]...) // #nosec G204 -- our own executable
	cmd.Stdin, cmd.Dir, cmd.Env = r, "/", []string{"PATH=/usr/bin:/bin"}
	cmd.SysProcAttr = guardAttributes()
	err = cmd.Start()
	_ = r.Close()
	if err != nil {
		_ = w.Close()
		return fmt.Errorf("starting the guard: %w", err)
	}
	m.onEnd(func() {
		_, _ = io.WriteString(w, inOrder)
		_ = w.Close()
		_ = cmd.Wait()
	})
	return nil
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
