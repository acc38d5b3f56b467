package agent

import (
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/pilotfish-mesh/pilotfish/envoy"
)

// hotDirectory is where Envoys that take over from each other have their sockets, under the configPath.
const hotDirectory = "hot"

// lineage is the Envoys that take over from each other by hot restart. What they share is removed with the last of them.
type lineage struct {
	hot envoy.HotRestart

	mu      sync.Mutex
	members int
}

// newLineage begins one, where hot restart is wanted and possible: agents that outlive their Envoy have a use for it, in
// a pod everything is replaced at once.
func (e *envoyPart) newLineage() *lineage {
	if !e.Config.Envoy.Restart {
		return nil
	}
	dir := e.hotDirectory()
	id, err := envoy.NewBaseID()
	if err == nil {
		err = (envoy.HotRestart{BaseID: id, Dir: dir}).Possible()
	}
	if err == nil {
		err = e.Config.Envoy.User.MkdirAll(dir, 0o700)
	}
	if err == nil {
		err = e.Config.Envoy.User.Give(dir)
	}
	if err != nil {
		e.Logger.Warn("Envoy runs without hot restart; an upgrade will hand over between two that listen side by side", "error", err)
		return nil
	}
	return &lineage{hot: envoy.HotRestart{BaseID: id, Dir: dir, User: e.Config.Envoy.User}}
}

func (e *envoyPart) hotDirectory() string {
	return filepath.Join(e.Config.Proxy.GetConfigPath(), hotDirectory)
}

// sweepLineages removes what the Envoys of a killed agent left behind.
func (e *envoyPart) sweepLineages() {
	if err := envoy.RemoveHotRestarts(e.hotDirectory()); err != nil {
		e.Logger.Warn("what an earlier run left behind stays", "error", err)
	}
}

// endLineages removes the directory of all lineages. Before the end one may be about to begin whenever another ends.
func (e *envoyPart) endLineages() { _ = os.Remove(e.hotDirectory()) }

// epoch is what the next Envoy is started with. The methods are those of no lineage too.
func (l *lineage) epoch(n int, keep time.Duration) *envoy.HotRestart {
	if l == nil {
		return nil
	}
	h := l.hot
	h.Epoch, h.ParentShutdown = n, keep
	return &h
}

func (l *lineage) join() {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.members++
}

// leave removes what is shared when the last Envoy has ended.
func (l *lineage) leave() error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.members--; l.members > 0 {
		return nil
	}
	return l.hot.Remove()
}
