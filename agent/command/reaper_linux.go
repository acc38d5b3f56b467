package command

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

// minZombieAge is the minimum age of a zombie before it is reaped as orphaned. Younger zombies may be children for
// whose exit the agent itself waits.
const minZombieAge = 2 * time.Second

// reapOrphans reaps orphaned processes until ctx ends. If this process is the first of its container, the kernel makes
// it the parent of orphans. Without reaping, each exited orphan would occupy an entry in the process table. own reports
// whether the agent itself waits for a process; reapOrphans does not reap such processes.
func reapOrphans(ctx context.Context, own func(pid int) bool) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGCHLD)
	defer signal.Stop(signals)
	var seen map[int]bool
	timer := time.NewTimer(minZombieAge) // children may have exited before the first SIGCHLD was received
	defer timer.Stop()
	waiting := true
	for {
		select {
		case <-ctx.Done():
			return
		case <-signals:
			if !waiting {
				timer.Reset(minZombieAge)
				waiting = true
			}
		case <-timer.C:
			seen = reapZombies(seen, own)
			if waiting = len(seen) > 0; waiting {
				timer.Reset(minZombieAge)
			}
		}
	}
}

// reapZombies reaps the zombies in before, which the previous call returned. It returns the zombies that were not in
// before. It ignores the processes for which own returns true.
func reapZombies(before map[int]bool, own func(int) bool) map[int]bool {
	fresh := map[int]bool{}
	for _, pid := range zombieChildren("/proc", os.Getpid()) {
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

// zombieChildren returns the PIDs of parent's zombie children. proc is the directory of the proc file system.
func zombieChildren(proc string, parent int) []int {
	files, _ := filepath.Glob(filepath.Join(proc, "[0-9]*", "stat"))
	var dead []int
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // the process no longer exists
		}
		// format: pid (name) state ppid …; the name may contain any character, including parentheses
		_, rest, _ := strings.Cut(string(text[max(0, strings.LastIndexByte(string(text), ')')):]), ") ")
		fields := strings.Fields(rest)
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err == nil && len(fields) > 1 && fields[0] == "Z" && fields[1] == strconv.Itoa(parent) {
			dead = append(dead, pid)
		}
	}
	return dead
}
