// Command node contains the components of Kubernetes that command controlplane does not: kube-scheduler, kubelet,
// kube-proxy and kubectl. The name of the link that starts it selects the component.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	kubectl "k8s.io/kubectl/pkg/cmd"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func main() {
	commands := map[string]func() *cobra.Command{
		"kube-scheduler": func() *cobra.Command { return scheduler.NewSchedulerCommand() },
		"kubelet":        func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
		"kube-proxy":     proxy.NewProxyCommand,
		"kubectl":        kubectl.NewDefaultKubectlCommand,
	}
	name := filepath.Base(os.Args[0])
	command := commands[name]
	if command == nil {
		fmt.Fprintf(os.Stderr, "%s is not a component of this program: start it through a link named kube-scheduler, kubelet, kube-proxy or kubectl\n", name)
		os.Exit(1)
	}
	os.Exit(cli.Run(command()))
}
