// Package cgroup tells what the kernel lets a process's control group use: memory and processor time, in cgroup v1 and v2.
package cgroup

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Group is the control group that a process is in. It is read anew with each question, since limits change while a
// process runs.
type Group struct {
	root string
}

// Self is the group of this process.
func Self() Group { return At("/") }

// At is the group of the process whose /proc/self and whose mounts lie below a directory.
func At(root string) Group { return Group{root} }

// controller is one kind of limit, with what it is called in v1; v2 has all in one tree.
type controller string

const (
	memory controller = "memory"
	cpu    controller = "cpu"
)

// unified is the controller of v2's tree.
const unified controller = ""

// dirs are the directories whose limits apply, from the process's own group up to the topmost that can be seen. A limit
// of any of them binds all below it. They are empty when the machine does not have the tree.
func (g Group) dirs(c controller) []string {
	own, ok := groupPath(g.read("/proc/self/cgroup"), c)
	mount, found := groupMount(g.read("/proc/self/mountinfo"), c)
	if !ok || !found {
		return nil
	}
	// Without a namespace of its own a container is told the path of its group on the host, while only that group is
	// mounted for it.
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

// cutPath is a path without the directories of another; it says whether it lies in them at all.
func cutPath(path, dir string) (string, bool) {
	rest, ok := strings.CutPrefix(path, strings.TrimSuffix(dir, "/"))
	return rest, ok && (rest == "" || rest[0] == '/')
}

// groupPath finds a controller's path in /proc/self/cgroup ("4:memory:/path"); v2's line has no controller.
func groupPath(groups string, c controller) (string, bool) {
	for line := range strings.Lines(groups) {
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(parts) == 3 && slices.Contains(strings.Split(parts[1], ","), string(c)) {
			return parts[2], true
		}
	}
	return "", false
}

// mount says where a tree of groups is mounted, and which of its groups is the root there.
type mount struct{ at, root string }

// groupMount finds a controller's tree in /proc/self/mountinfo.
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

// unescape undoes what the kernel does to paths in mountinfo.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
