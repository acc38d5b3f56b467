package agent

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// forgetProgram drops the program's own read-only pages from this process. They are the file's: what is used again is
// mapped again from the page cache. Initialisation touches nearly all of them (each linked message type registers
// itself), and hardly any is needed afterwards.
func forgetProgram() {
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return
	}
	for lines := bufio.NewScanner(bytes.NewReader(maps)); lines.Scan(); {
		if start, end, ok := readOnlyPart(lines.Text(), program); ok {
			madvise(start, end)
		}
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

// madvise is best effort: without it the process is larger, and right.
func madvise(start, end uintptr) {
	_, _, _ = unix.Syscall(unix.SYS_MADVISE, start, end-start, unix.MADV_DONTNEED)
}
