package mesh

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// runVariable is set in the environment of every process of a run. Descendants inherit it. The variable therefore
// identifies even descendants that left their process group.
const runVariable = "PILOTFISH_RUN"

// runRecord is the record of a run's processes on disk. If the run is killed, the next run uses it to identify and kill
// the remaining processes.
type runRecord struct {
	path string

	mu  sync.Mutex
	run recordedRun
}

type recordedRun struct {
	Run       string     `json:"run"`
	Boot      string     `json:"boot"`
	Mesh      procInfo   `json:"mesh"`
	Processes []procInfo `json:"processes"`
}

const runRecordFile = "processes.json"

// newRunRecord creates the record of a run.
func newRunRecord(dir, run string) (*runRecord, error) {
	self, _ := readProcInfo(os.Getpid())
	l := &runRecord{path: filepath.Join(dir, runRecordFile), run: recordedRun{Run: run, Boot: bootID(), Mesh: self}}
	return l, l.write()
}

// add records a started process.
func (l *runRecord) add(pid int) error {
	info, err := readProcInfo(pid)
	if err != nil {
		return nil // the process has already ended
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.run.Processes = append(l.run.Processes, info)
	return l.write()
}

// remove deletes an ended process from the record. It ignores write errors, because an entry of an ended process is
// harmless.
func (l *runRecord) remove(pid int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	kept := l.run.Processes[:0]
	for _, p := range l.run.Processes {
		if p.PID != pid {
			kept = append(kept, p)
		}
	}
	l.run.Processes = kept
	_ = l.write()
}

func (l *runRecord) write() error {
	data, err := json.Marshal(l.run)
	if err != nil {
		return fmt.Errorf("recording the processes of the mesh: %w", err)
	}
	return writeFile(l.path, data, 0o600)
}

// killLeftovers kills the remaining processes of a killed run: recorded processes with the same ID, start time and
// command, and processes with the run's environment variable. It returns the program name of each killed process.
func killLeftovers(dir string) ([]string, error) {
	data, err := os.ReadFile(filepath.Join(dir, runRecordFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	var run recordedRun
	if err == nil {
		err = json.Unmarshal(data, &run)
	}
	if err != nil {
		return nil, nil // the run was killed before it wrote its first record, so it had not started any process
	}
	if run.Run == "" || run.Boot != bootID() {
		return nil, nil
	}
	return run.kill()
}

// kill kills the run's processes until none is left, because a process may start another one before it is killed. It
// returns when all of them have released their resources, especially ports. It returns the program name of each killed
// process.
func (r recordedRun) kill() (programs []string, err error) {
	deadline := time.Now().Add(3 * time.Second)
	killed := map[int]uint64{} // process ID → start time
	for {
		left := r.running()
		for pid := range left {
			if _, again := killed[pid]; !again {
				programs = append(programs, programName(pid))
			}
			killProcess(pid)
		}
		maps.Copy(killed, left)
		dying := stillRunning(killed)
		if len(dying) == 0 {
			return programs, nil
		}
		if time.Now().After(deadline) {
			return programs, fmt.Errorf("the processes %v of this mesh did not exit: stop them with kill -9", dying)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// running returns the start times of the run's running processes. A process that is exiting has no command line and no
// environment any more, but may still listen on a port. An empty command line therefore matches the record.
func (r recordedRun) running() map[int]uint64 {
	found := map[int]uint64{}
	for _, p := range r.Processes {
		now, err := readProcInfo(p.PID)
		if err == nil && now.Start == p.Start && (now.Command == p.Command || now.Command == "") && !isZombie(p.PID) {
			found[p.PID] = p.Start
		}
	}
	for _, pid := range processesWithVariable(runVariable + "=" + r.Run) {
		if s, err := readStat(pid); err == nil && !s.zombie {
			found[pid] = s.start
		}
	}
	return found
}

// stillRunning returns the processes that have not ended.
func stillRunning(processes map[int]uint64) []int {
	var pids []int
	for pid, start := range processes {
		if s, err := readStat(pid); err == nil && s.start == start && !s.zombie {
			pids = append(pids, pid)
		}
	}
	return pids
}

func isZombie(pid int) bool {
	s, err := readStat(pid)
	return err != nil || s.zombie
}

func killProcess(pid int) {
	if p, err := os.FindProcess(pid); err == nil {
		_ = p.Signal(syscall.SIGKILL)
	}
}
