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

// Without root, a mesh is captured from a user namespace. Its process stays in the machine's own network, where it may do
// what its user may, so that ports are published and connections go outside as for root; and it is the master of the
// network namespaces that it makes. The user namespace has the user's own ids, as which all runs, and the group of the
// proxies, which the kernel lets only those take whom /etc/subgid gives one of the machine's groups.

// privileges are the capabilities of the mesh's own process there, over what belongs to that namespace alone. What runs in
// a workload has none of them.
var privileges = []uintptr{
	unix.CAP_SYS_ADMIN, unix.CAP_NET_ADMIN, unix.CAP_NET_BIND_SERVICE, unix.CAP_SETGID, unix.CAP_SETPCAP,
	unix.CAP_SYS_PTRACE, // to see in an agent's environment, whose group is another, which run it belongs to
}

// awaitLine is a shell's script. The namespace has its groups only when it is there.
const awaitLine = `read -r _ <&3 && exec "$@" 3<&-`

// runInUserNamespace runs this program again, in a user namespace, to its end. The status is that of a shell's when a
// signal ended it.
func runInUserNamespace() (status int, err error) {
	self, err := ownExecutable()
	if err != nil {
		return 0, fmt.Errorf("finding the running executable: %w", err)
	}
	groups, err := groupMapping()
	if err != nil {
		return 0, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return 0, fmt.Errorf("making a pipe: %w", err)
	}
	defer w.Close()
	runtime.LockOSThread() // with whose end the kernel takes the parent for ended
	defer runtime.UnlockOSThread()
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, EndSignals()...)
	defer signal.Stop(signals)
	// A terminal may be set to stop who writes to it and is not in its foreground (stty tostop). This one is, for both.
	signal.Ignore(syscall.SIGTTOU)
	cmd := inUserNamespace(append([]string{self}, os.Args[1:]...), r)
	err = cmd.Start()
	_ = r.Close()
	if err != nil {
		return 0, fmt.Errorf("making a user namespace: %w%s", err, namespaceRemedy(err))
	}
	if err := groups.write(cmd.Process.Pid); err != nil {
		_ = w.Close() // for which it ends
		_ = cmd.Wait()
		return 0, err
	}
	_, _ = w.WriteString("go\n")
	return waitFor(cmd, signals)
}

// inUserNamespace is a command that begins in a user namespace, once there is a line to read.
func inUserNamespace(args []string, line *os.File) *exec.Cmd {
	cmd := exec.Command("/bin/sh", append([]string{"-c", awaitLine, "sh"}, args...)...) // #nosec G204 -- ourselves
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = os.Stdin, os.Stdout, os.Stderr, []*os.File{line}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: os.Getuid(), HostID: os.Getuid(), Size: 1}},
		AmbientCaps: privileges,
		Pdeathsig:   syscall.SIGTERM, // for an end in order
		Setpgid:     true,            // what a terminal sends comes once, by us
	}
	return cmd
}

// waitFor passes signals on until the process has ended.
func waitFor(cmd *exec.Cmd, signals <-chan os.Signal) (status int, err error) {
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

// mapping gives a user namespace its groups.
type mapping struct{ tool, proxies string }

func groupMapping() (m mapping, err error) {
	names := []string{strconv.Itoa(os.Getuid())}
	if u, err := user.Current(); err == nil {
		names = append(names, u.Username)
	}
	f, err := os.Open(subgidPath)
	if err == nil {
		defer f.Close()
		m.proxies = subordinate(f, names)
	}
	if m.proxies == "" {
		who := names[len(names)-1]
		return m, fmt.Errorf("%s gives user %s no groups: `sudo usermod --add-subgids 100000-165535 %s` does, where these are nobody else's", subgidPath, who, who)
	}
	if m.tool, err = exec.LookPath("newgidmap"); err != nil {
		return m, errors.New("newgidmap is not in PATH, which gives a user namespace its groups: install the package uidmap, which some systems call shadow-utils")
	}
	return m, nil
}

const subgidPath = "/etc/subgid"

// subordinate is the first group that a user of one of these names is given; see subgid(5).
func subordinate(subgid io.Reader, names []string) string {
	for lines := bufio.NewScanner(subgid); lines.Scan(); {
		fields := strings.Split(lines.Text(), ":") // NAME:FIRST:COUNT
		if len(fields) == 3 && slices.Contains(names, fields[0]) && fields[1] != "" && strings.Trim(fields[2], "0") != "" {
			return fields[1]
		}
	}
	return ""
}

func (m mapping) write(pid int) error {
	own := strconv.Itoa(os.Getgid())
	out, err := exec.Command(m.tool, strconv.Itoa(pid), own, own, "1", strconv.Itoa(proxyGroup), m.proxies, "1").CombinedOutput() // #nosec G204 -- the system's own
	if err != nil {
		return fmt.Errorf("giving a user namespace the groups %s and %s: newgidmap: %w: %s%s", own, m.proxies, err, strings.TrimSpace(string(out)), m.remedy())
	}
	return nil
}

// remedy is what may be done where newgidmap may not do its work: it has privileges that its user has not.
func (m mapping) remedy() string {
	if kept, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0); err == nil && kept == 1 {
		return ": no process that is started from here gets privileges (no_new_privs, as by NoNewPrivileges= of systemd): start pilotfish from elsewhere"
	}
	info, err := os.Stat(m.tool)
	_, lacks := unix.Getxattr(m.tool, "security.capability", nil)
	if err == nil && lacks != nil && info.Mode()&fs.ModeSetuid == 0 {
		return fmt.Sprintf(": %s has no privileges of its own; `sudo setcap cap_setgid=ep %[1]s` gives it what it takes", m.tool)
	}
	return ""
}

// namespaceRemedy is what may be done where no user namespace can be made, or one is of no use.
func namespaceRemedy(err error) string {
	switch refused := errors.Is(err, fs.ErrPermission); {
	case errors.Is(err, syscall.ENOSPC):
		return ": the limit of their number is reached; `sudo sysctl user.max_user_namespaces=10000` raises it"
	case refused && setting("kernel/unprivileged_userns_clone") == "0":
		return ": the kernel lets only root; `sudo sysctl kernel.unprivileged_userns_clone=1` lets everybody"
	case refused && setting("kernel/apparmor_restrict_unprivileged_userns") == "1":
		return ": AppArmor lets only root; `sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0` lets everybody"
	}
	return ""
}

// setting is a parameter of the kernel; empty where there is none of the name.
func setting(name string) string {
	value, _ := os.ReadFile("/proc/sys/" + name)
	return strings.TrimSpace(string(value))
}

// mayMakeNamespaces says whether this process is root, or as good as root in a user namespace.
func mayMakeNamespaces() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	return unix.Capget(&header, &sets[0]) == nil && sets[0].Effective&(1<<unix.CAP_SYS_ADMIN) != 0
}
