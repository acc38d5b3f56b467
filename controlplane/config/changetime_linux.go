package config

import (
	"io/fs"
	"syscall"
	"time"
)

// changeTime is when a file or what is said of it was last changed, which nobody but the system sets.
func changeTime(info fs.FileInfo) time.Time {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return time.Time{}
	}
	return time.Unix(stat.Ctim.Unix())
}
