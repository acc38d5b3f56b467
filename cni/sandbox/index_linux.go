package sandbox

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/cni/agentapi"
	"github.com/pilotfish-mesh/pilotfish/iptables/namespace"
)

// maxCgroups limits how many bytes are read from /proc/PID/cgroup.
const maxCgroups = 64 << 10

// Index contains the processes of all pods on the node at the time of the scan.
type Index struct {
	proc string
	pids map[string][]int // process IDs by the pod's UID, in ascending order
	node []ID             // network namespaces of the node's first process and of this process
	user []ID             // user namespaces of the same two processes
}

// ID identifies an existing network namespace. It is not unique over time, because the kernel reuses inode numbers
// after a namespace is removed.
type ID struct{ Device, Inode uint64 }

func (id ID) String() string { return fmt.Sprintf("%d:%d", id.Device, id.Inode) }

// Sandbox is the open network namespace of one pod. The caller must call Close.
type Sandbox struct {
	ID
	NetNS *os.File
}

// UniqueName returns a name that identifies the network namespace across reboots. The inode number alone is not
// sufficient, because the kernel reuses it.
func (s *Sandbox) UniqueName() (string, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("cannot read the node's boot ID: %w", err)
	}
	cookie, err := s.cookie()
	if err != nil { // kernel older than 5.14
		cookie = 0
	}
	return fmt.Sprintf("%s:%d:%.8s", s.ID, cookie, boot), nil
}

// cookie returns the kernel's cookie of the network namespace (SO_NETNS_COOKIE). The kernel does not reuse cookies.
func (s *Sandbox) cookie() (cookie uint64, err error) {
	err = namespace.Do(int(s.NetNS.Fd()), func() error {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }()
		cookie, err = unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
		return err
	})
	return cookie, err
}

// Close closes the namespace.
func (s *Sandbox) Close() { _ = s.NetNS.Close() }

// Scan reads the pods' processes. proc is the path of the node's /proc. node is the path of the node's network
// namespace; "" means the network namespace of the node's first process.
func Scan(proc, node string) (*Index, error) {
	x := &Index{proc: proc, pids: map[string][]int{}}
	// /proc/self refers to the main thread of the process, which a locked goroutine may have moved to another namespace.
	for _, path := range []string{cmp.Or(node, filepath.Join(proc, "1/ns/net")), "/proc/thread-self/ns/net"} {
		id, err := idOf(path)
		if err != nil {
			return nil, fmt.Errorf("cannot determine the node's own network namespace, which must not be changed: %w "+
				"(the node agent needs hostPID and the capability SYS_PTRACE, or the setting host-network-namespace)", err)
		}
		x.node = append(x.node, id)
	}
	for _, path := range []string{filepath.Join(proc, "1/ns/user"), "/proc/thread-self/ns/user"} {
		if id, err := idOf(path); err == nil { // some kernels do not support user namespaces
			x.user = append(x.user, id)
		}
	}
	entries, err := os.ReadDir(proc)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if uid := x.podOf(pid); uid != "" {
			x.pids[uid] = append(x.pids[uid], pid)
		}
	}
	for _, pids := range x.pids {
		slices.Sort(pids)
	}
	return x, nil
}

func idOf(path string) (ID, error) {
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil {
		return ID{}, fmt.Errorf("%s: %w", path, err)
	}
	return ID{uint64(stat.Dev), stat.Ino}, nil
}

// podOf returns the UID of the pod to which a process belongs, or "" if the process does not belong to a pod.
func (x *Index) podOf(pid int) string {
	f, err := os.Open(filepath.Join(x.proc, strconv.Itoa(pid), "cgroup"))
	if err != nil {
		return "" // the process has ended
	}
	defer func() { _ = f.Close() }()
	text, _ := io.ReadAll(io.LimitReader(f, maxCgroups))
	return podUID(text)
}

// Find opens the network namespace of a pod. It searches the namespaces of the pod's processes for one with the pod's
// IP address. uids contains the UIDs that the names of the pod's cgroups may contain. If no process matches, Find
// opens hint, the path that the runtime passed to the plugin. hint may be "". If two namespaces match, Find returns an
// error, because a user who can create cgroups on the node can imitate a pod's cgroup.
func (x *Index) Find(p *agentapi.Pod, uids []string, hint string) (*Sandbox, error) {
	var found *candidate
	var errs []error
	seen := map[ID]bool{}
	for _, c := range x.candidates(p, uids, hint) {
		if found != nil && c.hinted {
			break
		}
		s, err := c.open()
		if err == nil && seen[s.ID] {
			s.Close()
			continue
		}
		if err == nil {
			seen[s.ID] = true
			err = errors.Join(x.checkOwner(s), s.checkAddress(p))
		}
		switch {
		case err != nil:
			errs = append(errs, err)
			if s != nil {
				s.Close()
			}
		case found != nil:
			found.Close()
			s.Close()
			return nil, fmt.Errorf("%w: two namespaces match pod %s/%s: %s of %s, and %s of %s (stop the process that does not belong to the pod, or move it to a cgroup with another name)",
				ErrNone, p.Metadata.Namespace, p.Metadata.Name, found.ID, found.from, s.ID, c.from)
		default:
			c.Sandbox = s
			found = &c
		}
	}
	switch {
	case found != nil:
		return found.Sandbox, nil
	case len(errs) == 0:
		return nil, fmt.Errorf("%w: no visible process is in a cgroup of the pod (the node agent needs hostPID, and --proc-dir must be the /proc of the node)", ErrNone)
	}
	return nil, fmt.Errorf("%w: %w", ErrNone, errors.Join(errs...))
}

// candidate is a possible network namespace of a pod.
type candidate struct {
	*Sandbox
	from   string // the process or path by which it was found
	open   func() (*Sandbox, error)
	hinted bool // whether it was found by the runtime's path
}

func (x *Index) candidates(p *agentapi.Pod, uids []string, hint string) (all []candidate) {
	for _, uid := range uids {
		for _, pid := range x.pids[uid] {
			all = append(all, candidate{from: fmt.Sprintf("process %d", pid), open: func() (*Sandbox, error) { return x.openProcessNetNS(pid, uid) }})
		}
	}
	if hint != "" && len(p.Addresses()) > 0 {
		all = append(all, candidate{from: hint, open: func() (*Sandbox, error) { return x.Open(hint) }, hinted: true})
	}
	return all
}

// openProcessNetNS opens the network namespace of a process. It then checks again that the process belongs to the pod,
// because the kernel reuses process IDs.
func (x *Index) openProcessNetNS(pid int, uid string) (*Sandbox, error) {
	s, err := x.Open(filepath.Join(x.proc, strconv.Itoa(pid), "ns/net"))
	if err != nil {
		return nil, err
	}
	if x.podOf(pid) != uid {
		s.Close()
		return nil, fmt.Errorf("process %d has ended", pid)
	}
	return s, nil
}

// Open opens a network namespace by its path. It returns an error for the node's own network namespace.
func (x *Index) Open(path string) (*Sandbox, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	s := &Sandbox{NetNS: f}
	if err := x.check(s); err != nil {
		s.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
}

// check sets the sandbox's ID. It returns an error if the file is not a network namespace, or is the node's own.
func (x *Index) check(s *Sandbox) error {
	var stat unix.Stat_t
	var fs unix.Statfs_t
	fd := int(s.NetNS.Fd())
	if err := errors.Join(unix.Fstat(fd, &stat), unix.Fstatfs(fd, &fs)); err != nil {
		return err
	}
	if fs.Type != unix.NSFS_MAGIC {
		return errors.New("not a network namespace")
	}
	s.ID = ID{uint64(stat.Dev), stat.Ino}
	if slices.Contains(x.node, s.ID) {
		return errors.New("this is the node's own network namespace")
	}
	return nil
}

// checkAddress returns an error if the namespace has none of the pod's IP addresses. It returns nil if the pod's
// addresses are not known yet.
func (s *Sandbox) checkAddress(p *agentapi.Pod) error {
	want := p.Addresses()
	if len(want) == 0 {
		return nil
	}
	has, err := s.Addresses()
	if err != nil {
		return err
	}
	for _, text := range want {
		if ip, err := netip.ParseAddr(text); err == nil && slices.Contains(has, ip.Unmap()) {
			return nil
		}
	}
	return fmt.Errorf("network namespace %s has none of the pod's addresses %v", s.ID, want)
}

// Addresses returns the IP addresses of all interfaces in the namespace.
func (s *Sandbox) Addresses() ([]netip.Addr, error) {
	h, err := netlink.NewHandleAt(netns.NsHandle(s.NetNS.Fd()), unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	list, err := h.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, err
	}
	var all []netip.Addr
	for _, a := range list {
		if ip, ok := netip.AddrFromSlice(a.IP); ok {
			all = append(all, ip.Unmap())
		}
	}
	return all, nil
}
