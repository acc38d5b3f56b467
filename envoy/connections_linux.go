package envoy

import (
	"bufio"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

// ListenPorts returns the TCP ports on which Envoy listens.
func (p *Process) ListenPorts() (map[uint64]bool, error) {
	listens, err := listListeners(p.pid)
	if err != nil {
		return nil, fmt.Errorf("listing the listening ports of Envoy process %d: %w", p.pid, err)
	}
	ports := make(map[uint64]bool)
	for address := range listens.own {
		ports[parsePort(address)] = true
	}
	return ports, nil
}

// CountClients counts the TCP connections that Envoy has accepted. It reads /proc and does not call Envoy. ports
// contains Envoy's last known listening ports, because Envoy may have closed its listeners since. CountClients counts a
// connection if its local port is in ports, or is not in the kernel's range for outgoing connections. It also counts
// half-closed connections, but not connections to the ports in except.
func (p *Process) CountClients(ports map[uint64]bool, except ...uint32) (int, error) {
	descriptors, err := socketDescriptors(p.pid)
	if err != nil {
		return 0, fmt.Errorf("counting the clients of Envoy process %d: %w", p.pid, err)
	}
	first, last := ephemeralPorts()
	n := 0
	err = forEachSocket(p.pid, func(s socket) {
		port := parsePort(s.local)
		_, own := descriptors[s.inode]
		if own && s.state != stateListening && !slices.Contains(except, uint32(port)) && (ports[port] || port < first || port > last) {
			n++
		}
	})
	return n, err
}

// kernelSendBuffer is the number of bytes that the kernel buffers at least for each connection. Envoy buffers data
// itself only if the kernel accepts no more.
const kernelSendBuffer = 8 << 10

// PendingUpstreamBytes returns the number of bytes that slow servers have not acknowledged, on the connections that
// Envoy opened. The bytes are in the kernel's buffers. Connections with less than kernelSendBuffer pending bytes are
// not counted: Envoy has no more data for these servers, and the kernel delivers the rest even after Envoy's exit.
// Unresponsive servers, such as an unreachable log collector, are not counted either.
func (p *Process) PendingUpstreamBytes() (uint64, error) {
	descriptors, err := socketDescriptors(p.pid)
	if err != nil {
		return 0, fmt.Errorf("listing the connections of Envoy process %d: %w", p.pid, err)
	}
	listens, waiting := make(map[uint64]bool), make(map[uint64]uint64) // by local port
	err = forEachSocket(p.pid, func(s socket) {
		if _, own := descriptors[s.inode]; !own {
			return
		}
		if s.state == stateListening {
			listens[parsePort(s.local)] = true
		} else if n := s.pendingBytes(); n >= kernelSendBuffer && !s.isUnresponsive() {
			waiting[parsePort(s.local)] += n
		}
	})
	first, last := ephemeralPorts()
	n := uint64(0)
	for port, bytes := range waiting {
		if !listens[port] && port >= first && port <= last {
			n += bytes
		}
	}
	return n, err
}

func parsePort(address string) uint64 {
	port, _ := strconv.ParseUint(address[strings.LastIndexByte(address, ':')+1:], 16, 16)
	return port
}

// ephemeralPorts returns the kernel's port range for outgoing connections.
func ephemeralPorts() (first, last uint64) {
	first, last = 32768, 60999
	if text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range"); err == nil {
		_, _ = fmt.Sscan(string(text), &first, &last)
	}
	return first, last
}

// stateListening is the state of listening sockets in /proc/net/tcp.
const stateListening = "0A"

// socket contains the fields of one line of /proc/net/tcp.
type socket struct{ family, local, state, queues, retransmits, probes, inode string }

// parseSocket parses a line of /proc/net/tcp. See the kernel's Documentation/networking/proc_net_tcp.rst.
func parseSocket(family, line string) (s socket, ok bool) {
	fields := strings.Fields(line)
	if len(fields) < 10 {
		return s, false
	}
	return socket{family, fields[1], fields[3], fields[4], fields[6], fields[8], fields[9]}, true
}

// pendingBytes returns the number of written bytes that the peer has not acknowledged.
func (s socket) pendingBytes() uint64 {
	text, _, _ := strings.Cut(s.queues, ":")
	n, _ := strconv.ParseUint(text, 16, 64)
	return n
}

// maxRetransmits is the number of retransmissions or window probes after which a peer counts as unreachable. The third
// retransmission is sent about two seconds after the first. An acknowledgement resets the count.
const maxRetransmits = 3

// isUnresponsive reports whether the peer no longer acknowledges data. A peer that only reads slowly still does.
func (s socket) isUnresponsive() bool {
	resent, _ := strconv.ParseUint(s.retransmits, 16, 64)
	probes, _ := strconv.ParseUint(s.probes, 10, 64)
	return max(resent, probes) >= maxRetransmits
}

// forEachSocket calls f for the TCP sockets in a process's network namespace.
func forEachSocket(pid int, f func(socket)) error {
	for _, family := range []string{"tcp", "tcp6"} {
		file, err := os.Open(fmt.Sprintf("/proc/%d/net/%s", pid, family))
		if os.IsNotExist(err) && family == "tcp6" {
			continue // the kernel has no IPv6
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
