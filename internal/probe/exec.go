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

// longestOutput is how much of a command's output is kept, to tell why it failed.
const longestOutput = 256

// Exec makes a probe that has s.Exec: the command ends with 0, or the error says why not. The command gets the agent's
// environment. When the time is over, it is killed with all that it started.
func (p *Prober) Exec(ctx context.Context, s Spec) error {
	if len(s.Exec.Command) == 0 {
		return errors.New("the probe has no command")
	}
	ctx, cancel := s.within(ctx)
	defer cancel()
	// The kernel kills the command with the thread that started it, so that one has to stay.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.CommandContext(ctx, s.Exec.Command[0], s.Exec.Command[1:]...)
	var output head
	cmd.Stdout, cmd.Stderr = &output, &output
	cmd.WaitDelay = time.Second // for what the command left behind with its output open
	ownGroup(cmd)
	err := cmd.Run()
	if err == nil || errors.Is(err, exec.ErrWaitDelay) && cmd.ProcessState.Success() {
		return nil
	}
	if text := output.text(); text != "" && ctx.Err() == nil {
		err = fmt.Errorf("%w: %s", err, text)
	}
	return s.failed(ctx, err)
}

// head keeps the beginning of what is written to it.
type head struct{ kept []byte }

func (h *head) Write(p []byte) (int, error) {
	h.kept = append(h.kept, p[:min(len(p), longestOutput-len(h.kept))]...)
	return len(p), nil
}

func (h *head) text() string { return strings.TrimSpace(strings.ToValidUTF8(string(h.kept), "")) }
