// Command images builds the project's container images without a container engine: proxyv2 (the sidecar, gateway and
// init container) and install-cni (the node agent of the CNI plugin). Each image has one manifest per architecture. The
// same input yields the same bytes. See docs/container.md.
//
//	go run ./packaging/images --input DIR --version 0.1.0 --output dist
//
// The input directory has one directory per architecture (amd64, arm64) with the project's programs, with the program
// "envoy", and with the C library that Envoy needs in the directory "libc".
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// options are the settings of a build.
type options struct {
	input        string // directory with one directory per architecture
	version      string // the images' tag
	commit       string
	envoyVersion string // empty if Envoy is a pinned release
	created      time.Time
	output       string // directory of the archives; empty for none
	push         string // repository prefix, such as registry.example/pilotfish; empty for none
	sbom         string // file for the SBOM; empty for none
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	o, err := parseOptions(os.Args[1:])
	if err == nil {
		err = run(ctx, o)
	}
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "images:", err)
		os.Exit(1)
	}
}

func parseOptions(args []string) (o options, err error) {
	flags := flag.NewFlagSet("images", flag.ContinueOnError)
	flags.StringVar(&o.input, "input", "", "directory with the programs, in one subdirectory per architecture (amd64, arm64)")
	flags.StringVar(&o.version, "version", "", "version of the programs, such as 1.2.3; also the tag of the images")
	flags.StringVar(&o.commit, "commit", "unknown", "commit of the programs")
	flags.StringVar(&o.envoyVersion, "envoy-version", "", "version of the input's Envoy; required if the program is not a pinned release")
	seconds := flags.Int64("time", 0, "creation time of the images, in seconds since 1970 (the value of SOURCE_DATE_EPOCH)")
	flags.StringVar(&o.output, "output", "", "write OCI archives into this directory")
	flags.StringVar(&o.push, "push", "", "push the images to this repository, such as registry.example/pilotfish")
	flags.StringVar(&o.sbom, "sbom", "", "write an SBOM of the programs and images (SPDX 2.3, JSON) to this file")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	o.created = time.Unix(*seconds, 0).UTC()
	if o.input == "" || o.version == "" || flags.NArg() > 0 {
		return o, errors.New("usage: images --input DIR --version VERSION [--output DIR] [--push REPOSITORY] [--sbom FILE]")
	}
	return o, nil
}

func run(ctx context.Context, o options) error {
	inputs, err := readInputs(o)
	if err != nil {
		return err
	}
	for _, kind := range []imageKind{sidecarImage, cniImage} {
		index, err := buildIndex(kind, inputs, o)
		if err != nil {
			return fmt.Errorf("building the image %s: %w", kind.name, err)
		}
		if err := publish(ctx, kind, index, o); err != nil {
			return err
		}
	}
	if o.sbom == "" {
		return nil
	}
	text, err := describe(inputs, o)
	if err != nil {
		return fmt.Errorf("building the SBOM: %w", err)
	}
	return os.WriteFile(o.sbom, text, 0o644)
}

// publish writes an image's archive, pushes the image, and prints its digest.
func publish(ctx context.Context, kind imageKind, index v1.ImageIndex, o options) error {
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	if o.output != "" {
		path := filepath.Join(o.output, fmt.Sprintf("pilotfish-%s-%s.oci.tar", kind.name, o.version))
		if err := writeArchive(path, index, "docker.io/pilotfish/"+kind.name+":"+o.version, o.version); err != nil {
			return fmt.Errorf("writing %s: %w", path, err)
		}
	}
	if o.push != "" {
		tag, err := name.NewTag(o.push + "/" + kind.name + ":" + o.version)
		if err != nil {
			return err
		}
		if err := remote.WriteIndex(tag, index, remote.WithAuthFromKeychain(authn.DefaultKeychain), remote.WithContext(ctx)); err != nil {
			return fmt.Errorf("pushing %s: %w", tag, err)
		}
	}
	fmt.Println(kind.name, digest)
	return nil
}

// readInputs reads the directory of each architecture.
func readInputs(o options) ([]*input, error) {
	entries, err := os.ReadDir(o.input)
	if err != nil {
		return nil, err
	}
	var inputs []*input
	for _, e := range entries {
		if !slices.Contains(architectures, e.Name()) {
			continue
		}
		in, err := readInput(filepath.Join(o.input, e.Name()), e.Name(), o.envoyVersion)
		if err != nil {
			return nil, err
		}
		inputs = append(inputs, in)
	}
	if len(inputs) == 0 {
		return nil, fmt.Errorf("the directory %s of --input contains no directory amd64 or arm64", o.input)
	}
	return inputs, nil
}
