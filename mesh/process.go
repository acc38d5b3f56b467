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

// outputGrace is how long the output of a process that ended is still read: something it started may hold the pipe open.
const outputGrace = 200 * time.Millisecond

// command is what to start.
type command struct {
	Args   []string
	Env    []string
	Dir    string
	Output func(line string)
	// Enter takes the thread that starts it to where the process is to be; nil: where this process is.
	Enter func() error
}

// process is a running child: the leader of a process group of its own, which dies with us.
type process struct {
	PID     int
	Started time.Time

	done chan struct{}
	exit Exit
}

// startProcess starts a child. What it starts itself stays in its group, and is killed when the leader ends.
func startProcess(c command) (*process, error) {
	path, err := findProgram(c)
	if err != nil {
		return nil, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("making a pipe for the output: %w", err)
	}
	cmd := &exec.Cmd{Path: path, Args: c.Args, Env: c.Env, Dir: c.Dir, Stdout: w, Stderr: w, SysProcAttr: childAttributes()}
	p := &process{done: make(chan struct{})}
	result := make(chan error)
	go p.live(cmd, c, r, w, result)
	if err := <-result; err != nil {
		return nil, err
	}
	return p, nil
}

// live starts the child and waits for its end, all on one thread: the kernel kills the child when the *thread* that
// started it ends (see prctl(2), PR_SET_PDEATHSIG), so this thread has to live as long as the child.
func (p *process) live(cmd *exec.Cmd, c command, r, w *os.File, result chan<- error) {
	if c.Enter != nil {
		netns.OnThread(func() { p.liveHere(cmd, c, r, w, result) })
		return
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	p.liveHere(cmd, c, r, w, result)
}

func (p *process) liveHere(cmd *exec.Cmd, c command, r, w *os.File, result chan<- error) {
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

	out := &lines{emit: c.Output}
	read := make(chan struct{})
	go func() { defer close(read); copyLines(r, out) }()
	awaitExit(p.PID)
	killGroup(p.PID, syscall.SIGKILL) // what the leader left behind; its number cannot be another's before it is reaped
	_ = cmd.Wait()
	select {
	case <-read:
	case <-time.After(outputGrace):
		_ = r.Close()
		<-read
	}
	_ = r.Close()
	p.exit = exitOf(cmd.ProcessState, p.Started, out.last())
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

// findProgram resolves the program's name as a shell would in the child's place: by the child's PATH, and from its
// directory.
func findProgram(c command) (string, error) {
	name := c.Args[0]
	if info, err := os.Stat(c.Dir); c.Dir != "" && (err != nil || !info.IsDir()) {
		return "", fmt.Errorf("the working directory %s is not there: create it, or mend workingDir", c.Dir)
	}
	if filepath.Base(name) != name {
		path := name
		if !filepath.IsAbs(path) {
			path = filepath.Join(c.Dir, path)
		}
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 == 0 {
			return "", fmt.Errorf("%s is not executable: make the file executable (`chmod +x`), or mend the command's first item", path)
		}
		if _, err := exec.LookPath(path); err != nil {
			return "", fmt.Errorf("%s cannot be run (%w): mend the command's first item, or make the file executable", path, reason(err))
		}
		return path, nil
	}
	var mayNot string
	for _, dir := range filepath.SplitList(lookupEnv(c.Env, "PATH")) {
		if dir == "" || !filepath.IsAbs(dir) {
			continue
		}
		path, err := exec.LookPath(filepath.Join(dir, name))
		if err == nil {
			return path, nil
		}
		if mayNot == "" && errors.Is(err, fs.ErrPermission) && isThere(filepath.Join(dir, name)) {
			mayNot = filepath.Join(dir, name)
		}
	}
	if mayNot != "" {
		return "", fmt.Errorf("%s is not executable: make the file executable (`chmod +x`), or mend the command's first item", mayNot)
	}
	return "", noProgramError{fmt.Errorf("no program %q in PATH: install it, or give its path as the command's first item", name)}
}

// isThere says whether there is such a file. In a directory that may not be searched none is found.
func isThere(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// reason is the innermost error, without the path that the message around it has already.
func reason(err error) error {
	if e, ok := err.(*exec.Error); ok {
		err = e.Err
	}
	if e, ok := err.(*os.PathError); ok {
		err = e.Err
	}
	return err
}

// stop asks the process's group to end, and kills it when kill is closed. It returns when the process has ended.
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

// lookupEnv is the last value of a variable in an environment.
func lookupEnv(env []string, name string) string {
	value := ""
	for _, e := range env {
		if len(e) > len(name) && e[len(name)] == '=' && e[:len(name)] == name {
			value = e[len(name)+1:]
		}
	}
	return value
}
