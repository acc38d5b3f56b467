package dirstore

import (
	"io/fs"
	"syscall"
	"time"
)

// changeTime returns when the content or the metadata of a file last changed. Programs cannot set this time.
func changeTime(info fs.FileInfo) time.Time {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return time.Time{}
	}
	return time.Unix(stat.Ctim.Unix())
}
