package envoy

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ReusePortSteering directs new connections to the newer of two Envoys that listen on the same ports. If several
// processes share a port by SO_REUSEPORT, the kernel distributes connections among them. When a process closes its
// socket, the kernel resets the connections in the accept queue of that socket. The queues of the older Envoy must
// therefore be empty when it closes its sockets.
//
// For each address, ReusePortSteering attaches a BPF program that selects the socket for a new connection by the
// socket's index. The kernel numbers the sockets of an address in the order in which they began to listen, so the
// sockets of the older Envoy have the lowest indexes. See SO_ATTACH_REUSEPORT_CBPF in socket(7).
type ReusePortSteering struct {
	groups []*socketGroup
}

// socketGroup describes the sockets that listen on one address.
type socketGroup struct {
	address    string
	oldCount   uint32 // number of sockets of the older Envoy
	newCount   uint32
	descriptor int // file descriptor of a socket of the newer Envoy, to which the program is attached
}

// SteerConnections directs new connections to the newer Envoy. The error lists the addresses for which it failed.
// Connections to the other addresses are directed nevertheless.
func SteerConnections(older, newer *Process) (*ReusePortSteering, error) {
	oldSockets, err := listListeners(older.pid)
	if err != nil {
		return &ReusePortSteering{}, fmt.Errorf("directing new connections to the new Envoy: %w", err)
	}
	newSockets, err := listListeners(newer.pid)
	if err != nil {
		return &ReusePortSteering{}, fmt.Errorf("directing new connections to the new Envoy: %w", err)
	}
	s, errs := &ReusePortSteering{}, []error(nil)
	for address, added := range newSockets.own {
		old := oldSockets.own[address]
		switch {
		case len(old) == 0:
			continue
		case len(old)+len(added) != newSockets.all[address]:
			errs = append(errs, fmt.Errorf("directing new connections to the new Envoy: other processes also listen on %s", address))
			continue
		}
		g := &socketGroup{address: address, oldCount: uint32(len(old)), newCount: uint32(len(added))}
		if g.descriptor, err = duplicateFD(newer.pid, added[0]); err == nil {
			s.groups = append(s.groups, g)
			err = g.attachProgram(g.newCount)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("directing new connections at %s to the new Envoy: %w", address, err))
		}
	}
	return s, errors.Join(errs...)
}

// ExcludeOld directs all connections to the newer Envoy's first socket. While the older Envoy closes its sockets one by
// one, only this socket's index stays valid.
func (s *ReusePortSteering) ExcludeOld() error {
	var errs []error
	for _, g := range s.groups {
		errs = append(errs, g.attachProgram(1))
	}
	return errors.Join(errs...)
}

// Stop detaches the programs, so that the kernel distributes connections again.
func (s *ReusePortSteering) Stop() {
	for _, g := range s.groups {
		_ = unix.SetsockoptInt(g.descriptor, unix.SOL_SOCKET, unix.SO_DETACH_REUSEPORT_BPF, 0)
		_ = unix.Close(g.descriptor)
	}
	s.groups = nil
}

// PortCount returns the number of addresses whose connections are directed to the newer Envoy.
func (s *ReusePortSteering) PortCount() int { return len(s.groups) }

// randomOffset is the address of a random number in a BPF program: SKF_AD_OFF + SKF_AD_RANDOM of linux/filter.h.
const randomOffset = 1<<32 - 0x1000 + 56

// attachProgram attaches a BPF program that selects at random one of the first n sockets of the newer Envoy.
func (g *socketGroup) attachProgram(n uint32) error {
	program := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: randomOffset},
		{Code: unix.BPF_ALU | unix.BPF_MOD | unix.BPF_K, K: n},
		{Code: unix.BPF_ALU | unix.BPF_ADD | unix.BPF_K, K: g.oldCount},
		{Code: unix.BPF_RET | unix.BPF_A},
	}
	return unix.SetsockoptSockFprog(g.descriptor, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF,
		&unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})
}

// duplicateFD returns a duplicate of a child process's file descriptor.
func duplicateFD(pid, descriptor int) (int, error) { return duplicateThreadFD(pid, 0, descriptor) }

// duplicateThreadFD returns a duplicate of a file descriptor of a process, or of a thread if flags is PIDFD_THREAD.
func duplicateThreadFD(id, flags, descriptor int) (int, error) {
	handle, err := unix.PidfdOpen(id, flags)
	if err != nil {
		return -1, err
	}
	defer func() { _ = unix.Close(handle) }()
	return unix.PidfdGetfd(handle, descriptor, 0)
}

// listenSockets contains the listening TCP sockets in a process's network namespace, by address.
type listenSockets struct {
	all map[string]int   // number of sockets, of any process
	own map[string][]int // file descriptors of this process's sockets
}

func listListeners(pid int) (listenSockets, error) {
	s := listenSockets{all: make(map[string]int), own: make(map[string][]int)}
	descriptors, err := socketDescriptors(pid)
	if err != nil {
		return s, err
	}
	err = forEachSocket(pid, func(tcp socket) {
		if tcp.state != stateListening {
			return
		}
		address := tcp.family + " " + tcp.local
		s.all[address]++
		if d, ok := descriptors[tcp.inode]; ok {
			s.own[address] = append(s.own[address], d)
		}
	})
	return s, err
}

// socketDescriptors returns the file descriptors of a process's sockets by inode.
func socketDescriptors(pid int) (map[string]int, error) {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	found := make(map[string]int)
	for _, e := range entries {
		target, err := os.Readlink(filepath.Join(dir, e.Name()))
		// Reading the link of a descriptor can be forbidden even if listing the descriptors is permitted.
		if errors.Is(err, fs.ErrPermission) {
			return nil, err
		}
		inode, isSocket := strings.CutPrefix(target, "socket:[")
		if err != nil || !isSocket {
			continue
		}
		if n, err := strconv.Atoi(e.Name()); err == nil {
			found[strings.TrimSuffix(inode, "]")] = n
		}
	}
	return found, nil
}
