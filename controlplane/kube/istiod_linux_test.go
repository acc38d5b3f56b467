package kube

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/controlplane/ca"
	"github.com/pilotfish-mesh/pilotfish/internal/testcluster"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// startIstiod starts istiod as the control plane of a namespace. The result ends it.
func startIstiod(t *testing.T, cluster *testcluster.Cluster, namespace string, environment ...string) (stop func()) {
	t.Helper()
	path, err := exec.Command(filepath.Join(testenv.Root(), "scripts", "istiod.sh"), "--print").Output()
	if err != nil {
		t.Fatal(err)
	}
	binary := strings.TrimSpace(string(path))
	if _, err := os.Stat(binary); err != nil {
		t.Skip("istiod is not built: run `make istiod`")
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "mesh.yaml"), []byte("trustDomain: mesh.example\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	free := "127.0.0.1:0"
	output := &testenv.Buffer{}
	cmd := exec.Command(binary, "discovery", "--meshConfig", "mesh.yaml", "--kubeconfig", cluster.Kubeconfig, "--httpAddr", free, "--grpcAddr", free,
		"--secureGRPCAddr", free, "--monitoringAddr", free, "--httpsAddr", "", "--ctrlz_port", "0")
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, output, output
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Env = append([]string{"POD_NAME=istiod", "POD_NAMESPACE=" + namespace, "HOME=" + dir, "PATH=" + os.Getenv("PATH"),
		"ENABLE_LEADER_ELECTION=false", "PILOT_ENABLE_GATEWAY_API=false"}, environment...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed
		if t.Failed() {
			t.Log(output.String())
		}
	}
	t.Cleanup(stop)
	return stop
}

func waitForSecret(t *testing.T, cluster *testcluster.Cluster, namespace, name string) {
	t.Helper()
	cluster.WaitForObject(t, "Secret "+name, "/api/v1/namespaces/"+namespace+"/secrets/"+name, func(o testcluster.Object) error {
		if o.Text("data", "ca-cert.pem") == "" {
			return errors.New("it does not exist")
		}
		return nil
	})
}

// istiod publishes its roots in all namespaces, so this test has its own cluster.
func TestAuthorityOfIstiod(t *testing.T) {
	cluster := testcluster.Start(t, testcluster.Options{})
	t.Run("istio-ca-secret", func(t *testing.T) { checkMigration(t, cluster) })
	t.Run("generated cacerts", func(t *testing.T) { checkMigrationOfCacerts(t, cluster) })
}

// checkMigration migrates a mesh of Istio to this control plane, rotates its root, and migrates the mesh back.
func checkMigration(t *testing.T, cluster *testcluster.Cluster) {
	namespace := cluster.Namespace(t)
	stop := startIstiod(t, cluster, namespace)
	waitForSecret(t, cluster, namespace, caSecretName)
	before := cluster.Get(t, "/api/v1/namespaces/"+namespace+"/secrets/"+caSecretName)
	stop()

	a := startReplicas(t, cluster, namespace, 1, ca.Options{TrustDomain: "mesh.example"})[0]
	secrets := newIdentity(t, cluster, namespace).Store.(*secretStore).secrets
	secret, err := secrets.get(t.Context(), caSecretName)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(a.RootPEM(), secret.Data[caCertKey]) || a.TrustDomain() != "mesh.example" {
		t.Errorf("the trust domain is %s, the roots are %s", a.TrustDomain(), a.RootPEM())
	}
	if _, err := a.ServerCertificate("istiod.istio-system.svc"); err != nil {
		t.Errorf("signing with istiod's key: %v", err)
	}
	if version := secret.ResourceVersion; version != before.Text("metadata", "resourceVersion") {
		t.Error("the control plane changed istiod's Secret, although no root is rotated")
	}
	for _, want := range []ca.RotationStep{ca.Announce, ca.Activate} {
		if step, err := a.Rotate(true); err != nil || step != want {
			t.Fatalf("%s: %s, %v", want, step, err)
		}
	}
	rotated, err := secrets.get(t.Context(), caSecretName)
	if err != nil {
		t.Fatal(err)
	}
	startIstiod(t, cluster, namespace)
	active := string(rotated.Data[caCertKey])
	cluster.WaitForObject(t, "roots of istiod", rootsPath("default"), func(o testcluster.Object) error {
		if got := o.Text("data", rootsMapKey); strings.TrimSpace(got) != strings.TrimSpace(active) {
			return errors.New("istiod does not publish the active root: " + got)
		}
		return nil
	})
}

func checkMigrationOfCacerts(t *testing.T, cluster *testcluster.Cluster) {
	namespace := cluster.Namespace(t)
	stop := startIstiod(t, cluster, namespace, "USE_CACERTS_FOR_SELF_SIGNED_CA=true")
	waitForSecret(t, cluster, namespace, plugInSecretName)
	stop()
	a := startReplicas(t, cluster, namespace, 1, ca.Options{TrustDomain: "mesh.example"})[0]
	cert, err := a.ServerCertificate("istiod.istio-system.svc")
	if err != nil || time.Now().After(cert.Leaf.NotAfter) {
		t.Errorf("signing with istiod's key: %v", err)
	}
	if _, err := a.Rotate(true); err != nil {
		t.Errorf("rotating the root that istiod created: %v", err)
	}
	secrets := newIdentity(t, cluster, namespace).Store.(*secretStore)
	if secrets.name != plugInSecretName {
		t.Errorf("the store is Secret %s", secrets.name)
	}
	if _, err := secrets.secrets.get(t.Context(), caSecretName); !isMissing(err) {
		t.Errorf("%s exists: %v", caSecretName, err)
	}
}
