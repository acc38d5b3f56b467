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

	"github.com/pilotfish-mesh/pilotfish/internal/backoff"
	"github.com/pilotfish-mesh/pilotfish/internal/fstimeout"
)

// Output configures a directory to which the identity is written after each change: cert-chain.pem, key.pem and
// root-cert.pem.
type Output struct {
	// Dir is created if it is missing; empty: no output.
	Dir string
	// Mode is the mode of the files; default 0600.
	Mode fs.FileMode
}

// Limits of the retry delay after a failed write. A retry can succeed, for example when a full disk has space again.
const (
	minRewrite = time.Second
	maxRewrite = time.Minute
)

// identityWriter writes the identity to the output directory.
type identityWriter struct {
	output    Output
	secrets   *store
	clock     Clock
	log       *slog.Logger
	metrics   *metrics
	changes   chan struct{}
	timeoutFS *fstimeout.TimeoutFS

	mu      sync.Mutex
	problem string
}

func newIdentityWriter(config Config, secrets *store, m *metrics) *identityWriter {
	o := &identityWriter{
		output: config.Output, secrets: secrets, clock: config.Clock, log: config.Logger, metrics: m,
		changes: make(chan struct{}, 1),
	}
	o.timeoutFS = &fstimeout.TimeoutFS{OnResume: o.trigger, OnHang: m.stalls.Inc}
	if o.output.Mode == 0 {
		o.output.Mode = 0o600
	}
	secrets.onIdentityChange = append(secrets.onIdentityChange, o.trigger)
	return o
}

func (o *identityWriter) trigger() {
	select {
	case o.changes <- struct{}{}:
	default:
	}
}

func (o *identityWriter) run(ctx context.Context) {
	retry := backoff.Backoff{Min: minRewrite, Max: maxRewrite}
	for ctx.Err() == nil {
		var again <-chan time.Time
		if o.write() {
			retry.Reset()
		} else {
			again = o.clock.NewTimer(retry.Next())
		}
		select {
		case <-o.changes:
		case <-again:
		case <-ctx.Done():
		}
	}
}

// write updates the files if they differ from the served identity, and reports success.
func (o *identityWriter) write() bool {
	m := o.secrets.source.Current()
	if m.Leaf == nil || len(m.Roots) == 0 {
		return true
	}
	var failed error
	err := o.timeoutFS.Do(o.output.Dir, func() {
		failed = replaceFiles(o.output.Dir, o.output.Mode, []fileContent{
			{keyFile, m.Key}, {chainFile, m.Chain}, {rootsFile, o.secrets.extraRoots.mergeWith(m.Roots)},
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
		o.log.Warn("the identity cannot be written to its directory; the files are unchanged", "directory", o.output.Dir, "error", err)
	}
	o.problem = err.Error()
	return false
}

func (o *identityWriter) problems() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.problem == "" {
		return nil
	}
	return []string{fmt.Sprintf("the identity files in %s are out of date, because they cannot be written: %s", o.output.Dir, o.problem)}
}

// fileContent is the name and the required content of a file.
type fileContent struct {
	name string
	text []byte
}

// replaceFiles writes all new files next to the old ones, so that a full disk changes nothing, and then renames them in
// immediate succession. A process that reads in between sees a key and a certificate that do not match, and must read
// again.
func replaceFiles(dir string, mode fs.FileMode, files []fileContent) (err error) {
	var staged []string
	defer func() {
		for _, name := range staged {
			err = errors.Join(err, ignoreNotExist(os.Remove(filepath.Join(dir, name+newSuffix))))
		}
	}()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, f := range files {
		path := filepath.Join(dir, f.name)
		if hasContent(path, mode, f.text) {
			continue
		}
		staged = append(staged, f.name)
		if err := writeSynced(path+newSuffix, mode, f.text); err != nil {
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

func hasContent(path string, mode fs.FileMode, text []byte) bool {
	info, err := os.Lstat(path)
	if err != nil || info.Mode() != mode {
		return false
	}
	old, err := readBounded(path)
	return err == nil && bytes.Equal(old, text)
}

// writeSynced replaces the file at path by a new file with text, and syncs it to disk.
func writeSynced(path string, mode fs.FileMode, text []byte) error {
	if err := ignoreNotExist(os.Remove(path)); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
}

func ignoreNotExist(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
