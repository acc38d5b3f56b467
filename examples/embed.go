// Package examples carries the example meshes inside the binary, so that `pilotfish demo` works from any directory. The
// files are meant to be copied: `pilotfish demo --write DIR` writes them out.
package examples

import (
	"embed"
	"io/fs"
)

//go:embed all:bookshop
var files embed.FS

// Bookshop is the example of `pilotfish demo`: mesh.yaml and the directory config.
func Bookshop() fs.FS {
	sub, err := fs.Sub(files, "bookshop")
	if err != nil {
		panic(err) // the name is a constant, and embedded
	}
	return sub
}
