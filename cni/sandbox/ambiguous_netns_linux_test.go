package sandbox

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testns"
)

func TestAmbiguousNamespaceIsRefused(t *testing.T) {
	one, other := testns.New(t), testns.New(t)
	address(t, one, "10.9.8.7/32")
	address(t, other, "10.9.8.7/32")
	a, b := podOf(t, one, uid), podOf(t, other, uid)
	s, err := scan(t).Find(thePod("10.9.8.7"), []string{uid}, "")
	if err == nil {
		s.Close()
	}
	if !errors.Is(err, ErrNone) {
		t.Fatalf("Find returned one of two matching namespaces: %v", err)
	}
	for _, pid := range []int{a.Process.Pid, b.Process.Pid} {
		id, err2 := idOf(fmt.Sprintf("/proc/%d/ns/net", pid))
		if err2 != nil || !strings.Contains(err.Error(), fmt.Sprintf("%s of process %d", id, pid)) {
			t.Errorf("%v does not name %s of process %d (%v)", err, id, pid, err2)
		}
	}
}

// withUsers starts a process in a new network namespace and a new user namespace that the user created.
func withUsers(t *testing.T, user uint32) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sh", "-c", "ip address add 10.9.8.7/32 dev lo && echo && exec sleep 600")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if user == 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: 0, Size: 1}}
	} else {
		cmd = exec.Command("unshare", append([]string{"--user", "--map-root-user", "--net"}, cmd.Args...)...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}
	}
	cmd.Stderr = os.Stderr
	ready, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Skipf("no user namespace may be made here: %v", err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if _, err := io.ReadFull(ready, make([]byte, 1)); err != nil {
		t.Skipf("no user namespace may be made here: %v", err)
	}
	testns.JoinPod(t, cmd.Process.Pid, uid)
	return cmd
}

func TestNamespaceMadeByANodeUserIsNotAPods(t *testing.T) {
	ns := testns.New(t)
	address(t, ns, "10.9.8.7/32")
	withUsers(t, 1000)
	if _, err := scan(t).Find(thePod("10.9.8.7"), []string{uid}, ""); !errors.Is(err, ErrNone) || !strings.Contains(err.Error(), "was created by user 1000") {
		t.Fatalf("a namespace that a user created was accepted: %v", err)
	}
	want, err := idOf("/proc/" + strconv.Itoa(podOf(t, ns, uid).Process.Pid) + "/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	s, err := scan(t).Find(thePod("10.9.8.7"), []string{uid}, "")
	if err != nil {
		t.Fatalf("the pod's namespace was not found: %v", err)
	}
	defer s.Close()
	if s.ID != want {
		t.Errorf("%s was taken, and not %s", s.ID, want)
	}
}

func TestPodWithUsersOfItsOwnIsFound(t *testing.T) {
	withUsers(t, 0)
	s, err := scan(t).Find(thePod("10.9.8.7"), []string{uid}, "")
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
}
