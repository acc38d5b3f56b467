package agent

import (
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/pilotfish-mesh/pilotfish/envoy"
)

// hotRestartDirName is the directory under configPath for the sockets of hot restarts.
const hotRestartDirName = "hot"

// hotRestartGroup is a series of Envoys, each of which receives the sockets of its predecessor by hot restart. The
// agent removes their shared files after the exit of the last member.
type hotRestartGroup struct {
	config envoy.HotRestart

	mu      sync.Mutex
	members int
}

// newHotRestartGroup returns a new group; nil if hot restart is not configured or not possible. Only agents with
// --restart use hot restart: in a pod, agent and Envoy are replaced together.
func (e *envoySupervisor) newHotRestartGroup() *hotRestartGroup {
	if !e.Config.Envoy.Restart {
		return nil
	}
	dir := e.hotRestartDir()
	id, err := envoy.NewBaseID()
	if err == nil {
		err = (envoy.HotRestart{BaseID: id, Dir: dir}).CheckSupport()
	}
	if err == nil {
		err = e.Config.Envoy.User.MkdirAll(dir, 0o700)
	}
	if err == nil {
		err = e.Config.Envoy.User.Chown(dir)
	}
	if err != nil {
		e.Logger.Warn("Envoy runs without hot restart; upgrades use the mode hand-over", "error", err)
		return nil
	}
	return &hotRestartGroup{config: envoy.HotRestart{BaseID: id, Dir: dir, User: e.Config.Envoy.User}}
}

func (e *envoySupervisor) hotRestartDir() string {
	return filepath.Join(e.Config.Proxy.GetConfigPath(), hotRestartDirName)
}

// removeStaleHotRestarts removes hot restart files that an earlier run left behind, because its agent was killed.
func (e *envoySupervisor) removeStaleHotRestarts() {
	if err := envoy.RemoveHotRestartFiles(e.hotRestartDir()); err != nil {
		e.Logger.Warn("cannot remove hot restart files of an earlier run", "error", err)
	}
}

// removeHotRestartDir removes the directory of all groups. It is called only when the agent stops, because a new group
// may need the directory before.
func (e *envoySupervisor) removeHotRestartDir() { _ = os.Remove(e.hotRestartDir()) }

// options returns the hot restart options of the Envoy with restart epoch n. That Envoy terminates its parent after
// parentShutdown. Like all methods, it may be called on nil, and then returns nil.
func (l *hotRestartGroup) options(n int, parentShutdown time.Duration) *envoy.HotRestart {
	if l == nil {
		return nil
	}
	h := l.config
	h.Epoch, h.ParentShutdown = n, parentShutdown
	return &h
}

func (l *hotRestartGroup) addMember() {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.members++
}

// removeMember counts a member as exited. After the exit of the last member it removes the shared files.
func (l *hotRestartGroup) removeMember() error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.members--; l.members > 0 {
		return nil
	}
	return l.config.RemoveFiles()
}
