package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/pilotfish-mesh/pilotfish/agent/config"
	"github.com/pilotfish-mesh/pilotfish/internal/dial"
)

// With ENVOY_ADMIN_SOCKET=PATH, the admin sockets are PATH.0, PATH.1 and so on, and PATH is a symbolic link to the
// socket of the serving Envoy. The Envoys of one hot restart bind the same socket; every other Envoy has its own.

// makeAdminDirectory creates the directory of the admin socket. It fails if users other than Envoy's can enter the
// directory: Envoy creates the socket with a wider mode and restricts it afterwards.
func makeAdminDirectory(c *config.Config) error {
	if c.Envoy.AdminSocket == "" {
		return nil
	}
	dir := filepath.Dir(c.Envoy.AdminSocket)
	if err := c.Envoy.User.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return fmt.Errorf("creating the directory of ENVOY_ADMIN_SOCKET: %w", err)
	}
	err := os.Mkdir(dir, 0o700)
	if err == nil {
		err = c.Envoy.User.Chown(dir)
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("creating the directory of ENVOY_ADMIN_SOCKET: %w", err)
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return fmt.Errorf("ENVOY_ADMIN_SOCKET: %w", err)
	}
	owner := info.Sys().(*syscall.Stat_t).Uid
	if !info.IsDir() || info.Mode().Perm()&0o077 != 0 || owner != envoyUID(c) {
		return fmt.Errorf("ENVOY_ADMIN_SOCKET: %s has mode %s and belongs to user %d: it must be a directory of user %d with mode 0700; "+
			"specify a path in a directory that does not exist yet: the agent creates it", dir, info.Mode(), owner, envoyUID(c))
	}
	return nil
}

// nextAdminSocket returns the socket path for the next Envoy. It first removes the sockets on which no Envoy listens.
func (e *envoySupervisor) nextAdminSocket() string {
	e.removeStaleAdminSockets()
	p := &e.upgrades.adminForwarder
	p.mu.Lock()
	defer p.mu.Unlock()
	p.socketCount++
	return e.bootstrap.AdminSocket + "." + strconv.Itoa(p.socketCount-1)
}

// linkAdmin makes the symbolic link ENVOY_ADMIN_SOCKET refer to socket. It replaces the link atomically.
func (e *envoySupervisor) linkAdmin(socket string) {
	link := e.bootstrap.AdminSocket
	temporary := link + ".new"
	_ = os.Remove(temporary)
	err := os.Symlink(filepath.Base(socket), temporary)
	if err == nil {
		err = os.Rename(temporary, link)
	}
	if err != nil {
		e.Logger.Error("cannot create the link to Envoy's admin socket", "link", link, "socket", socket, "error", err)
	}
}

// removeStaleAdminSockets removes the admin sockets on which no Envoy listens.
func (e *envoySupervisor) removeStaleAdminSockets() {
	for _, socket := range e.listAdminSockets() {
		conn, err := net.Dial("unix", socket)
		if err == nil {
			_ = conn.Close()
		} else if errors.Is(err, syscall.ECONNREFUSED) {
			_ = os.Remove(socket)
		}
	}
}

// removeAdminSockets removes the link and all sockets. It is called after the last Envoy has exited.
func (e *envoySupervisor) removeAdminSockets() {
	e.removeStaleAdminSockets()
	if link := e.bootstrap.AdminSocket; link != "" {
		_ = os.Remove(link)
	}
}

// listAdminSockets returns the paths of the existing admin sockets.
func (e *envoySupervisor) listAdminSockets() []string {
	prefix := e.bootstrap.AdminSocket
	if prefix == "" {
		return nil
	}
	files, _ := filepath.Glob(prefix + ".*")
	var sockets []string
	for _, file := range files {
		if _, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(file), filepath.Base(prefix)+".")); err == nil {
			sockets = append(sockets, file)
		}
	}
	return sockets
}

// adminURL returns the base URL of the admin interface at address, for clients that dial with dial.Localhost.
func adminURL(address string) string {
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		return "http://" + dial.SocketHost(path)
	}
	return "http://" + address
}
