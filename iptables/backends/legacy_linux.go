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

// legacyFamily is how the kernel is asked about the tables of a family.
type legacyFamily struct {
	names         string // file of listsIn that lists them
	domain, level int
	layout        legacyLayout
}

// listsIn is the directory of a thread's network namespace.
const listsIn = "/proc/thread-self/net"

var legacyFamilies = [...]legacyFamily{
	{"ip_tables_names", unix.AF_INET, unix.SOL_IP, layout4},
	{"ip6_tables_names", unix.AF_INET6, unix.SOL_IPV6, layout6},
}

// legacy are the lists of the tables that the legacy flavour has in a namespace, as descriptors.
type legacy struct {
	opened bool
	lists  [len(legacyFamilies)]int
	errs   [len(legacyFamilies)]error
}

// open opens the lists of the calling thread's namespace, whose they stay.
func (l *legacy) open() {
	runtime.LockOSThread() // /proc/thread-self is of this one
	defer runtime.UnlockOSThread()
	l.opened = true
	directory, err := unix.Open(listsIn, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err == nil {
		defer unix.Close(directory)
	}
	for i, family := range legacyFamilies {
		if l.errs[i] = err; err == nil {
			l.lists[i], l.errs[i] = unix.Openat(directory, family.names, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		}
	}
}

func (l *legacy) close() {
	for i, fd := range l.lists {
		if l.opened && l.errs[i] == nil {
			_ = unix.Close(fd)
		}
	}
}

// hasRules says whether there may be chains whose names begin so. The tables that there are the kernel lists (to ask for
// another would make it), and what is in them it gives without a program: other people's tables are no reason to need one.
func (l *legacy) hasRules(netns int, prefixes ...string) (found bool, err error) {
	for i, family := range legacyFamilies {
		tables, err := listed(l.lists[i], l.errs[i])
		if err != nil {
			return false, err
		}
		for _, table := range tables {
			var in *legacyTable
			err := namespace.Do(netns, func() (err error) {
				in, err = readLegacy(family.domain, family.level, table)
				return err
			})
			// What cannot be looked at may be ours; the programs will tell.
			found = found || err != nil || containsAny(in.entries, prefixes)
		}
	}
	return found, nil
}

func listed(fd int, err error) ([]string, error) {
	var data []byte
	if err == nil {
		data, err = content(fd)
	}
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

// content reads a small file, from its beginning whatever was read before.
func content(fd int) ([]byte, error) {
	var buffer [4096]byte
	data := buffer[:]
	for size := 0; ; {
		n, err := unix.Pread(fd, data[size:], int64(size))
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

// legacyTable is one as the kernel has it (struct ipt_getinfo, struct ipt_get_entries).
type legacyTable struct {
	hooks        uint32    // those that it has chains of, as bits
	begins, ends [5]uint32 // where in the entries the chain of a hook begins, and where its policy is
	entries      []byte    // the rules; names of chains are in them
}

func readLegacy(domain, level int, name string) (*legacyTable, error) {
	fd, err := unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	info := make([]byte, infoSize)
	copy(info[:nameSize-1], name)
	if err := getSocketOption(fd, level, getInfo, info); err != nil {
		return nil, err
	}
	size := binary.NativeEndian.Uint32(info[sizeAt:])
	if size > mostLegacy {
		return nil, fmt.Errorf("the table %s has %d bytes", name, size)
	}
	entries := make([]byte, entriesAt+int(size))
	copy(entries[:nameSize-1], name)
	binary.NativeEndian.PutUint32(entries[nameSize:], size)
	if err := getSocketOption(fd, level, getEntries, entries); err != nil {
		return nil, err
	}
	t := &legacyTable{hooks: binary.NativeEndian.Uint32(info[nameSize:]), entries: entries[entriesAt:]}
	for i := range t.begins {
		t.begins[i] = binary.NativeEndian.Uint32(info[nameSize+4+4*i:])
		t.ends[i] = binary.NativeEndian.Uint32(info[nameSize+24+4*i:])
	}
	return t, nil
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
