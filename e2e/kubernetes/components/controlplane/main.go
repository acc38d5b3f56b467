// Command controlplane is Kubernetes without nodes in one program, for tests: etcd, kube-apiserver and
// kube-controller-manager. The name of the link that starts it selects the component.
package main

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/embed"
	"k8s.io/component-base/cli"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
)

func main() {
	if err := run(filepath.Base(os.Args[0])); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(name string) error {
	commands := map[string]func() *cobra.Command{
		"kube-apiserver":          apiserver.NewAPIServerCommand,
		"kube-controller-manager": controllers.NewControllerManagerCommand,
	}
	if command := commands[name]; command != nil {
		os.Exit(cli.Run(command()))
	}
	if name == "etcd" && len(os.Args) == 3 {
		return serveEtcd(os.Args[1], os.Args[2])
	}
	return fmt.Errorf("%s is not a component of this program: start it through a link named etcd (with a data directory and a socket), "+
		"kube-apiserver or kube-controller-manager", name)
}

// serveEtcd serves clients on a Unix socket until etcd fails.
func serveEtcd(dir, socket string) error {
	config := embed.NewConfig()
	config.Dir = dir
	config.ListenClientUrls = []url.URL{{Scheme: "unix", Path: socket}}
	config.ListenPeerUrls = []url.URL{{Scheme: "unix", Path: socket + ".peers"}}
	// An advertised address must be TCP. Nothing uses these.
	config.AdvertiseClientUrls = []url.URL{{Scheme: "http", Host: "127.0.0.1:2379"}}
	config.AdvertisePeerUrls = []url.URL{{Scheme: "http", Host: "127.0.0.1:2380"}}
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	config.LogLevel = "error"
	config.UnsafeNoFsync = true // the data is deleted after the test
	server, err := embed.StartEtcd(config)
	if err != nil {
		return fmt.Errorf("starting etcd in %s: %w", dir, err)
	}
	return <-server.Err()
}
