package controlplane

import (
	"log/slog"
	"slices"
	"sync"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/translate"
)

// withheldSecretLog logs which Secrets the control plane does not send to one gateway, because the gateway's service
// account may not read them. It logs only changes of this list.
type withheldSecretLog struct {
	logger *slog.Logger

	mu    sync.Mutex
	names []string
}

func (w *withheldSecretLog) logChanges(s *snapshot.Snapshot, p *translate.Proxy) {
	names := translate.WithheldSecrets(s, p)
	w.mu.Lock()
	defer w.mu.Unlock()
	if slices.Equal(names, w.names) {
		return
	}
	if w.names = names; len(names) == 0 {
		return
	}
	w.logger.Warn("a proxy connects as a gateway, but its service account may not read the gateway's Secrets",
		"node", p.ID, "account", p.Namespace+"/"+p.ServiceAccount, "secrets", names,
		"remedy", "if the proxy is the gateway, list its account in the annotation "+config.AccountsAnnotation+" of the Secrets, or add a WorkloadEntry with the gateway's labels and account")
}
