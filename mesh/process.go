package mesh

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"github.com/pilotfish-mesh/pilotfish/mesh/netns"
)

// outputGrace is how long output is read after a process has ended. Descendants of the process may still have the pipe
// open.
const outputGrace = 200 * time.Millisecond

// command describes a process to start.
type command struct {
	Args   []string
	Env    []string
	Dir    string
	Output func(line string)
	// Enter moves the starting thread to the namespaces for the process. If it is nil, the process has the same
	// namespaces as this process.
	Enter func() error
}

// process is a running child process and the leader of its own process group. When this program dies, the kernel kills
// the child, but not the other members of the group.
type process struct {
	PID     int
	Started time.Time

	done chan struct{}
	exit Exit
}

// startProcess starts a child process. Descendants of the child that stay in its process group are killed when the
// child ends.
func startProcess(c command) (*process, error) {
	path, err := findProgram(c)
	if err != nil {
		return nil, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("creating a pipe for the output: %w", err)
	}
	cmd := &exec.Cmd{Path: path, Args: c.Args, Env: c.Env, Dir: c.Dir, Stdout: w, Stderr: w, SysProcAttr: childAttributes()}
	p := &process{done: make(chan struct{})}
	result := make(chan error)
	go p.run(cmd, c, r, w, result)
	if err := <-result; err != nil {
		return nil, err
	}
	return p, nil
}

// run starts the child and waits for its end, both on one thread. The kernel kills the child when the *thread* that
// started it ends (see prctl(2), PR_SET_PDEATHSIG), so this thread must run as long as the child.
func (p *process) run(cmd *exec.Cmd, c command, r, w *os.File, result chan<- error) {
	if c.Enter != nil {
		netns.OnThread(func() { p.startAndWait(cmd, c, r, w, result) })
		return
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	p.startAndWait(cmd, c, r, w, result)
}

func (p *process) startAndWait(cmd *exec.Cmd, c command, r, w *os.File, result chan<- error) {
	p.Started = time.Now()
	err := enterAndStart(c.Enter, cmd)
	_ = w.Close()
	if err != nil {
		_ = r.Close()
		result <- fmt.Errorf("starting %s: %w", cmd.Path, err)
		return
	}
	p.PID = cmd.Process.Pid
	result <- nil

	out := &lineWriter{emit: c.Output}
	read := make(chan struct{})
	go func() { defer close(read); copyLines(r, out) }()
	awaitExit(p.PID)
	// Kill the descendants in the group; the kernel cannot reuse the group ID before the leader is reaped.
	killGroup(p.PID, syscall.SIGKILL)
	_ = cmd.Wait()
	select {
	case <-read:
	case <-time.After(outputGrace):
		_ = r.Close()
		<-read
	}
	_ = r.Close()
	p.exit = newExit(cmd.ProcessState, p.Started, out.last())
	close(p.done)
}

func enterAndStart(enter func() error, cmd *exec.Cmd) error {
	if enter != nil {
		if err := enter(); err != nil {
			return err
		}
	}
	return cmd.Start()
}

// findProgram resolves the program's name as a shell would: with the child's PATH and working directory.
func findProgram(c command) (string, error) {
	name := c.Args[0]
	if info, err := os.Stat(c.Dir); c.Dir != "" && (err != nil || !info.IsDir()) {
		return "", fmt.Errorf("the working directory %s is not an accessible directory: create the directory, or correct workingDir", c.Dir)
	}
	if filepath.Base(name) != name {
		path := name
		if !filepath.IsAbs(path) {
			path = filepath.Join(c.Dir, path)
		}
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 == 0 {
			return "", fmt.Errorf("%s is not executable: make the file executable (`chmod +x`), or fix the first item of command", path)
		}
		if _, err := exec.LookPath(path); err != nil {
			return "", fmt.Errorf("%s cannot be executed (%w): fix the first item of command, or make the file executable", path, withoutPath(err))
		}
		return path, nil
	}
	var notExecutable string
	for _, dir := range filepath.SplitList(lookupEnv(c.Env, "PATH")) {
		if dir == "" || !filepath.IsAbs(dir) {
			continue
		}
		path, err := exec.LookPath(filepath.Join(dir, name))
		if err == nil {
			return path, nil
		}
		if notExecutable == "" && errors.Is(err, fs.ErrPermission) && exists(filepath.Join(dir, name)) {
			notExecutable = filepath.Join(dir, name)
		}
	}
	if notExecutable != "" {
		return "", fmt.Errorf("%s is not executable: make the file executable (`chmod +x`), or fix the first item of command", notExecutable)
	}
	return "", noProgramError{fmt.Errorf("no program %q in PATH: install the program, or set its path as the first item of command", name)}
}

// exists reports whether the file exists. It returns false in a directory without search permission.
func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// withoutPath returns the error without the path, because the caller's message already contains the path.
func withoutPath(err error) error {
	if e, ok := err.(*exec.Error); ok {
		err = e.Err
	}
	if e, ok := err.(*os.PathError); ok {
		err = e.Err
	}
	return err
}

// stop sends SIGTERM to the process's group, and SIGKILL when kill is closed. It returns when the process has ended.
func (p *process) stop(kill <-chan struct{}) Exit {
	killGroup(p.PID, syscall.SIGTERM)
	select {
	case <-p.done:
		return p.exit
	case <-kill:
	}
	killGroup(p.PID, syscall.SIGKILL)
	<-p.done
	return p.exit
}

// lookupEnv returns the last value of a variable in an environment.
func lookupEnv(env []string, name string) string {
	value := ""
	for _, e := range env {
		if len(e) > len(name) && e[len(name)] == '=' && e[:len(name)] == name {
			value = e[len(name)+1:]
		}
	}
	return value
}
