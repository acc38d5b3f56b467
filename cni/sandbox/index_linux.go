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

// maxCgroups bounds what is read of one process's control groups.
const maxCgroups = 64 << 10

// Index is the processes of pods at one moment.
type Index struct {
	proc string
	pids map[string][]int // by the pod's UID, oldest first
	node []ID             // the node's network namespaces: of its first process, and of this one
	user []ID             // and its user namespaces
}

// ID tells a network namespace from all others that exist at the same time.
type ID struct{ Device, Inode uint64 }

func (id ID) String() string { return fmt.Sprintf("%d:%d", id.Device, id.Inode) }

// Sandbox is the network of one pod, until it is closed.
type Sandbox struct {
	ID
	NetNS *os.File
}

// Lasting names the sandbox's network namespace among all that there were since the node's start: numbers of inodes go to
// the next namespace as soon as one is gone.
func (s *Sandbox) Lasting() (string, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("the node's start is not known: %w", err)
	}
	cookie, err := s.cookie()
	if err != nil { // a kernel older than 5.14
		cookie = 0
	}
	return fmt.Sprintf("%s:%d:%.8s", s.ID, cookie, boot), nil
}

// cookie is what the kernel gives a network namespace once.
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

// Close lets it go.
func (s *Sandbox) Close() { _ = s.NetNS.Close() }

// Scan looks at all processes of the node. proc is the node's /proc, and node its network namespace, as a path; "" is that
// of the node's first process.
func Scan(proc, node string) (*Index, error) {
	x := &Index{proc: proc, pids: map[string][]int{}}
	// /proc/self is the process's first thread, which a goroutine that was locked to it may have left in another namespace.
	for _, path := range []string{cmp.Or(node, filepath.Join(proc, "1/ns/net")), "/proc/thread-self/ns/net"} {
		id, err := idOf(path)
		if err != nil {
			return nil, fmt.Errorf("the node's own network namespace, which must not be touched, is not known: %w "+
				"(the node agent needs hostPID and the capability SYS_PTRACE, or host-network-namespace has to name it)", err)
		}
		x.node = append(x.node, id)
	}
	for _, path := range []string{filepath.Join(proc, "1/ns/user"), "/proc/thread-self/ns/user"} {
		if id, err := idOf(path); err == nil { // there are kernels without
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

func (x *Index) podOf(pid int) string {
	f, err := os.Open(filepath.Join(x.proc, strconv.Itoa(pid), "cgroup"))
	if err != nil {
		return "" // it has ended
	}
	defer func() { _ = f.Close() }()
	text, _ := io.ReadAll(io.LimitReader(f, maxCgroups))
	return podUID(text)
}

// Find opens the network namespace of a pod: that of its processes which has the pod's address. hint is a path that the
// plugin was told by the runtime, tried when no process is to be seen; "" for none. Where two namespaces fit, none is taken:
// whoever may make control groups on the node could give his own the name of a pod's.
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
			err = errors.Join(x.trusted(s), s.belongs(p))
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
			return nil, fmt.Errorf("%w: two fit pod %s/%s, %s of %s and %s of %s (end the one that is not the pod's, or move it to a control group of another name)",
				ErrNone, p.Metadata.Namespace, p.Metadata.Name, found.ID, found.from, s.ID, c.from)
		default:
			c.Sandbox = s
			found = &c
		}
	}
	if found == nil {
		return nil, fmt.Errorf("%w: %w", ErrNone, errors.Join(errs...))
	}
	return found.Sandbox, nil
}

// candidate is a namespace that may be a pod's.
type candidate struct {
	*Sandbox
	from   string
	open   func() (*Sandbox, error)
	hinted bool
}

func (x *Index) candidates(p *agentapi.Pod, uids []string, hint string) (all []candidate) {
	for _, uid := range uids {
		for _, pid := range x.pids[uid] {
			all = append(all, candidate{from: fmt.Sprintf("process %d", pid), open: func() (*Sandbox, error) { return x.of(pid, uid) }})
		}
	}
	if hint != "" && len(p.Addresses()) > 0 {
		all = append(all, candidate{from: hint, open: func() (*Sandbox, error) { return x.Open(hint) }, hinted: true})
	}
	return all
}

// of opens the namespace of a process, which must be the same pod's after that, too: a PID may have gone to another.
func (x *Index) of(pid int, uid string) (*Sandbox, error) {
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

// Open opens a network namespace by its path. The node's own is refused.
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

func (x *Index) check(s *Sandbox) error {
	var stat unix.Stat_t
	var fs unix.Statfs_t
	fd := int(s.NetNS.Fd())
	if err := errors.Join(unix.Fstat(fd, &stat), unix.Fstatfs(fd, &fs)); err != nil {
		return err
	}
	if fs.Type != unix.NSFS_MAGIC {
		return errors.New("it is no network namespace")
	}
	s.ID = ID{uint64(stat.Dev), stat.Ino}
	if slices.Contains(x.node, s.ID) {
		return errors.New("it is the node's own network namespace")
	}
	return nil
}

// belongs says whether the namespace has the pod's address; of a pod whose address is not known yet its processes are
// enough.
func (s *Sandbox) belongs(p *agentapi.Pod) error {
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

// Addresses are those of all the namespace's links.
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
