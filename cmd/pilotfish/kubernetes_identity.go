package main

import (
	"cmp"
	"context"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"github.com/pilotfish-mesh/pilotfish/controlplane"
	"github.com/pilotfish-mesh/pilotfish/controlplane/ca"
	"github.com/pilotfish-mesh/pilotfish/controlplane/kube"
)

func (k *kubernetesFlags) addIdentityFlags(flags *pflag.FlagSet) {
	audiences := strings.Split(cmp.Or(os.Getenv("TOKEN_AUDIENCES"), ca.TokenAudience), ",") // istiod's variable
	flags.StringSliceVar(&k.audiences, "token-audiences", audiences, "accepted audiences of the pods' tokens in a Kubernetes cluster (default: $TOKEN_AUDIENCES or "+ca.TokenAudience+")")
}

// openIdentity makes the control plane verify tokens of pods, and store its certificate authority in the cluster. A CA
// in a directory takes precedence over the Secrets.
func (k *kubernetesFlags) openIdentity(ctx context.Context, client *kube.Client, source *kube.Source, cfg *controlplane.Config) (err error) {
	k.identity, err = kube.OpenIdentity(ctx, kube.IdentityConfig{
		Client: client, Namespace: k.namespace, Revision: k.revision, Audiences: k.audiences, Live: kube.SourceObjects{Source: source},
		HasExternalCA: cfg.Authority.PlugIn != "", Logger: cfg.Logger,
	})
	if err != nil {
		return err
	}
	cfg.Authority.Store, cfg.Authority.Material, cfg.Authority.Tokens = k.identity.Store, k.identity.Material, k.identity.Tokens
	return nil
}

// runIdentity publishes the roots and takes part in the election of a leader, alongside server.
func (k *kubernetesFlags) runIdentity(ctx context.Context, server *controlplane.Server) {
	if k.identity != nil {
		k.identity.Run(ctx, server.Authority().RootPEM)
	}
}
