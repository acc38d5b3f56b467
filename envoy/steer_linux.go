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

// Steering sends the new connections of ports that two Envoys listen on to the newer one. Where several processes share a
// port by SO_REUSEPORT, the kernel deals connections out among them; those that wait to be accepted by one that closes its
// socket are reset. So nothing may wait there when the older one closes.
//
// It works by a program of the socket group that picks the socket: in a group, sockets are in the order in which they
// began to listen, hence the older Envoy's come first. See SO_ATTACH_REUSEPORT_CBPF in socket(7).
type Steering struct {
	groups []*socketGroup
}

// socketGroup is the sockets that share an address.
type socketGroup struct {
	address    string
	older      uint32 // sockets of the older Envoy
	newer      uint32
	descriptor int // of one of the newer, which is good for the group
}

// Steer begins to send new connections to the newer Envoy. Ports at which that cannot be done are in the error; the
// others are steered nevertheless.
func Steer(older, newer *Process) (*Steering, error) {
	olds, err := listening(older.pid)
	if err != nil {
		return &Steering{}, fmt.Errorf("steering connections: %w", err)
	}
	news, err := listening(newer.pid)
	if err != nil {
		return &Steering{}, fmt.Errorf("steering connections: %w", err)
	}
	s, errs := &Steering{}, []error(nil)
	for address, young := range news.own {
		old := olds.own[address]
		switch {
		case len(old) == 0:
			continue
		case len(old)+len(young) != news.all[address]:
			errs = append(errs, fmt.Errorf("steering connections: others than the two Envoys listen on %s", address))
			continue
		}
		g := &socketGroup{address: address, older: uint32(len(old)), newer: uint32(len(young))}
		if g.descriptor, err = duplicate(newer.pid, young[0]); err == nil {
			s.groups = append(s.groups, g)
			err = g.attach(g.newer)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("steering connections to %s: %w", address, err))
		}
	}
	return s, errors.Join(errs...)
}

// Narrow sends all to one socket of the newer Envoy, whose place stays the same while the older one closes its own.
func (s *Steering) Narrow() error {
	var errs []error
	for _, g := range s.groups {
		errs = append(errs, g.attach(1))
	}
	return errors.Join(errs...)
}

// End leaves it to the kernel again.
func (s *Steering) End() {
	for _, g := range s.groups {
		_ = unix.SetsockoptInt(g.descriptor, unix.SOL_SOCKET, unix.SO_DETACH_REUSEPORT_BPF, 0)
		_ = unix.Close(g.descriptor)
	}
	s.groups = nil
}

// Ports is how many are steered.
func (s *Steering) Ports() int { return len(s.groups) }

// random is where a program finds a random number: SKF_AD_OFF + SKF_AD_RANDOM of linux/filter.h.
const random = 1<<32 - 0x1000 + 56

// attach picks one of the first n sockets of the newer Envoy.
func (g *socketGroup) attach(n uint32) error {
	program := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: random},
		{Code: unix.BPF_ALU | unix.BPF_MOD | unix.BPF_K, K: n},
		{Code: unix.BPF_ALU | unix.BPF_ADD | unix.BPF_K, K: g.older},
		{Code: unix.BPF_RET | unix.BPF_A},
	}
	return unix.SetsockoptSockFprog(g.descriptor, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF,
		&unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})
}

// duplicate takes a descriptor of a child.
func duplicate(pid, descriptor int) (int, error) { return duplicateOf(pid, 0, descriptor) }

// duplicateOf takes it of a process, or of a thread by PIDFD_THREAD.
func duplicateOf(id, flags, descriptor int) (int, error) {
	handle, err := unix.PidfdOpen(id, flags)
	if err != nil {
		return -1, err
	}
	defer func() { _ = unix.Close(handle) }()
	return unix.PidfdGetfd(handle, descriptor, 0)
}

// sockets are the TCP sockets that listen in a process's network, by address.
type sockets struct {
	all map[string]int   // how many
	own map[string][]int // the process's descriptors
}

func listening(pid int) (sockets, error) {
	s := sockets{all: make(map[string]int), own: make(map[string][]int)}
	descriptors, err := socketDescriptors(pid)
	if err != nil {
		return s, err
	}
	err = eachSocket(pid, func(tcp socket) {
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

// socketDescriptors are a process's sockets, by inode.
func socketDescriptors(pid int) (map[string]int, error) {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	found := make(map[string]int)
	for _, e := range entries {
		target, err := os.Readlink(filepath.Join(dir, e.Name()))
		if errors.Is(err, fs.ErrPermission) { // who may list them may not look at them for that reason
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
