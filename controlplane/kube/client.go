// Package kube connects the control plane to a Kubernetes cluster. Source is a store of the cluster's objects and
// documents.
package kube

import (
	"errors"
	"fmt"
	"net/http"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/pilotfish-mesh/pilotfish/version"
)

const (
	// clientQPS and clientBurst limit the requests of the control plane per second. They exceed the load of normal
	// operation, because the API server has its own limits per client.
	clientQPS, clientBurst = 100, 200
	contentProtobuf        = "application/vnd.kubernetes.protobuf"
	contentJSON            = "application/json"
)

// types contains the API types that the control plane uses, without those of all other API groups.
var types = func() *runtime.Scheme {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, discoveryv1.AddToScheme, authenticationv1.AddToScheme, coordinationv1.AddToScheme, metav1.AddMetaToScheme,
	} {
		if err := add(scheme); err != nil {
			panic(err) // two types have the same name
		}
	}
	return scheme
}()

var (
	codecs         = serializer.NewCodecFactory(types)
	parameterCodec = runtime.NewParameterCodec(types)
)

// ClientConfig specifies how to connect to a cluster.
type ClientConfig struct {
	// Kubeconfig is the path of a kubeconfig file. Default: the files in the environment variable KUBECONFIG, otherwise
	// ~/.kube/config, otherwise the service account of the pod.
	Kubeconfig string
	// Context is the name of a context in the kubeconfig file; default: its current context.
	Context string
}

// Client sends requests to the API server of a cluster. Its methods may be called concurrently.
type Client struct {
	config *rest.Config
	http   *http.Client
}

// NewClient returns a client. It does not connect to the API server.
func NewClient(c ClientConfig) (*Client, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = c.Kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: c.Context}).ClientConfig()
	switch {
	case clientcmd.IsEmptyConfig(err):
		return nil, errors.New("no Kubernetes cluster is configured: set --kubeconfig or KUBECONFIG, or run in a pod with a service account")
	case err != nil:
		return nil, fmt.Errorf("reading the kubeconfig: %w", err)
	}
	return newClient(config)
}

func newClient(config *rest.Config) (*Client, error) {
	config = rest.CopyConfig(config)
	config.UserAgent = "pilotfish-control-plane/" + version.Version
	config.QPS, config.Burst = clientQPS, clientBurst
	config.WarningHandler = rest.NoWarnings{} // warnings about deprecated versions, which concern no user
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("configuring the connection to the API server: %w", err)
	}
	return &Client{config: config, http: client}, nil
}

// Host returns the address of the API server.
func (c *Client) Host() string { return c.config.Host }

// REST returns a client for the typed resources of an API group, in protobuf encoding. The groups are core, discovery,
// authentication and coordination, all in version v1.
func (c *Client) REST(group schema.GroupVersion) (*rest.RESTClient, error) {
	return c.rest(group, contentProtobuf+","+contentJSON, contentProtobuf)
}

// restJSON returns a client for resources in JSON encoding, whose types are not in this program.
func (c *Client) restJSON(group schema.GroupVersion) (*rest.RESTClient, error) {
	return c.rest(group, contentJSON, contentJSON)
}

func (c *Client) rest(group schema.GroupVersion, accept, send string) (*rest.RESTClient, error) {
	config := rest.CopyConfig(c.config)
	config.GroupVersion = &group
	config.APIPath = "/apis"
	if group.Group == "" {
		config.APIPath = "/api"
	}
	config.AcceptContentTypes, config.ContentType = accept, send
	config.NegotiatedSerializer = codecs.WithoutConversion()
	client, err := rest.RESTClientForConfigAndClient(config, c.http)
	if err != nil {
		return nil, fmt.Errorf("configuring the client for %s: %w", group, err)
	}
	return client, nil
}
