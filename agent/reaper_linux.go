package agent

import (
	"context"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// reapAfter is how long a dead child may lie before it is taken for one that nobody here waits for. Whoever started a
// child here waits for it, and is told of its end at once.
const reapAfter = 2 * time.Second

// reapOrphans takes in the processes that were left to this one because it is the first of its container, when they end.
// Nothing else does, and each would keep its place in the process table. own says which processes have an owner here.
func reapOrphans(ctx context.Context, own func(pid int) bool) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGCHLD)
	defer signal.Stop(signals)
	var seen map[int]bool
	timer := time.NewTimer(reapAfter) // a child may have died before
	defer timer.Stop()
	waiting := true
	for {
		select {
		case <-ctx.Done():
			return
		case <-signals:
			if !waiting {
				timer.Reset(reapAfter)
				waiting = true
			}
		case <-timer.C:
			seen = reapSeen(seen, own)
			if waiting = len(seen) > 0; waiting {
				timer.Reset(reapAfter)
			}
		}
	}
}

// reapSeen takes in the dead children that were seen before, and gives those that are seen now for the first time.
func reapSeen(before map[int]bool, own func(int) bool) map[int]bool {
	fresh := map[int]bool{}
	for _, pid := range deadChildren("/proc", os.Getpid()) {
		switch {
		case own(pid):
		case before[pid]:
			_, _ = syscall.Wait4(pid, nil, syscall.WNOHANG, nil)
		default:
			fresh[pid] = true
		}
	}
	return fresh
}

// deadChildren are the children of a process that have ended and were not waited for.
func deadChildren(proc string, parent int) []int {
	files, _ := filepath.Glob(filepath.Join(proc, "[0-9]*", "stat"))
	var dead []int
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it is gone
		}
		// pid (name) state ppid …; the name may have any character, brackets too
		_, rest, _ := strings.Cut(string(text[max(0, strings.LastIndexByte(string(text), ')')):]), ") ")
		fields := strings.Fields(rest)
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err == nil && len(fields) > 1 && fields[0] == "Z" && fields[1] == strconv.Itoa(parent) {
			dead = append(dead, pid)
		}
	}
	return dead
}
