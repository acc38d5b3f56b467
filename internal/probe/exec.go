package probe

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"time"
)

// maxOutput limits how many bytes of a command's output an error contains.
const maxOutput = 256

// Exec runs the command of s.Exec and returns nil if it exits with 0. The command inherits the agent's environment. At
// the timeout, Exec kills the command and all processes that it started.
func (p *Prober) Exec(ctx context.Context, s Spec) error {
	if len(s.Exec.Command) == 0 {
		return errors.New("the probe has no command")
	}
	ctx, cancel := s.withTimeout(ctx)
	defer cancel()
	// The kernel kills the command when the thread that started it exits, so the goroutine stays on that thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.CommandContext(ctx, s.Exec.Command[0], s.Exec.Command[1:]...)
	var output head
	cmd.Stdout, cmd.Stderr = &output, &output
	cmd.WaitDelay = time.Second // limits the wait for child processes that have the output open
	ownGroup(cmd)
	err := cmd.Run()
	if err == nil || errors.Is(err, exec.ErrWaitDelay) && cmd.ProcessState.Success() {
		return nil
	}
	if text := output.text(); text != "" && ctx.Err() == nil {
		err = fmt.Errorf("%w: %s", err, text)
	}
	return s.wrapError(ctx, err)
}

// head is a writer that stores the first maxOutput bytes.
type head struct{ kept []byte }

func (h *head) Write(p []byte) (int, error) {
	h.kept = append(h.kept, p[:min(len(p), maxOutput-len(h.kept))]...)
	return len(p), nil
}

func (h *head) text() string { return strings.TrimSpace(strings.ToValidUTF8(string(h.kept), "")) }
