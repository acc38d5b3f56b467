package check

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
)

// process is a process on this machine. Its start time distinguishes it from a later process with the same ID.
type process struct {
	pid, parent int
	name        string
	start       uint64 // clock ticks since boot
}

// readProcess parses /proc/PID/stat (proc(5)). The name is in parentheses and may contain any character.
func readProcess(pid int) (process, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return process{}, err
	}
	return parseStat(pid, string(data))
}

func parseStat(pid int, stat string) (process, error) {
	open, end := strings.IndexByte(stat, '('), strings.LastIndexByte(stat, ')')
	if open < 0 || end < open {
		return process{}, fmt.Errorf("unexpected content of /proc/%d/stat: %q", pid, stat)
	}
	fields := strings.Fields(stat[end+1:]) // the third and later fields: state, ppid, …
	if len(fields) < 20 {
		return process{}, fmt.Errorf("unexpected content of /proc/%d/stat: %q", pid, stat)
	}
	parent, err := strconv.Atoi(fields[1])
	if err != nil {
		return process{}, err
	}
	start, err := strconv.ParseUint(fields[19], 10, 64)
	return process{pid: pid, parent: parent, name: stat[open+1 : end], start: start}, err
}

// isAlive reports whether the same process still exists, even as a zombie.
func (p process) isAlive() bool {
	now, err := readProcess(p.pid)
	return err == nil && now.start == p.start
}

// descendants returns the processes in known that still exist, and all descendants of these and of root. It omits root
// itself.
func descendants(root int, known []int) ([]process, error) {
	all, err := processes()
	if err != nil {
		return nil, err
	}
	members := map[int]bool{root: true}
	for _, pid := range known {
		members[pid] = true
	}
	for grown := true; grown; {
		grown = false
		for _, p := range all {
			if members[p.parent] && !members[p.pid] {
				members[p.pid], grown = true, true
			}
		}
	}
	delete(members, root)
	return slices.DeleteFunc(all, func(p process) bool { return !members[p.pid] }), nil
}

func processes() ([]process, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("listing processes in /proc, which exists only on Linux: %w", err)
	}
	var all []process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if p, err := readProcess(pid); err == nil { // an error means that the process has exited
			all = append(all, p)
		}
	}
	return all, nil
}

// tcpListeners returns the IPv4 addresses and ports of all listening TCP sockets.
func tcpListeners() ([]netip.AddrPort, error) {
	data, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		return nil, err
	}
	return parseTCP(string(data))
}

// parseTCP returns the listening addresses in /proc/net/tcp. The second column is the local address in hexadecimal, in
// native byte order. The fourth column is the state, where 0A means LISTEN.
func parseTCP(table string) ([]netip.AddrPort, error) {
	var all []netip.AddrPort
	for line := range strings.Lines(table) {
		fields := strings.Fields(line)
		if len(fields) < 4 || fields[3] != "0A" {
			continue
		}
		host, port, _ := strings.Cut(fields[1], ":")
		address, err := hex.DecodeString(host)
		number, portErr := strconv.ParseUint(port, 16, 16)
		if err != nil || portErr != nil || len(address) != 4 {
			return nil, fmt.Errorf("unexpected address in /proc/net/tcp: %q", fields[1])
		}
		var ip [4]byte
		binary.BigEndian.PutUint32(ip[:], binary.NativeEndian.Uint32(address))
		all = append(all, netip.AddrPortFrom(netip.AddrFrom4(ip), uint16(number)))
	}
	return all, nil
}

// unixSockets returns the names of all named unix sockets.
func unixSockets() ([]string, error) {
	data, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		return nil, err
	}
	var names []string
	for line := range strings.Lines(string(data)) {
		// Num RefCount Protocol Flags Type St Inode Path
		if fields := strings.Fields(line); len(fields) == 8 && fields[0] != "Num" {
			names = append(names, fields[7])
		}
	}
	return names, nil
}
