package sds

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/dial"
	"github.com/pilotfish-mesh/pilotfish/internal/disks"
)

// Output is a directory to which the identity is written with each change: cert-chain.pem, key.pem and root-cert.pem.
type Output struct {
	// Dir is the directory, which is made where it is missing; empty for none.
	Dir string
	// Mode is that of the files; zero is 0600.
	Mode fs.FileMode
}

// How soon writing is tried again when it failed: the disk may have room again.
const (
	minRewrite = time.Second
	maxRewrite = time.Minute
)

// outlet writes the identity.
type outlet struct {
	output  Output
	secrets *store
	clock   Clock
	log     *slog.Logger
	metrics *metrics
	changes chan struct{}
	disks   *disks.Disks

	mu      sync.Mutex
	problem string
}

func newOutlet(config Config, secrets *store, m *metrics) *outlet {
	o := &outlet{
		output: config.Output, secrets: secrets, clock: config.Clock, log: config.Logger, metrics: m,
		changes: make(chan struct{}, 1),
	}
	o.disks = &disks.Disks{Resumed: o.poke, Stood: m.stalls.Inc}
	if o.output.Mode == 0 {
		o.output.Mode = 0o600
	}
	secrets.outlets = append(secrets.outlets, o.poke)
	return o
}

func (o *outlet) poke() {
	select {
	case o.changes <- struct{}{}:
	default:
	}
}

func (o *outlet) run(ctx context.Context) {
	retry := dial.Backoff{Min: minRewrite, Max: maxRewrite}
	for ctx.Err() == nil {
		var again <-chan time.Time
		if o.write() {
			retry.Reset()
		} else {
			again = o.clock.After(retry.Next())
		}
		select {
		case <-o.changes:
		case <-again:
		case <-ctx.Done():
		}
	}
}

// write brings the files in line with what is served, and says whether they are.
func (o *outlet) write() bool {
	m := o.secrets.source.Current()
	if m.Leaf == nil || len(m.Roots) == 0 {
		return true
	}
	var failed error
	err := o.disks.Ask(o.output.Dir, func() {
		failed = replaceFiles(o.output.Dir, o.output.Mode, []content{
			{keyFile, m.Key}, {chainFile, m.Chain}, {rootsFile, o.secrets.anchors.join(m.Roots)},
		})
	})
	if err == nil {
		err = failed
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if err == nil {
		o.problem = ""
		return true
	}
	o.metrics.outputFailures.Inc()
	if err.Error() != o.problem {
		o.log.Warn("the certificate cannot be written for others; its files are as they were", "directory", o.output.Dir, "error", err)
	}
	o.problem = err.Error()
	return false
}

func (o *outlet) problems() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.problem == "" {
		return nil
	}
	return []string{fmt.Sprintf("the certificate in %s is not the one that is served: %s", o.output.Dir, o.problem)}
}

// content is what a file is to have.
type content struct {
	name string
	text []byte
}

// replaceFiles writes all files beside the old ones first, so that a full disk changes nothing, and then renames them one
// right after the other: who reads in between finds a key and a certificate that do not fit, and has to read again.
func replaceFiles(dir string, mode fs.FileMode, files []content) (err error) {
	var staged []string
	defer func() {
		for _, name := range staged {
			err = errors.Join(err, ignoreMissing(os.Remove(filepath.Join(dir, name+newSuffix))))
		}
	}()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, f := range files {
		path := filepath.Join(dir, f.name)
		if holds(path, mode, f.text) {
			continue
		}
		staged = append(staged, f.name)
		if err := writeWhole(path+newSuffix, mode, f.text); err != nil {
			return err
		}
	}
	for len(staged) > 0 {
		path := filepath.Join(dir, staged[0])
		if err := os.Rename(path+newSuffix, path); err != nil {
			return err
		}
		staged = staged[1:]
	}
	return nil
}

const newSuffix = ".new"

func holds(path string, mode fs.FileMode, text []byte) bool {
	info, err := os.Lstat(path)
	if err != nil || info.Mode() != mode {
		return false
	}
	old, err := readBounded(path)
	return err == nil && bytes.Equal(old, text)
}

// writeWhole makes a file of its own, and has it on the disk.
func writeWhole(path string, mode fs.FileMode, text []byte) error {
	if err := ignoreMissing(os.Remove(path)); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
