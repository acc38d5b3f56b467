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

// The socket options with which iptables-legacy queries the kernel (linux/netfilter_ipv4/ip_tables.h).
const (
	getInfo    = 64 // IPT_SO_GET_INFO, IP6T_SO_GET_INFO
	getEntries = 65
	nameSize   = 32
	infoSize   = 84
	entriesAt  = 40       // offset of the entries in the reply
	maxLegacy  = 64 << 20 // maximum bytes of one table
	sizeAt     = infoSize - 4
)

// legacyFamily holds the parameters for querying the tables of a family.
type legacyFamily struct {
	names         string // the file in listsIn that lists the tables
	domain, level int
	layout        legacyLayout
}

// listsIn is the directory of a thread's network namespace.
const listsIn = "/proc/thread-self/net"

var legacyFamilies = [...]legacyFamily{
	{"ip_tables_names", unix.AF_INET, unix.SOL_IP, layout4},
	{"ip6_tables_names", unix.AF_INET6, unix.SOL_IPV6, layout6},
}

// legacy holds descriptors of the lists of legacy tables in a namespace.
type legacy struct {
	opened bool
	lists  [len(legacyFamilies)]int
	errs   [len(legacyFamilies)]error
}

// open opens the lists of the calling thread's namespace. The descriptors stay bound to that namespace.
func (l *legacy) open() {
	runtime.LockOSThread() // /proc/thread-self refers to this thread
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

// hasRules reports whether there may be chains with one of the prefixes. It queries only listed tables, because a query
// for another one would create it. It reads their content from the kernel without a program, so that foreign tables do
// not require the programs.
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
			// An unreadable table may hold our rules; the programs will report it.
			found = found || err != nil || containsAny(in.entries, prefixes)
		}
	}
	return found, nil
}

func listed(fd int, err error) ([]string, error) {
	var data []byte
	if err == nil {
		data, err = readSmallFile(fd)
	}
	// The kernel lacks this flavour or has not loaded it. Or the namespace belongs to a user namespace that had no
	// mapped users at its creation (unshare --user --net), and only the machine's root can read the list.
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

// readSmallFile reads a small file from its start, regardless of the file offset.
func readSmallFile(fd int) ([]byte, error) {
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

// legacyTable is a table in the kernel's format (struct ipt_getinfo, struct ipt_get_entries).
type legacyTable struct {
	hooks        uint32    // bit set of the hooks with chains
	begins, ends [5]uint32 // for each hook, the offsets of the first entry and of the policy
	entries      []byte    // the rules, including chain names
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
	if size > maxLegacy {
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
