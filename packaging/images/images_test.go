package main

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// writeInput writes an input directory for both architectures, whose programs are only ELF headers.
func writeInput(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for arch, machine := range machines {
		header := elf.Header64{Ident: [16]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
			Type: uint16(elf.ET_EXEC), Machine: uint16(machine), Version: uint32(elf.EV_CURRENT), Ehsize: 64}
		var program bytes.Buffer
		if err := binary.Write(&program, binary.LittleEndian, header); err != nil {
			t.Fatal(err)
		}
		for _, name := range append([]string{"envoy"}, programs...) {
			writeFile(t, filepath.Join(dir, arch, name), program.String()+name, 0o700)
		}
		writeFile(t, filepath.Join(dir, arch, "libc/lib/libc.so.6"), "libc", 0o600)
		writeFile(t, filepath.Join(dir, arch, "libc/lib/ld.so"), "loader", 0o700)
		if err := os.Symlink("/lib/ld.so", filepath.Join(dir, arch, "libc/lib/link")); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func writeFile(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), mode)); err != nil {
		t.Fatal(err)
	}
}

func newOptions(input, output string) options {
	return options{input: input, version: "1.2.3", commit: "abc", envoyVersion: "1.40.0", created: time.Unix(1700000000, 0).UTC(), output: output}
}

// readArchive unpacks an OCI archive and returns its image index.
func readArchive(t *testing.T, path string) v1.ImageIndex {
	t.Helper()
	dir := t.TempDir()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		writeFile(t, filepath.Join(dir, h.Name), string(text), 0o600)
	}
	all, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := all.IndexManifest()
	if err != nil || len(manifest.Manifests) != 1 {
		t.Fatalf("%s contains %+v, %v; want one index", path, manifest, err)
	}
	if got := manifest.Manifests[0].Annotations["org.opencontainers.image.ref.name"]; got != "1.2.3" {
		t.Errorf("the tag in %s is %q", path, got)
	}
	index, err := all.ImageIndex(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	return index
}

// listFiles describes the files of an image: mode, owner, path and link.
func listFiles(t *testing.T, image v1.Image) (files []string) {
	t.Helper()
	layers, err := image.Layers()
	if err != nil {
		t.Fatal(err)
	}
	for _, layer := range layers {
		text, err := layer.Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		for r := tar.NewReader(text); ; {
			h, err := r.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if !h.ModTime.Equal(time.Unix(0, 0)) || h.Uname != "" || h.Uid != h.Gid {
				t.Errorf("%s: time %v, owner %s %d:%d", h.Name, h.ModTime, h.Uname, h.Uid, h.Gid)
			}
			files = append(files, strings.TrimSpace(fmt.Sprintf("%04o %d %s %s", h.Mode, h.Uid, h.Name, h.Linkname)))
		}
	}
	return files
}

func TestImagesHaveBothArchitecturesAndFilesOfRoot(t *testing.T) {
	output := t.TempDir()
	if err := run(t.Context(), newOptions(writeInput(t), output)); err != nil {
		t.Fatal(err)
	}
	for kind, want := range map[string]struct {
		user, entrypoint string
		files            []string
	}{
		"proxyv2": {"1337:1337", "/usr/local/bin/pilot-agent", []string{"0755 0 usr/local/bin/envoy", "0755 0 usr/local/bin/pilotfish-agent", "0755 0 usr/local/bin/",
			"0777 0 usr/local/bin/pilot-agent pilotfish-agent", "0777 0 usr/local/bin/istio-iptables pilotfish-agent", "0755 1337 etc/istio/proxy/", "0755 0 etc/istio/",
			"0644 0 lib/libc.so.6", "0755 0 lib/ld.so", "0777 0 lib/link /lib/ld.so", "1777 0 tmp/"}},
		"install-cni": {"0:0", "/usr/local/bin/install-cni", []string{"0755 0 opt/cni/bin/pilotfish-cni", "0777 0 usr/local/bin/install-cni pilotfish-cni-install"}},
	} {
		index := readArchive(t, filepath.Join(output, "pilotfish-"+kind+"-1.2.3.oci.tar"))
		if err := validate.Index(index); err != nil {
			t.Error(err)
		}
		manifest, err := index.IndexManifest()
		if err != nil {
			t.Fatal(err)
		}
		var platforms []string
		for _, m := range manifest.Manifests {
			platforms = append(platforms, m.Platform.String())
			image, err := index.Image(m.Digest)
			if err != nil {
				t.Fatal(err)
			}
			file, err := image.ConfigFile()
			if err != nil {
				t.Fatal(err)
			}
			if file.Config.User != want.user || !slices.Equal(file.Config.Entrypoint, []string{want.entrypoint}) || file.Platform().String() != m.Platform.String() {
				t.Errorf("%s: user %s, entrypoint %v, platform %v", kind, file.Config.User, file.Config.Entrypoint, file.Platform())
			}
			files := listFiles(t, image)
			for _, f := range want.files {
				if !slices.Contains(files, f) {
					t.Errorf("%s lacks %q, it has:\n%s", kind, f, strings.Join(files, "\n"))
				}
			}
			checkOwners(t, files)
		}
		if !slices.Equal(platforms, []string{"linux/amd64", "linux/arm64"}) {
			t.Errorf("%s is for %v", kind, platforms)
		}
	}
}

// checkOwners checks that the sidecar's user owns only the directories that it writes to.
func checkOwners(t *testing.T, files []string) {
	t.Helper()
	for _, f := range files {
		words := strings.Fields(f)
		if words[1] != "0" && !slices.Contains(writableDirs, words[2]) {
			t.Errorf("the sidecar's user owns %s", f)
		}
	}
}

func TestImagesHaveSameBytesInEachBuildAndInARegistry(t *testing.T) {
	input, first, second := writeInput(t), t.TempDir(), t.TempDir()
	server := httptest.NewServer(registry.New())
	defer server.Close()
	o := newOptions(input, first)
	o.push = strings.TrimPrefix(server.URL, "http://") + "/pilotfish"
	if err := run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	later := time.Now().Add(time.Hour)
	if err := errors.Join(os.Chtimes(filepath.Join(input, "amd64/envoy"), later, later), run(t.Context(), newOptions(input, second))); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"proxyv2", "install-cni"} {
		file := "pilotfish-" + kind + "-1.2.3.oci.tar"
		a, errA := os.ReadFile(filepath.Join(first, file))
		b, errB := os.ReadFile(filepath.Join(second, file))
		if errA != nil || errB != nil || !bytes.Equal(a, b) {
			t.Errorf("%s has other bytes in the second build (%v, %v)", file, errA, errB)
		}
		tag, err := name.NewTag(o.push + "/" + kind + ":1.2.3")
		if err != nil {
			t.Fatal(err)
		}
		pushed, err := remote.Index(tag)
		if err != nil {
			t.Fatal(err)
		}
		got, errA := pushed.Digest()
		want, errB := readArchive(t, filepath.Join(first, file)).Digest()
		if errA != nil || errB != nil || got != want {
			t.Errorf("%s: the registry has %v, the archive %v (%v, %v)", kind, got, want, errA, errB)
		}
	}
}

// TestReleasesShareUnchangedLayers: a node that has one release pulls only the agent of the next one.
func TestReleasesShareUnchangedLayers(t *testing.T) {
	input := writeInput(t)
	digests := func(o options) (all []v1.Hash) {
		inputs, err := readInputs(o)
		if err != nil {
			t.Fatal(err)
		}
		image, err := buildImage(sidecarImage, inputs[0], o)
		if err != nil {
			t.Fatal(err)
		}
		manifest, err := image.Manifest()
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range manifest.Layers {
			all = append(all, l.Digest)
		}
		return all
	}
	o := newOptions(input, "")
	before := digests(o)
	o.version, o.created = "1.2.4", o.created.Add(time.Hour)
	agent, err := os.ReadFile(filepath.Join(input, "amd64/pilotfish-agent"))
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(input, "amd64/pilotfish-agent"), string(agent)+"next", 0o700)
	after := digests(o)
	if len(before) != 3 || !slices.Equal(before[:2], after[:2]) || before[2] == after[2] {
		t.Errorf("layers of two releases: %v, %v", before, after)
	}
}

func TestUnsuitableInputIsRefused(t *testing.T) {
	for want, change := range map[string]func(input string, o *options) error{
		"not the hash of a pinned Envoy release": func(_ string, o *options) error { o.envoyVersion = ""; return nil },
		"is a program for EM_X86_64, not for arm64": func(input string, _ *options) error {
			text, err := os.ReadFile(filepath.Join(input, "amd64/envoy"))
			return errors.Join(err, os.WriteFile(filepath.Join(input, "arm64/envoy"), text, 0o700))
		},
		"scripts/libc.sh":                      func(input string, _ *options) error { return os.RemoveAll(filepath.Join(input, "arm64/libc")) },
		"contains no directory amd64 or arm64": func(_ string, o *options) error { o.input = t.TempDir(); return nil },
		"pilotfish-agent: no such file or":     func(input string, _ *options) error { return os.Remove(filepath.Join(input, "arm64/pilotfish-agent")) },
	} {
		input := writeInput(t)
		o := newOptions(input, "")
		if err := change(input, &o); err != nil {
			t.Fatal(err)
		}
		if err := run(t.Context(), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

func TestImagesHaveTheRootsOfPublicServers(t *testing.T) {
	if n := strings.Count(rootCertificates(), "BEGIN CERTIFICATE"); n < 80 {
		t.Errorf("%d root certificates", n)
	}
}
