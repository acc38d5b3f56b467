//go:build !linux

package dirstore

import (
	"io/fs"
	"time"
)

// changeTime returns the zero time, because this platform does not report the change time of a file.
func changeTime(fs.FileInfo) time.Time { return time.Time{} }
