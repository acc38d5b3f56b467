package backends

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/iptables/namespace"
)

// What iptables-legacy asks the kernel, of a socket of either family (linux/netfilter_ipv4/ip_tables.h).
const (
	getInfo    = 64 // IPT_SO_GET_INFO, IP6T_SO_GET_INFO
	getEntries = 65
	nameSize   = 32
	infoSize   = 84
	entriesAt  = 40       // where the entries begin in the answer
	mostLegacy = 64 << 20 // bytes of one table
	sizeAt     = infoSize - 4
)

// hasLegacyRules says whether the legacy flavour may have chains whose names begin so. The tables that there are the
// kernel lists (to ask for another would make it), and what is in them it gives without a program: other people's tables
// are no reason to need one.
func hasLegacyRules(netns int, prefixes ...string) (found bool, err error) {
	err = namespace.Do(netns, func() error {
		runtime.LockOSThread() // /proc/thread-self is of this one
		defer runtime.UnlockOSThread()
		for _, family := range []struct {
			names         string
			domain, level int
		}{{"ip_tables_names", unix.AF_INET, unix.SOL_IP}, {"ip6_tables_names", unix.AF_INET6, unix.SOL_IPV6}} {
			tables, err := listed(family.names)
			if err != nil {
				return err
			}
			for _, table := range tables {
				entries, err := legacyEntries(family.domain, family.level, table)
				// What cannot be looked at may be ours; the programs will tell.
				found = found || err != nil || containsAny(entries, prefixes)
			}
		}
		return nil
	})
	return found, err
}

func listed(file string) ([]string, error) {
	data, err := content("/proc/thread-self/net/" + file)
	// The kernel has no such flavour, or not yet; or the namespace is of a user namespace that had no users when both were
	// made (unshare --user --net), and then the list is for the machine's root alone.
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("which tables iptables-legacy has: %w", err)
	}
	var names []string
	for name := range bytes.FieldsSeq(data) {
		names = append(names, string(name))
	}
	return names, nil
}

// content reads a small file of /proc. With os it would be registered for polling first.
func content(path string) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	data := make([]byte, 4096)
	for size := 0; ; {
		n, err := unix.Read(fd, data[size:])
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return nil, err
		case n == 0 || size+n == len(data):
			return data[:size+n], nil
		default:
			size += n
		}
	}
}

func containsAny(data []byte, prefixes []string) bool {
	for _, p := range prefixes {
		if bytes.Contains(data, []byte(p)) {
			return true
		}
	}
	return false
}

// legacyEntries are a table's rules as the kernel has them. The names of chains are in them.
func legacyEntries(domain, level int, table string) ([]byte, error) {
	fd, err := unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	info := make([]byte, infoSize)
	copy(info[:nameSize-1], table)
	if err := getSocketOption(fd, level, getInfo, info); err != nil {
		return nil, err
	}
	size := binary.NativeEndian.Uint32(info[sizeAt:])
	if size > mostLegacy {
		return nil, fmt.Errorf("the table %s has %d bytes", table, size)
	}
	entries := make([]byte, entriesAt+int(size))
	copy(entries[:nameSize-1], table)
	binary.NativeEndian.PutUint32(entries[nameSize:], size)
	if err := getSocketOption(fd, level, getEntries, entries); err != nil {
		return nil, err
	}
	return entries[entriesAt:], nil
}

func getSocketOption(fd, level, option int, data []byte) error {
	size := uint32(len(data))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option),
		uintptr(unsafe.Pointer(&data[0])), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}
