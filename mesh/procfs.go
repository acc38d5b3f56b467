package mesh

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// procInfo identifies a process. The process ID alone is not sufficient, because the kernel reuses process IDs.
type procInfo struct {
	PID int `json:"pid"`
	// Start is the start time in clock ticks since boot.
	Start   uint64 `json:"start"`
	Command string `json:"command"`
}

// readProcInfo reads a process from /proc. It fails if the process does not exist.
func readProcInfo(pid int) (procInfo, error) {
	stat, err := readStat(pid)
	if err != nil {
		return procInfo{}, err
	}
	raw, err := os.ReadFile(procFile(pid, "cmdline"))
	if err != nil {
		return procInfo{}, err
	}
	command := strings.TrimSpace(strings.ReplaceAll(string(raw), "\x00", " "))
	return procInfo{PID: pid, Start: stat.start, Command: command}, nil
}

type procStat struct {
	parent, group int
	start         uint64
	zombie        bool
}

// readStat parses /proc/PID/stat (proc_pid_stat(5)). Its second field is a name in parentheses that can contain any
// character.
func readStat(pid int) (procStat, error) {
	raw, err := os.ReadFile(procFile(pid, "stat"))
	if err != nil {
		return procStat{}, err
	}
	end := bytes.LastIndexByte(raw, ')')
	fields := strings.Fields(string(raw[end+1:]))
	if end < 0 || len(fields) < 20 {
		return procStat{}, fmt.Errorf("/proc/%d/stat has an unexpected format", pid)
	}
	var s procStat
	s.zombie = fields[0] == "Z" || fields[0] == "X"
	s.parent, _ = strconv.Atoi(fields[1])
	s.group, _ = strconv.Atoi(fields[2])
	s.start, err = strconv.ParseUint(fields[19], 10, 64)
	return s, err
}

func procFile(pid int, name string) string { return filepath.Join("/proc", strconv.Itoa(pid), name) }

// programName returns the base name of a process's program for messages, or its process ID if that is unknown.
func programName(pid int) string {
	raw, _ := os.ReadFile(procFile(pid, "cmdline"))
	program, _, _ := strings.Cut(string(raw), "\x00")
	if program == "" {
		return fmt.Sprint("process ", pid)
	}
	return filepath.Base(program)
}

// processIDs returns the IDs of all processes.
func processIDs() []int {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	var pids []int
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// parentsOfProgram finds the processes whose program has the base name name. The result maps the ID of each such
// process's parent to the ID of the process.
func parentsOfProgram(name string) map[int]int {
	found := map[int]int{}
	for _, pid := range processIDs() {
		raw, err := os.ReadFile(procFile(pid, "cmdline"))
		if err != nil {
			continue
		}
		program, _, _ := strings.Cut(string(raw), "\x00")
		if filepath.Base(program) != name {
			continue
		}
		if s, err := readStat(pid); err == nil && !s.zombie {
			found[s.parent] = pid
		}
	}
	return found
}

// processesWithVariable returns the other processes whose environment contains assignment (NAME=value). It finds only
// processes whose environment this user may read.
func processesWithVariable(assignment string) []int {
	var found []int
	for _, pid := range processIDs() {
		env, err := os.ReadFile(procFile(pid, "environ"))
		if err != nil || pid == os.Getpid() {
			continue
		}
		if bytes.HasPrefix(env, []byte(assignment+"\x00")) || bytes.Contains(env, []byte("\x00"+assignment+"\x00")) {
			found = append(found, pid)
		}
	}
	return found
}

// bootID returns the kernel's identifier of the current boot.
func bootID() string {
	id, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id))
}
