package agent

import (
	"bytes"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// programPages are the program's own read-only pages.
type programPages []struct{ start, end uintptr }

// readProgramPages reads the address ranges from /proc/self/maps. On an error it returns none; the process then only
// uses more memory.
func readProgramPages() programPages {
	path, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return nil
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return nil
	}
	var p programPages
	for line := range bytes.Lines(maps) {
		if start, end, ok := readOnlyPart(string(line), path); ok {
			p = append(p, struct{ start, end uintptr }{start, end})
		}
	}
	return p
}

// drop removes the pages from this process. They are backed by the program file and are mapped again from the page
// cache on access. Initialisation touches nearly all of them, because each linked message type registers itself; few
// are needed later.
func (p programPages) drop() {
	for _, part := range p {
		_, _, _ = unix.Syscall(unix.SYS_MADVISE, part.start, part.end-part.start, unix.MADV_DONTNEED)
	}
}

// readOnlyPart parses a line of /proc/self/maps, such as
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
