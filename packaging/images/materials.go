package main

import (
	"bufio"
	"debug/buildinfo"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/packaging/sbom"
)

const rootsModule = "golang.org/x/crypto/x509roots/fallback"

// describe returns the SBOM of all programs and images.
func describe(inputs []*input, o options) ([]byte, error) {
	roots, err := describeRoots()
	if err != nil {
		return nil, err
	}
	product := &sbom.Component{Name: "pilotfish", Version: o.version, License: "Apache-2.0"}
	for _, in := range inputs {
		programs, err := describePrograms(in, o.version)
		if err != nil {
			return nil, err
		}
		libc, err := describeLibc(in)
		if err != nil {
			return nil, err
		}
		proxy := &sbom.Component{Name: "envoy", Version: in.envoyVersion, Arch: in.arch, License: "Apache-2.0", SHA256: in.envoyHash,
			PURL: "pkg:github/envoyproxy/envoy@v" + in.envoyVersion, DependsOn: []*sbom.Component{libc}}
		product.Contains = append(product.Contains, programs...)
		product.Contains = append(product.Contains, proxy)
	}
	product.Contains = append(product.Contains, roots)
	return sbom.Encode(product, fmt.Sprintf("https://github.com/pilotfish-mesh/pilotfish/sbom/%s/%s", o.version, o.commit), o.created)
}

// describePrograms describes the project's programs in the input directory, each with the Go modules that it links.
func describePrograms(in *input, version string) (programs []*sbom.Component, err error) {
	paths, err := filepath.Glob(in.path("pilotfish*"))
	if err != nil {
		return nil, err
	}
	for _, path := range paths {
		info, err := buildinfo.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		hash, err := hashFile(path)
		if err != nil {
			return nil, err
		}
		release := strings.TrimPrefix(info.GoVersion, "go")
		modules := []*sbom.Component{{Name: "stdlib", Version: release, License: "BSD-3-Clause", PURL: "pkg:golang/stdlib@" + release}}
		for _, m := range info.Deps {
			modules = append(modules, describeModule(m))
		}
		programs = append(programs, &sbom.Component{Name: filepath.Base(path), Version: version, Arch: in.arch, License: "Apache-2.0", SHA256: hash, DependsOn: modules})
	}
	return programs, nil
}

func describeModule(m *debug.Module) *sbom.Component {
	if m.Replace != nil {
		m = m.Replace
	}
	return &sbom.Component{Name: m.Path, Version: m.Version, PURL: "pkg:golang/" + strings.ToLower(m.Path) + "@" + m.Version}
}

// describeLibc describes the C library by the metadata of its Debian package.
func describeLibc(in *input) (*sbom.Component, error) {
	f, err := os.Open(in.path("libc/var/lib/dpkg/status.d/libc6"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if version, ok := strings.CutPrefix(lines.Text(), "Version: "); ok {
			return &sbom.Component{Name: "libc6", Version: version, Arch: in.arch, License: "LGPL-2.1-or-later",
				PURL: fmt.Sprintf("pkg:deb/debian/libc6@%s?arch=%s", strings.ReplaceAll(version, "+", "%2B"), in.arch)}, nil
		}
	}
	return nil, fmt.Errorf("%s has no version: %w", f.Name(), lines.Err())
}

// describeRoots describes the Go module that contains the root certificates. Its version is in this program's build
// information, because this program links the module.
func describeRoots() (*sbom.Component, error) {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return nil, fmt.Errorf("cannot list the modules of this program, because it contains no build information")
	}
	for _, m := range info.Deps {
		if m.Path == rootsModule {
			return describeModule(m), nil
		}
	}
	return nil, fmt.Errorf("this program does not link %s", rootsModule)
}
