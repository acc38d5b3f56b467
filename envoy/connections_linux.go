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
// since it may have closed its listeners. Connections of the ports excepted do not count; those that one side has ended do.
func (p *Process) Clients(ports map[uint64]bool, except ...uint32) (int, error) {
	descriptors, err := socketDescriptors(p.pid)
	if err != nil {
		return 0, fmt.Errorf("counting the clients of Envoy %d: %w", p.pid, err)
	}
	first, last := temporaryPorts()
	n := 0
	err = eachSocket(p.pid, func(s socket) {
		port := portOf(s.local)
		_, own := descriptors[s.inode]
		if own && s.state != stateListening && !slices.Contains(except, uint32(port)) && (ports[port] || port < first || port > last) {
			n++
		}
	})
	return n, err
}

// kernelsPart is what the kernel takes from the Envoy on any connection before that has to keep bytes itself.
const kernelsPart = 8 << 10

// Untaken counts the bytes that wait in the kernel on connections that the Envoy made itself, for servers that read more
// slowly than they are sent to. Where it is less than kernelsPart the Envoy has nothing more for that server, and may end:
// the kernel delivers the rest. A server that is gone, such as an unreachable collector of logs, takes nothing ever.
func (p *Process) Untaken() (uint64, error) {
	descriptors, err := socketDescriptors(p.pid)
	if err != nil {
		return 0, fmt.Errorf("looking at the connections of Envoy %d: %w", p.pid, err)
	}
	listens, waiting := make(map[uint64]bool), make(map[uint64]uint64) // by local port
	err = eachSocket(p.pid, func(s socket) {
		if _, own := descriptors[s.inode]; !own {
			return
		}
		if s.state == stateListening {
			listens[portOf(s.local)] = true
		} else if n := s.unsent(); n >= kernelsPart && !s.unanswered() {
			waiting[portOf(s.local)] += n
		}
	})
	first, last := temporaryPorts()
	n := uint64(0)
	for port, bytes := range waiting {
		if !listens[port] && port >= first && port <= last {
			n += bytes
		}
	}
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

// stateListening is the state of sockets in /proc/net/tcp that listen.
const stateListening = "0A"

// socket is a TCP socket as /proc/net/tcp has it.
type socket struct{ family, local, state, queues, resent, probes, inode string }

// parseSocket reads a line of that file, as the kernel's Documentation/networking/proc_net_tcp.rst has it.
func parseSocket(family, line string) (s socket, ok bool) {
	fields := strings.Fields(line)
	if len(fields) < 10 {
		return s, false
	}
	return socket{family, fields[1], fields[3], fields[4], fields[6], fields[8], fields[9]}, true
}

// unsent is how much of what was written to it the other side has not taken.
func (s socket) unsent() uint64 {
	text, _, _ := strings.Cut(s.queues, ":")
	n, _ := strconv.ParseUint(text, 16, 64)
	return n
}

// mostUnanswered is how often the kernel may repeat itself, to send anew or to ask whether more may be sent, before nobody is
// taken to be there: the third time is some two seconds after the first. Each answer begins the count anew.
const mostUnanswered = 3

// unanswered says whether the other side does not even confirm what it gets. One that only reads slowly does.
func (s socket) unanswered() bool {
	resent, _ := strconv.ParseUint(s.resent, 16, 64)
	probes, _ := strconv.ParseUint(s.probes, 10, 64)
	return max(resent, probes) >= mostUnanswered
}

// eachSocket goes through the TCP sockets of a process's network.
func eachSocket(pid int, f func(socket)) error {
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
			if s, ok := parseSocket(family, lines.Text()); ok {
				f(s)
			}
		}
		_ = file.Close()
		if err := lines.Err(); err != nil {
			return err
		}
	}
	return nil
}
