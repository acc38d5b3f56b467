// Command components is Kubernetes in one program, for the tests of e2e/kubernetes: called by the name of one of its parts,
// it is that part. etcd, which is called with its folder, is for a network namespace of its own.
package main

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/embed"
	"k8s.io/component-base/cli"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
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
		"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
		"kubelet":                 func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
		"kubectl":                 kubectl.NewDefaultKubectlCommand,
	}
	if command := commands[name]; command != nil {
		os.Exit(cli.Run(command()))
	}
	if name == "etcd" && len(os.Args) == 2 {
		return etcd(os.Args[1])
	}
	return fmt.Errorf("%s is no part of Kubernetes that is known here: link this program under the name of one", name)
}

// etcd serves until it fails.
func etcd(dir string) error {
	config := embed.NewConfig()
	config.Dir = dir
	clients, peers := []url.URL{{Scheme: "http", Host: "127.0.0.1:2379"}}, []url.URL{{Scheme: "http", Host: "127.0.0.1:2380"}}
	config.ListenClientUrls, config.AdvertiseClientUrls = clients, clients
	config.ListenPeerUrls, config.AdvertisePeerUrls = peers, peers
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	config.LogLevel = "error"
	config.UnsafeNoFsync = true // what is kept ends with the test
	server, err := embed.StartEtcd(config)
	if err != nil {
		return err
	}
	return <-server.Err()
}
