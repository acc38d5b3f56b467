package mesh

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"os/user"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// A captured mesh of a user other than root runs in a user namespace. Its process stays in the machine's own network,
// with the user's permissions, so that published ports and connections to outside work as for root. The user namespace
// owns the network namespaces that the process creates. It contains the user's own IDs and the proxies' group.
// newgidmap maps that group only for users with a range in /etc/subgid.

// meshCapabilities are the capabilities of the mesh's process within its user namespace. Workloads have none of them.
var meshCapabilities = []uintptr{
	unix.CAP_SYS_ADMIN, unix.CAP_NET_ADMIN, unix.CAP_NET_BIND_SERVICE, unix.CAP_SETGID, unix.CAP_SETPCAP,
	unix.CAP_SYS_PTRACE, // to read the environment of agents, which have another group, and identify their run
}

// waitScript is a shell script that waits for a line and then runs a command. It waits because the group mapping of the
// user namespace is written after the namespace was created.
const waitScript = `read -r _ <&3 && exec "$@" 3<&-`

// runInUserNamespace runs this program in a new user namespace and waits for its end. If a signal ended it, the status
// is 128 plus the signal's number.
func runInUserNamespace() (status int, err error) {
	self, err := ownExecutable()
	if err != nil {
		return 0, fmt.Errorf("finding the running executable: %w", err)
	}
	groups, err := newGIDMapping()
	if err != nil {
		return 0, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return 0, fmt.Errorf("creating a pipe: %w", err)
	}
	defer w.Close()
	runtime.LockOSThread() // the kernel sends Pdeathsig when this thread ends
	defer runtime.UnlockOSThread()
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, EndSignals()...)
	defer signal.Stop(signals)
	// With `stty tostop`, a terminal stops background processes that write to it. Both processes ignore that signal.
	signal.Ignore(syscall.SIGTTOU)
	cmd := userNamespaceCommand(append([]string{self}, os.Args[1:]...), r)
	err = cmd.Start()
	_ = r.Close()
	if err != nil {
		return 0, fmt.Errorf("creating a user namespace: %w%s", err, namespaceRemedy(err))
	}
	if err := groups.write(cmd.Process.Pid); err != nil {
		_ = w.Close() // the child process ends when the pipe is closed
		_ = cmd.Wait()
		return 0, err
	}
	_, _ = w.WriteString("go\n")
	return waitWithSignals(cmd, signals)
}

// userNamespaceCommand returns a command that starts in a user namespace. The command reads a line from the pipe line
// before it runs args.
func userNamespaceCommand(args []string, line *os.File) *exec.Cmd {
	cmd := exec.Command("/bin/sh", append([]string{"-c", waitScript, "sh"}, args...)...) // #nosec G204 -- ourselves
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = os.Stdin, os.Stdout, os.Stderr, []*os.File{line}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: os.Getuid(), HostID: os.Getuid(), Size: 1}},
		AmbientCaps: meshCapabilities,
		Pdeathsig:   syscall.SIGTERM, // requests an orderly end
		Setpgid:     true,            // the process receives the terminal's signals only from this process
	}
	return cmd
}

// waitWithSignals forwards signals to the process until it has ended.
func waitWithSignals(cmd *exec.Cmd, signals <-chan os.Signal) (status int, err error) {
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		for {
			select {
			case s := <-signals:
				_ = cmd.Process.Signal(s)
			case <-ended:
				return
			}
		}
	}()
	err = cmd.Wait()
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return 0, err
	}
	if how := exit.Sys().(syscall.WaitStatus); how.Signaled() {
		return 128 + int(how.Signal()), nil
	}
	return exit.ExitCode(), nil
}

// gidMapping maps groups into a user namespace.
type gidMapping struct{ tool, proxies string }

func newGIDMapping() (m gidMapping, err error) {
	names := []string{strconv.Itoa(os.Getuid())}
	if u, err := user.Current(); err == nil {
		names = append(names, u.Username)
	}
	f, err := os.Open(subgidPath)
	if err == nil {
		defer f.Close()
		m.proxies = firstSubordinateGroup(f, names)
	}
	if m.proxies == "" {
		who := names[len(names)-1]
		return m, fmt.Errorf("%s assigns no groups to user %s: run `sudo usermod --add-subgids 100000-165535 %s` with a range that no other user has", subgidPath, who, who)
	}
	if m.tool, err = exec.LookPath("newgidmap"); err != nil {
		return m, errors.New("newgidmap, which maps groups into a user namespace, is not in PATH: install the package uidmap, which some systems call shadow-utils")
	}
	return m, nil
}

const subgidPath = "/etc/subgid"

// firstSubordinateGroup returns the first subordinate group of a user with one of these names; see subgid(5).
func firstSubordinateGroup(subgid io.Reader, names []string) string {
	for lines := bufio.NewScanner(subgid); lines.Scan(); {
		fields := strings.Split(lines.Text(), ":") // NAME:FIRST:COUNT
		if len(fields) == 3 && slices.Contains(names, fields[0]) && fields[1] != "" && strings.Trim(fields[2], "0") != "" {
			return fields[1]
		}
	}
	return ""
}

func (m gidMapping) write(pid int) error {
	own := strconv.Itoa(os.Getgid())
	out, err := exec.Command(m.tool, strconv.Itoa(pid), own, own, "1", strconv.Itoa(proxyGroup), m.proxies, "1").CombinedOutput() // #nosec G204 -- the system's own
	if err != nil {
		return fmt.Errorf("mapping the groups %s and %s into a user namespace: newgidmap: %w: %s%s", own, m.proxies, err, strings.TrimSpace(string(out)), m.remedy())
	}
	return nil
}

// remedy returns a remedy if newgidmap does not have the privileges that it needs.
func (m gidMapping) remedy() string {
	if kept, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0); err == nil && kept == 1 {
		return ": this process cannot gain privileges (no_new_privs, which for example NoNewPrivileges= of systemd sets): start pilotfish without this restriction"
	}
	info, err := os.Stat(m.tool)
	_, lacks := unix.Getxattr(m.tool, "security.capability", nil)
	if err == nil && lacks != nil && info.Mode()&fs.ModeSetuid == 0 {
		return fmt.Sprintf(": %s has no privileges; run `sudo setcap cap_setgid=ep %[1]s`", m.tool)
	}
	return ""
}

// namespaceRemedy returns a remedy if user namespaces cannot be created or used.
func namespaceRemedy(err error) string {
	switch refused := errors.Is(err, fs.ErrPermission); {
	case errors.Is(err, syscall.ENOSPC):
		return ": the limit of user namespaces is reached; raise it with `sudo sysctl user.max_user_namespaces=10000`"
	case refused && sysctl("kernel/unprivileged_userns_clone") == "0":
		return ": the kernel allows user namespaces only to root; run `sudo sysctl kernel.unprivileged_userns_clone=1` to allow it to all users"
	case refused && sysctl("kernel/apparmor_restrict_unprivileged_userns") == "1":
		return ": AppArmor allows user namespaces only to root; run `sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0` to allow it to all users"
	}
	return ""
}

// sysctl returns a kernel parameter, or "" if it does not exist.
func sysctl(name string) string {
	value, _ := os.ReadFile("/proc/sys/" + name)
	return strings.TrimSpace(string(value))
}

// canCreateNamespaces reports whether this process has CAP_SYS_ADMIN, either as root or within a user namespace.
func canCreateNamespaces() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	return unix.Capget(&header, &sets[0]) == nil && sets[0].Effective&(1<<unix.CAP_SYS_ADMIN) != 0
}
