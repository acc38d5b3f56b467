package cgroup

import (
	"path/filepath"
	"strconv"
	"strings"
)

// OOMKills returns how many processes of the group the OOM killer has killed, and the file with the kernel's counter.
// ok is false if the kernel does not count them.
func (g Group) OOMKills() (count uint64, file string, ok bool) {
	for _, at := range []struct {
		controller controller
		file       string
	}{{unified, "memory.events"}, {memory, "memory.oom_control"}} {
		for _, dir := range g.dirs(at.controller) {
			file := filepath.Join(dir, at.file)
			if n, ok := parseOOMKills(g.read(file)); ok {
				return n, file, true
			}
		}
	}
	return 0, "", false
}

// parseOOMKills parses the line "oom_kill N".
func parseOOMKills(text string) (uint64, bool) {
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, "oom_kill "); ok {
			n, err := strconv.ParseUint(strings.TrimSpace(value), 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}
