package main

import (
	"io/fs"
	"os"
	"path/filepath"
)

// proxyUser is the user and group of the sidecar, as in Istio's image.
const proxyUser = 1337

// entry is a file, a directory (its path ends with a slash) or a symbolic link of an image.
type entry struct {
	path   string // without a leading slash
	mode   int64
	owner  int    // user and group
	source string // the file to copy; empty for text
	text   string
	link   string // target of a symbolic link
}

func newProgram(path, source string) entry { return entry{path: path, mode: 0o755, source: source} }

func newText(path, text string) entry { return entry{path: path, mode: 0o644, text: text} }

func newLink(path, target string) entry { return entry{path: path, mode: 0o777, link: target} }

const (
	passwd = `root:x:0:0:root:/root:/sbin/nologin
istio-proxy:x:1337:1337:istio-proxy:/:/sbin/nologin
nobody:x:65534:65534:nobody:/nonexistent:/sbin/nologin
`
	group = `root:x:0:
istio-proxy:x:1337:
nogroup:x:65534:
`
	// nsswitch lets the C library resolve names with /etc/hosts first.
	nsswitch = `passwd: files
group: files
hosts: files dns
`
)

// writableDirs are directories that the sidecar's user owns. The agent writes to those over which no volume is mounted.
var writableDirs = []string{"etc/istio/proxy/", "etc/istio/config/", "var/lib/istio/data/", "var/run/secrets/workload-spiffe-uds/"}

// listSidecarLayers returns the layers of the image proxyv2, the most stable one first: base system, Envoy, agent.
func listSidecarLayers(in *input) ([]layerContent, error) {
	base := []entry{
		newText("etc/passwd", passwd), newText("etc/group", group), newText("etc/nsswitch.conf", nsswitch),
		newText("etc/ssl/certs/ca-certificates.crt", rootCertificates()),
		{path: "tmp/", mode: 0o1777},
	}
	for _, dir := range writableDirs {
		base = append(base, entry{path: dir, mode: 0o755, owner: proxyUser})
	}
	libc, err := listTree(in.path("libc"))
	if err != nil {
		return nil, err
	}
	return []layerContent{
		{"base system", append(base, libc...)},
		{"Envoy " + in.envoyVersion, []entry{
			newProgram("usr/local/bin/envoy", in.path("envoy")),
			// The agent reads Envoy's version from this file, and writes the bootstrap for this version.
			newText("usr/local/bin/envoy.version", in.envoyVersion+"\n"),
		}},
		{"agent", []entry{
			newProgram("usr/local/bin/pilotfish-agent", in.path("pilotfish-agent")),
			// `pilotfish-agent iptables` executes this program, which starts faster.
			newProgram("usr/local/bin/pilotfish-iptables", in.path("pilotfish-iptables")),
			// Injection templates of Istio start the agent by these names.
			newLink("usr/local/bin/pilot-agent", "pilotfish-agent"),
			newLink("usr/local/bin/istio-iptables", "pilotfish-agent"),
		}},
	}, nil
}

// listCNILayers returns the layers of the image install-cni. The node agent copies the plugin to the node.
func listCNILayers(in *input) ([]layerContent, error) {
	return []layerContent{{"node agent", []entry{
		newText("etc/ssl/certs/ca-certificates.crt", rootCertificates()),
		newProgram("opt/cni/bin/pilotfish-cni", in.path("pilotfish-cni")),
		newProgram("opt/cni/bin/pilotfish-cni-tombstone", in.path("pilotfish-cni-tombstone")),
		newProgram("usr/local/bin/pilotfish-cni-install", in.path("pilotfish-cni-install")),
		// Istio's chart starts the node agent by this name.
		newLink("usr/local/bin/install-cni", "pilotfish-cni-install"),
	}}}, nil
}

// listTree returns the files, directories and symbolic links below dir, owned by root and with normalized modes.
func listTree(dir string) (entries []entry, err error) {
	root, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, err
	}
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		e := entry{path: name, mode: 0o644, source: path}
		switch {
		case d.IsDir():
			e = entry{path: name + "/", mode: 0o755}
		case d.Type() == fs.ModeSymlink:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			e = newLink(name, target)
		case info.Mode()&0o111 != 0:
			e.mode = 0o755
		}
		entries = append(entries, e)
		return nil
	})
	return entries, err
}
