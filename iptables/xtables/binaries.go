package xtables

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	goiptables "github.com/coreos/go-iptables/iptables"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// Flavour is the kernel interface that an iptables binary uses: nftables or legacy. A binary of one flavour does not list or
// change rules of the other.
type Flavour string

// The flavours.
const (
	NFT    Flavour = "nft"
	Legacy Flavour = "legacy"
)

// tool is the set of iptables binaries of one family and flavour.
type tool struct {
	family  iptables.Families
	flavour Flavour
	save    string
	restore string
	waits   bool // the restore program supports the option --wait
}

func (t tool) String() string { return fmt.Sprintf("%s-%s", program(t.family), t.flavour) }

func program(family iptables.Families) string {
	if family == iptables.IPv6 {
		return "ip6tables"
	}
	return "iptables"
}

// standardFolders are searched after $PATH. Container runtimes may start CNI plugins with a $PATH that lacks the sbin
// directories.
var standardFolders = []string{"/usr/sbin", "/sbin", "/usr/local/sbin", "/usr/bin", "/bin"}

func lookUp(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err == nil {
		return path, nil
	}
	for _, folder := range standardFolders {
		if path, err := exec.LookPath(filepath.Join(folder, name)); err == nil {
			return path, nil
		}
	}
	return "", err
}

// findTools searches for the binaries for an address family. It returns at most one tool per flavour. The error names
// the binaries that exist but do not work.
func findTools(ctx context.Context, family iptables.Families) ([]tool, error) {
	var tools []tool
	var errs []error
	name := program(family)
	for _, candidate := range []string{name + "-nft", name + "-legacy", name} {
		path, err := lookUp(candidate)
		if err != nil {
			continue
		}
		t, err := examine(ctx, family, path)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if !slices.ContainsFunc(tools, func(o tool) bool { return o.flavour == t.flavour }) {
			tools = append(tools, t)
		}
	}
	return tools, errors.Join(errs...)
}

func examine(ctx context.Context, family iptables.Families, path string) (tool, error) {
	t := tool{family: family, save: path + "-save", restore: path + "-restore"}
	said, err := version(ctx, path)
	if err != nil {
		return t, err
	}
	protocol := goiptables.ProtocolIPv4
	if family == iptables.IPv6 {
		protocol = goiptables.ProtocolIPv6
	}
	known, err := goiptables.New(goiptables.IPFamily(protocol), goiptables.Path(path))
	if err != nil {
		return t, fmt.Errorf("%s does not work: %w", path, err)
	}
	major, minor, patch := known.GetIptablesVersion()
	t.waits = slices.Compare([]int{major, minor, patch}, []int{1, 6, 2}) >= 0
	t.flavour = flavourOf(path, said)
	for _, needed := range []string{t.save, t.restore} {
		if _, err := exec.LookPath(needed); err != nil {
			return t, fmt.Errorf("%s exists, but %s does not: %w", path, filepath.Base(needed), err)
		}
	}
	return t, nil
}

// version returns the output of the binary's --version. It has a timeout, and is called before go-iptables runs the
// binary without a timeout.
func version(ctx context.Context, path string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, versionLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "--version")
	cmd.WaitDelay = drainLimit
	out, err := cmd.Output()
	switch {
	case ctx.Err() != nil:
		return "", fmt.Errorf("%s --version did not exit in time: %w", path, ctx.Err())
	case err != nil:
		return "", fmt.Errorf("%s --version: %w", path, err)
	}
	return string(out), nil
}

// flavourOf derives the flavour from the path or the version output. Binaries before version 1.8 are legacy, and do not print
// a flavour.
func flavourOf(path, said string) Flavour {
	for _, f := range []Flavour{NFT, Legacy} {
		if strings.HasSuffix(path, "-"+string(f)) {
			return f
		}
	}
	if strings.Contains(said, "nf_tables") {
		return NFT
	}
	return Legacy
}
