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

// runVariable marks every process of a run in its environment. What an application starts inherits it, so that even
// what left its process group can be recognised as ours.
const runVariable = "PILOTFISH_RUN"

// ledger is the record of a run's processes, on disk, so that whoever comes after a run that was killed can tell its
// processes from all others, and end them.
type ledger struct {
	path string

	mu  sync.Mutex
	run runRecord
}

type runRecord struct {
	Run       string     `json:"run"`
	Boot      string     `json:"boot"`
	Mesh      procInfo   `json:"mesh"`
	Processes []procInfo `json:"processes"`
}

const ledgerFile = "processes.json"

// openLedger begins the record of a run.
func openLedger(dir, run string) (*ledger, error) {
	self, _ := inspect(os.Getpid())
	l := &ledger{path: filepath.Join(dir, ledgerFile), run: runRecord{Run: run, Boot: bootID(), Mesh: self}}
	return l, l.write()
}

// add records a process that was started.
func (l *ledger) add(pid int) error {
	info, err := inspect(pid)
	if err != nil {
		return nil // it is gone already
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.run.Processes = append(l.run.Processes, info)
	return l.write()
}

// remove forgets a process that has ended. A record that cannot be written is one process too long, which does no harm.
func (l *ledger) remove(pid int) {
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

func (l *ledger) write() error {
	data, err := json.Marshal(l.run)
	if err != nil {
		return fmt.Errorf("recording the processes: %w", err)
	}
	return writeFile(l.path, data, 0o600)
}

// killLeftovers ends what is left of a run that did not end in order: the processes it recorded, where number, start
// and command are still the same, and whatever carries the run's mark. It returns their programs, one for each process.
func killLeftovers(dir string) ([]string, error) {
	data, err := os.ReadFile(filepath.Join(dir, ledgerFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	var run runRecord
	if err == nil {
		err = json.Unmarshal(data, &run)
	}
	if err != nil {
		return nil, nil // the run died before its record was complete; it had started nothing then
	}
	if run.Run == "" || run.Boot != bootID() {
		return nil, nil
	}
	return run.kill()
}

// kill ends the run's processes, again and again until none is left: one may start another meanwhile. It returns when
// all have given back what they held, their ports above all; and the processes' programs, one for each.
func (r runRecord) kill() (programs []string, err error) {
	deadline := time.Now().Add(3 * time.Second)
	killed := map[int]uint64{} // and when they started
	for {
		left := r.alive()
		for pid := range left {
			if _, again := killed[pid]; !again {
				programs = append(programs, programOf(pid))
			}
			killOne(pid)
		}
		maps.Copy(killed, left)
		dying := stillThere(killed)
		if len(dying) == 0 {
			return programs, nil
		}
		if time.Now().After(deadline) {
			return programs, fmt.Errorf("processes %v of this mesh do not end: end them with kill -9", dying)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// alive are the run's processes that still run, and when each started. One that is ending has no command line and no
// environment any more, but may still hold a port.
func (r runRecord) alive() map[int]uint64 {
	found := map[int]uint64{}
	for _, p := range r.Processes {
		now, err := inspect(p.PID)
		if err == nil && now.Start == p.Start && (now.Command == p.Command || now.Command == "") && !zombie(p.PID) {
			found[p.PID] = p.Start
		}
	}
	for _, pid := range withVariable(runVariable + "=" + r.Run) {
		if s, err := readStat(pid); err == nil && !s.zombie {
			found[pid] = s.start
		}
	}
	return found
}

// stillThere are those of the processes that have not ended yet.
func stillThere(processes map[int]uint64) []int {
	var pids []int
	for pid, start := range processes {
		if s, err := readStat(pid); err == nil && s.start == start && !s.zombie {
			pids = append(pids, pid)
		}
	}
	return pids
}

func zombie(pid int) bool {
	s, err := readStat(pid)
	return err != nil || s.zombie
}

func killOne(pid int) {
	if p, err := os.FindProcess(pid); err == nil {
		_ = p.Signal(syscall.SIGKILL)
	}
}
