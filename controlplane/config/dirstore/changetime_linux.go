package dirstore

import (
	"io/fs"
	"syscall"
	"time"
)

// changeTime returns when the content or the metadata of the file last changed (ctime). Unlike the modification time,
// programs cannot set it.
func changeTime(info fs.FileInfo) time.Time {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return time.Time{}
	}
	return time.Unix(stat.Ctim.Unix())
}
