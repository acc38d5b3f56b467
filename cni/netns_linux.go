package cni

import (
	"fmt"
	"os"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"
)

// openNetNS opens a sandbox's network namespace. The plugin's own, which is the node's, is refused: rules in there would
// take the whole node's traffic.
func openNetNS(path string) (*os.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, types.NewError(types.ErrInvalidNetNS, "the sandbox's network namespace cannot be opened", err.Error())
	}
	if err := checkNetNS(f); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

func checkNetNS(f *os.File) error {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &fs); err != nil || fs.Type != unix.NSFS_MAGIC {
		return types.NewError(types.ErrInvalidNetNS, f.Name()+" is no network namespace", "CNI_NETNS has to name one")
	}
	var theirs, ours, first unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &theirs); err != nil {
		return types.NewError(types.ErrInvalidNetNS, "the sandbox's network namespace cannot be looked at", err.Error())
	}
	// /proc/self is the process's first thread, which may be in another namespace than the one that is here.
	if err := unix.Stat("/proc/thread-self/ns/net", &ours); err != nil {
		return types.NewError(types.ErrInvalidNetNS, "the plugin's own network namespace cannot be looked at", err.Error())
	}
	nodes := unix.Stat("/proc/1/ns/net", &first) == nil && theirs.Dev == first.Dev && theirs.Ino == first.Ino
	if nodes || theirs.Dev == ours.Dev && theirs.Ino == ours.Ino {
		return types.NewError(types.ErrInvalidNetNS, "the sandbox's network namespace is the node's own",
			fmt.Sprintf("%s is not touched: redirection there would take the whole node's traffic", f.Name()))
	}
	return nil
}
