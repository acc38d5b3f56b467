package regularfile

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestOnlyFilesThatOthersCannotChangeAreTrusted(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make files of other users")
	}
	const stranger = 4242
	do := func(errs ...error) {
		t.Helper()
		for _, err := range errs {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, c := range map[string]struct {
		prepare func(dir string) // dir/sub/file is a file of root
		path    string           // default: sub/file
		want    string           // part of the error
	}{
		"root's own": {},
		"of another user": {
			prepare: func(dir string) { do(os.Chown(dir+"/sub/file", stranger, 0)) }, want: "sub/file belongs to user 4242",
		},
		"writable by its group": {
			prepare: func(dir string) { do(os.Chmod(dir+"/sub/file", 0o660)) }, want: "sub/file is writable by its group or others (mode 0660)",
		},
		"writable by others": {
			prepare: func(dir string) { do(os.Chmod(dir+"/sub/file", 0o602)) }, want: "chmod go-w",
		},
		"in a directory of another user": {
			prepare: func(dir string) { do(os.Chown(dir+"/sub", stranger, 0)) }, want: "sub belongs to user 4242",
		},
		"in a directory writable by others": {
			prepare: func(dir string) { do(os.Chmod(dir+"/sub", 0o777)) }, want: "sub is writable",
		},
		"in a sticky directory writable by others": {
			prepare: func(dir string) { do(os.Chmod(dir+"/sub", 0o777|os.ModeSticky)) },
		},
		"a link of root's": {
			prepare: func(dir string) { do(os.Symlink("../sub/./file", dir+"/sub/link")) }, path: "sub/link",
		},
		"a link of another user": {
			prepare: func(dir string) {
				do(os.Chmod(dir+"/sub", 0o777|os.ModeSticky), os.Symlink("file", dir+"/sub/link"), os.Lchown(dir+"/sub/link", stranger, 0))
			},
			path: "sub/link", want: "link belongs to user 4242",
		},
		"a link through a directory of another user": {
			prepare: func(dir string) {
				do(os.Mkdir(dir+"/theirs", 0o755), os.Chown(dir+"/theirs", stranger, 0),
					os.Symlink(dir+"/sub/file", dir+"/theirs/hop"), os.Symlink("../theirs/hop", dir+"/sub/link"))
			},
			path: "sub/link", want: "theirs belongs to user 4242",
		},
		"a loop of links": {
			prepare: func(dir string) { do(os.Symlink("link", dir+"/sub/link")) }, path: "sub/link", want: "too many symbolic links",
		},
		"a directory": {path: "sub", want: "not a regular file"},
		"missing":     {path: "sub/none", want: "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			do(os.Mkdir(dir+"/sub", 0o755), os.WriteFile(dir+"/sub/file", []byte("text"), 0o600))
			if c.prepare != nil {
				c.prepare(dir)
			}
			if c.path == "" {
				c.path = "sub/file"
			}
			text, err := ReadTrusted(filepath.Join(dir, c.path), 4)
			switch {
			case c.want == "" && (err != nil || string(text) != "text"):
				t.Errorf("%q, %v", text, err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}
