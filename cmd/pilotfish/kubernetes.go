package main

import (
	"cmp"
	"context"
	"os"

	"github.com/spf13/pflag"

	"github.com/pilotfish-mesh/pilotfish/controlplane"
	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/envoyfilter"
	"github.com/pilotfish-mesh/pilotfish/controlplane/kube"
)

// kubernetesFlags are the flags of the control plane that select a Kubernetes cluster.
type kubernetesFlags struct {
	enabled   bool
	client    kube.ClientConfig
	namespace string
	revision  string
	audiences []string
	identity  *kube.Identity // nil without a cluster
}

// newKubernetesExtension returns the part of the control plane that reads a Kubernetes cluster.
func newKubernetesExtension() controlplane.Extension {
	k := &kubernetesFlags{}
	return controlplane.Extension{AddFlags: k.addFlags, Configure: k.configure, Run: k.runIdentity, SourceFlag: "kubernetes"}
}

func (k *kubernetesFlags) addFlags(flags *pflag.FlagSet) {
	flags.BoolVar(&k.enabled, "kubernetes", false, "read the objects and the Istio documents of a Kubernetes cluster")
	flags.StringVar(&k.client.Kubeconfig, "kubeconfig", "", "kubeconfig file of the cluster (default: $KUBECONFIG, ~/.kube/config, or the pod's service account)")
	flags.StringVar(&k.client.Context, "context", "", "context in the kubeconfig file (default: its current context)")
	k.addIdentityFlags(flags)
	// istiod's variables
	flags.StringVar(&k.namespace, "system-namespace", cmp.Or(os.Getenv("POD_NAMESPACE"), "istio-system"), "namespace of the control plane, with the ConfigMap of the mesh configuration (default: $POD_NAMESPACE or istio-system)")
	flags.StringVar(&k.revision, "revision", os.Getenv("REVISION"), "revision of the control plane, whose mesh configuration is in the ConfigMap istio-REVISION (default: $REVISION)")
}

// configure adds the cluster to the sources of documents. A file of --mesh-config takes precedence over the ConfigMap.
func (k *kubernetesFlags) configure(ctx context.Context, cfg *controlplane.Config) error {
	if !k.enabled {
		return nil
	}
	client, err := kube.NewClient(k.client)
	if err != nil {
		return err
	}
	if cfg.MeshConfigFile == "" {
		if cfg.MeshSource, err = kube.OpenMeshConfig(ctx, client, k.namespace, k.revision, cfg.Logger); err != nil {
			return err
		}
	}
	source, err := kube.NewSource(kube.SourceConfig{
		Client: client, Logger: cfg.Logger,
		Parser: config.Parser{Check: envoyfilter.Check, StartsProxies: cfg.StartsProxies, OnInvalidPolicy: cfg.OnInvalidPolicy},
	})
	if err != nil {
		return err
	}
	cfg.Sources = append(cfg.Sources, source)
	return k.openIdentity(ctx, client, source, cfg)
}
