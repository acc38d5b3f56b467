// Package cgroup reads the limits of a process's control group for memory and CPU time, in cgroup v1 and v2.
package cgroup

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Group is the control group of a process. Each method reads the files again, because limits can change at any time.
type Group struct {
	root string
}

// Self returns the group of this process.
func Self() Group { return NewGroup("/") }

// NewGroup returns the group of this process. It reads /proc and the mounted groups below root, which is "/" except in
// tests.
func NewGroup(root string) Group { return Group{root} }

// controller is the name of a cgroup v1 controller. In cgroup v2, all controllers share one tree.
type controller string

const (
	memory controller = "memory"
	cpu    controller = "cpu"
)

// unified selects the cgroup v2 tree.
const unified controller = ""

// dirs returns the directories whose limits apply to the process. They range from the process's own group to the
// topmost visible one, because a limit of a group applies to all groups below it. The result is empty if the machine
// does not have the controller's tree.
func (g Group) dirs(c controller) []string {
	own, ok := groupPath(g.read("/proc/self/cgroup"), c)
	mount, found := groupMount(g.read("/proc/self/mountinfo"), c)
	if !ok || !found {
		return nil
	}
	// Without a cgroup namespace, /proc shows a container the path of its group on the host, but only that group is
	// mounted in the container.
	below, inside := cutPath(own, mount.root)
	if !inside {
		below = own
	}
	if strings.Contains(below, "..") || !g.exists(filepath.Join(mount.at, below)) {
		below = ""
	}
	var dirs []string
	for dir := filepath.Join("/", below); ; dir = filepath.Dir(dir) {
		dirs = append(dirs, filepath.Join(mount.at, dir))
		if dir == "/" {
			return dirs
		}
	}
}

func (g Group) read(path string) string {
	data, err := os.ReadFile(filepath.Join(g.root, path))
	if err != nil {
		return ""
	}
	return string(data)
}

func (g Group) exists(path string) bool {
	_, err := os.Stat(filepath.Join(g.root, path))
	return err == nil
}

// cutPath returns path relative to dir, and reports whether path is in dir.
func cutPath(path, dir string) (string, bool) {
	rest, ok := strings.CutPrefix(path, strings.TrimSuffix(dir, "/"))
	return rest, ok && (rest == "" || rest[0] == '/')
}

// groupPath returns the path of a controller's group in /proc/self/cgroup ("4:memory:/path"). In the line for cgroup
// v2, the controller is empty.
func groupPath(groups string, c controller) (string, bool) {
	for line := range strings.Lines(groups) {
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(parts) == 3 && slices.Contains(strings.Split(parts[1], ","), string(c)) {
			return parts[2], true
		}
	}
	return "", false
}

// mount describes a mounted tree of groups. at is the mount point, and root is the group that is mounted there.
type mount struct{ at, root string }

// groupMount returns the mount of a controller's tree in /proc/self/mountinfo.
func groupMount(mounts string, c controller) (mount, bool) {
	for line := range strings.Lines(mounts) {
		before, after, found := strings.Cut(line, " - ")
		fields, super := strings.Fields(before), strings.Fields(after)
		if !found || len(fields) < 5 || len(super) < 3 {
			continue
		}
		v2 := c == unified && super[0] == "cgroup2"
		v1 := c != unified && super[0] == "cgroup" && slices.Contains(strings.Split(super[2], ","), string(c))
		if v1 || v2 {
			return mount{at: unescape.Replace(fields[4]), root: unescape.Replace(fields[3])}, true
		}
	}
	return mount{}, false
}

// unescape replaces the escapes that the kernel writes in paths in mountinfo.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
