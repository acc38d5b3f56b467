package xt

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	goiptables "github.com/coreos/go-iptables/iptables"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// Flavour is which of the kernel's two implementations a binary speaks to. They know nothing of each other's rules.
type Flavour string

// The flavours.
const (
	NFT    Flavour = "nft"
	Legacy Flavour = "legacy"
)

// tool is the binaries of one family and flavour.
type tool struct {
	family  iptables.Families
	flavour Flavour
	save    string
	restore string
	waits   bool // restore knows --wait
}

func (t tool) String() string { return fmt.Sprintf("%s-%s", program(t.family), t.flavour) }

func program(family iptables.Families) string {
	if family == iptables.IPv6 {
		return "ip6tables"
	}
	return "iptables"
}

// standardFolders are looked in after $PATH, which container runtimes may give to plugins without the sbin folders.
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

// find looks for the binaries of a family, of each flavour at most once. Of those that are there but do not run it tells
// why.
func find(ctx context.Context, family iptables.Families) ([]tool, error) {
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
	protocol := goiptables.ProtocolIPv4
	if family == iptables.IPv6 {
		protocol = goiptables.ProtocolIPv6
	}
	known, err := goiptables.New(goiptables.IPFamily(protocol), goiptables.Path(path))
	if err != nil {
		return t, fmt.Errorf("%s does not run: %w", path, err)
	}
	major, minor, patch := known.GetIptablesVersion()
	t.waits = slices.Compare([]int{major, minor, patch}, []int{1, 6, 2}) >= 0
	if t.flavour, err = flavourOf(ctx, path); err != nil {
		return t, err
	}
	for _, needed := range []string{t.save, t.restore} {
		if _, err := exec.LookPath(needed); err != nil {
			return t, fmt.Errorf("%s is here without %s: %w", path, filepath.Base(needed), err)
		}
	}
	return t, nil
}

// flavourOf goes by the name where it says so. Binaries older than 1.8 are legacy and do not mention it.
func flavourOf(ctx context.Context, path string) (Flavour, error) {
	for _, f := range []Flavour{NFT, Legacy} {
		if strings.HasSuffix(path, "-"+string(f)) {
			return f, nil
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("%s --version: %w", path, err)
	}
	if strings.Contains(string(out), "nf_tables") {
		return NFT, nil
	}
	return Legacy, nil
}
