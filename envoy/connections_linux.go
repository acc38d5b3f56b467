package envoy

import (
	"bufio"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

// Listens gives the TCP ports at which the Envoy listens.
func (p *Process) Listens() (map[uint64]bool, error) {
	listens, err := listening(p.pid)
	if err != nil {
		return nil, fmt.Errorf("finding where Envoy %d listens: %w", p.pid, err)
	}
	ports := make(map[uint64]bool)
	for address := range listens.own {
		ports[portOf(address)] = true
	}
	return ports, nil
}

// Clients counts the TCP connections that the Envoy has accepted, without asking it. Those that it made itself are told by
// their local port: a temporary one, at which nobody listens. The ports are those at which it listened as far as is known,
// since it may have closed its listeners. Connections of the ports excepted do not count.
func (p *Process) Clients(ports map[uint64]bool, except ...uint32) (int, error) {
	descriptors, err := socketDescriptors(p.pid)
	if err != nil {
		return 0, fmt.Errorf("counting the clients of Envoy %d: %w", p.pid, err)
	}
	first, last := temporaryPorts()
	n := 0
	err = eachSocket(p.pid, func(_, local, state, inode string) {
		port := portOf(local)
		_, own := descriptors[inode]
		if own && state == stateEstablished && !slices.Contains(except, uint32(port)) && (ports[port] || port < first || port > last) {
			n++
		}
	})
	return n, err
}

func portOf(address string) uint64 {
	port, _ := strconv.ParseUint(address[strings.LastIndexByte(address, ':')+1:], 16, 16)
	return port
}

// temporaryPorts is the range that the kernel takes ports of outgoing connections from.
func temporaryPorts() (first, last uint64) {
	first, last = 32768, 60999
	if text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range"); err == nil {
		_, _ = fmt.Sscan(string(text), &first, &last)
	}
	return first, last
}

// States of sockets in /proc/net/tcp.
const (
	stateEstablished = "01"
	stateListening   = "0A"
)

// eachSocket goes through the TCP sockets of a process's network.
func eachSocket(pid int, f func(family, local, state, inode string)) error {
	for _, family := range []string{"tcp", "tcp6"} {
		file, err := os.Open(fmt.Sprintf("/proc/%d/net/%s", pid, family))
		if os.IsNotExist(err) && family == "tcp6" {
			continue // a kernel without IPv6
		}
		if err != nil {
			return err
		}
		lines := bufio.NewScanner(file)
		for lines.Scan() {
			if fields := strings.Fields(lines.Text()); len(fields) >= 10 {
				f(family, fields[1], fields[3], fields[9])
			}
		}
		_ = file.Close()
		if err := lines.Err(); err != nil {
			return err
		}
	}
	return nil
}
