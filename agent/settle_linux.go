package agent

import (
	"bytes"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// pages are the program's own read-only pages.
type pages []struct{ start, end uintptr }

// program finds them; best effort, none is as good as any: the process is larger then, and right.
func program() pages {
	path, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return nil
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return nil
	}
	var p pages
	for line := range bytes.Lines(maps) {
		if start, end, ok := readOnlyPart(string(line), path); ok {
			p = append(p, struct{ start, end uintptr }{start, end})
		}
	}
	return p
}

// forget drops the pages from this process. They are the file's: what is used again is mapped again from the page cache.
// Initialisation touches nearly all of them (each linked message type registers itself), and hardly any is needed
// afterwards.
func (p pages) forget() {
	for _, part := range p {
		_, _, _ = unix.Syscall(unix.SYS_MADVISE, part.start, part.end-part.start, unix.MADV_DONTNEED)
	}
}

// readOnlyPart reads a line of /proc/self/maps, as
//
//	00400000-00c54000 r-xp 00000000 fe:00 9979007    /usr/local/bin/pilotfish-agent
func readOnlyPart(line, program string) (start, end uintptr, ok bool) {
	fields := strings.Fields(line)
	if len(fields) < 6 || fields[5] != program || !strings.HasSuffix(fields[1], "p") || strings.Contains(fields[1], "w") {
		return 0, 0, false
	}
	n, err := fmt.Sscanf(fields[0], "%x-%x", &start, &end)
	return start, end, err == nil && n == 2 && start < end
}
