package kube

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	meshconfig "istio.io/api/mesh/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/internal/backoff"
)

const (
	// meshKey is the key of the mesh configuration in its ConfigMap.
	meshKey = "mesh"
	// firstReadTimeout limits the time until the API server must return the ConfigMap at the start.
	firstReadTimeout = 30 * time.Second
)

// MeshConfigMap is the mesh configuration in a ConfigMap. It implements controlplane.MeshSource and table. If the content
// becomes invalid, the last valid content stays in effect.
type MeshConfigMap struct {
	file    string // for positions: ConfigMap namespace/name
	log     *slog.Logger
	feed    *feed
	changed func()

	mu       sync.Mutex
	text     string
	exists   bool
	current  *meshconfig.MeshConfig
	problems []config.Problem
}

// OpenMeshConfig reads the mesh configuration from the ConfigMap `istio`, or `istio-REVISION`. If the ConfigMap does not
// exist, the defaults apply until it is created. OpenMeshConfig retries for some time while the API server does not
// answer. It fails if the content is invalid, because there is no earlier valid content.
func OpenMeshConfig(ctx context.Context, client *Client, namespace, revision string, log *slog.Logger) (*MeshConfigMap, error) {
	name := "istio"
	if revision != "" && revision != "default" {
		name += "-" + revision
	}
	core, err := client.REST(schema.GroupVersion{Version: "v1"})
	if err != nil {
		return nil, err
	}
	m := &MeshConfigMap{file: fmt.Sprintf("ConfigMap %s/%s", namespace, name), log: log}
	configMap, err := m.readFirst(ctx, core, namespace, name)
	if err != nil {
		return nil, fmt.Errorf("mesh configuration: reading %s of the cluster %s: %w", m.file, client.Host(), err)
	}
	if configMap != nil {
		m.update(configMap.Data[meshKey], true)
		if len(m.problems) > 0 && m.current == nil {
			return nil, fmt.Errorf("mesh configuration %s: %s; %s", m.file, m.problems[0].Message, m.problems[0].Remedy)
		}
	}
	list := &listWatch{client: core, resource: resource{
		name: "configmaps", namespace: namespace, fieldSelector: "metadata.name=" + name, newList: func() runtime.Object { return &corev1.ConfigMapList{} },
		convert: func(o runtime.Object) any { return o.(*corev1.ConfigMap).Data[meshKey] },
	}}
	m.feed = newFeed("ConfigMap", list, m, nil, func() {})
	return m, nil
}

// readFirst returns the ConfigMap, or nil if it does not exist.
func (m *MeshConfigMap) readFirst(ctx context.Context, core *rest.RESTClient, namespace, name string) (*corev1.ConfigMap, error) {
	ctx, cancel := context.WithTimeout(ctx, firstReadTimeout)
	defer cancel()
	retry := backoff.Backoff{Min: minRetry, Max: maxRetry}
	for {
		configMap := &corev1.ConfigMap{}
		err := core.Get().Namespace(namespace).Resource("configmaps").Name(name).Do(ctx).Into(configMap)
		switch {
		case err == nil:
			return configMap, nil
		case apierrors.IsNotFound(err):
			return nil, nil
		case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
			return nil, err
		}
		m.log.Warn("the API server does not answer; retrying", "error", err)
		if !backoff.Sleep(ctx, retry.Next()) {
			return nil, err
		}
	}
}

// Mesh returns the configuration in effect, or nil if there is none.
func (m *MeshConfigMap) Mesh() *meshconfig.MeshConfig {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.current
}

// Problems returns the problems of the current content.
func (m *MeshConfigMap) Problems() []config.Problem {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.problems
}

// Run watches the ConfigMap until ctx ends, and calls changed after each change of the configuration.
func (m *MeshConfigMap) Run(ctx context.Context, changed func()) {
	m.changed = changed
	m.feed.run(ctx)
}

func (m *MeshConfigMap) put(o *object) {
	if m.update(o.value.(string), true) {
		m.changed()
	}
}

func (m *MeshConfigMap) remove(*object) {
	if m.update("", false) {
		m.changed()
	}
}

func (m *MeshConfigMap) replace(all []*object) {
	if len(all) == 0 {
		m.remove(nil)
		return
	}
	m.put(all[0])
}

func (m *MeshConfigMap) removeNamespaces(func(string) bool) {}

func (m *MeshConfigMap) size() (objects, bytes int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.exists {
		objects = 1
	}
	return objects, len(m.text)
}

// update applies new content, or the removal of the ConfigMap. It reports whether the configuration in effect changed.
func (m *MeshConfigMap) update(text string, exists bool) (changed bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if exists == m.exists && text == m.text {
		return false
	}
	m.text, m.exists = text, exists
	if !exists {
		m.log.Warn("the mesh configuration was removed; the defaults apply", "configMap", m.file)
		changed, m.current, m.problems = m.current != nil, nil, nil
		return changed
	}
	mesh, problems := config.ReadMesh(m.file, []byte(text))
	if m.problems = problems; mesh != nil {
		m.current = mesh
		m.log.Info("the control plane has a new mesh configuration", "configMap", m.file)
		return true
	}
	refused := problems[0]
	m.log.Error("the mesh configuration is invalid; the last valid one stays in effect", "configMap", m.file, "error", refused.Message)
	refused.Code, refused.Severity = config.MeshConfigRefused, config.Error
	refused.Remedy = "fix the ConfigMap; the last valid configuration stays in effect"
	m.problems = []config.Problem{refused}
	return false
}
