package portowner

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

const maxCommand = 160

// lookUp returns the processes that prevent another process from binding ip and port. It finds the inodes of the
// sockets, and then the processes that have these sockets open.
func lookUp(network string, ip netip.Addr, port uint16) []Holder {
	protocol := "tcp"
	if strings.HasPrefix(network, "udp") {
		protocol = "udp"
	}
	inodes := make(map[string]bool)
	for _, file := range []string{"/proc/net/" + protocol, "/proc/net/" + protocol + "6"} {
		f, err := os.Open(file)
		if err != nil {
			continue
		}
		for _, s := range parseSockets(f) {
			if s.blocks(ip, port) {
				inodes["socket:["+s.inode+"]"] = true
			}
		}
		_ = f.Close()
	}
	if len(inodes) == 0 {
		return nil
	}
	return owners(inodes)
}

// owners returns the processes that have one of the sockets open. The keys of links are "socket:[INODE]". It omits
// processes of other users, which it cannot inspect.
func owners(links map[string]bool) []Holder {
	var found []Holder
	processes, _ := os.ReadDir("/proc")
	for _, entry := range processes {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || !holdsAny(pid, links) {
			continue
		}
		found = append(found, Holder{PID: pid, Command: readCommand(pid)})
	}
	slices.SortFunc(found, func(a, b Holder) int { return a.PID - b.PID })
	return found
}

func holdsAny(pid int, links map[string]bool) bool {
	dir := filepath.Join("/proc", strconv.Itoa(pid), "fd")
	fds, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	for _, fd := range fds {
		if link, err := os.Readlink(filepath.Join(dir, fd.Name())); err == nil && links[link] {
			return true
		}
	}
	return false
}

// readCommand returns a process's command line as one line without control characters, truncated to maxCommand bytes.
// It returns "" if it cannot read the command line.
func readCommand(pid int) string {
	raw, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	if err != nil {
		return ""
	}
	text := strings.TrimSpace(strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, string(raw)))
	if len(text) > maxCommand {
		text = strings.ToValidUTF8(text[:maxCommand], "") + "…"
	}
	return text
}
