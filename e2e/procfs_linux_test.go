package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// descendants returns the processes below one. The start time of each distinguishes it from a later process with its
// PID.
func descendants(t *testing.T, root int) map[int]string {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	parents := map[int]int{}
	for _, stat := range stats {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(stat)))
		if err != nil {
			t.Fatal(err)
		}
		if fields := statFields(pid); fields != nil {
			parents[pid], _ = strconv.Atoi(fields[1])
		}
	}
	found := map[int]string{}
	for pid := range parents {
		for up := parents[pid]; up != 0; up = parents[up] {
			if up == root {
				found[pid] = startTime(pid)
				break
			}
		}
	}
	return found
}

// statFields are those of /proc/PID/stat from the state on; nil when there is no such process.
func statFields(pid int) []string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil
	}
	i := strings.LastIndexByte(string(text), ')') // the name before it may hold anything
	if i < 0 {
		return nil
	}
	return strings.Fields(string(text)[i+1:])
}

// startTime is empty when there is no such process.
func startTime(pid int) string {
	fields := statFields(pid)
	if len(fields) < 20 || fields[0] == "Z" {
		return ""
	}
	return fields[19]
}

func commandLine(pid int) string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // empty if the process has ended
	return strings.ReplaceAll(string(text), "\x00", " ")
}
