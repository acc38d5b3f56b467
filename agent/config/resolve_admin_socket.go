package config

import (
	"fmt"
	"path/filepath"
	"strings"
)

// maxAdminSocket is the maximum length of the admin socket's path. A unix socket address has at most 107 bytes. The
// agent needs the remaining 7 bytes for the number that it appends to the path for each Envoy process.
const maxAdminSocket = 100

// resolveAdminSocket returns the path of the admin socket; empty if ENVOY_ADMIN_SOCKET is not set.
func (r *resolver) resolveAdminSocket() string {
	const name, variable = "envoy.adminSocket", "ENVOY_ADMIN_SOCKET"
	path := r.env.vars[variable]
	if path == "" {
		return ""
	}
	if !isFilePath(path) {
		r.env.addValueError(variable, path, fmt.Sprintf("write the path of a file in a directory that contains nothing else, such as /run/pilotfish/admin.sock, of at most %d bytes", maxAdminSocket))
		return ""
	}
	path = socketPath(filepath.Dir(path), filepath.Base(path))
	r.env.addSetting(name, path, "environment "+variable)
	return path
}

// isFilePath reports whether path is valid for the admin socket.
func isFilePath(path string) bool {
	base := filepath.Base(path)
	return len(path) <= maxAdminSocket && !strings.ContainsAny(path, "@\x00*?[\\") && !strings.HasSuffix(path, "/") && base != "." && base != ".."
}
