package sds

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"
)

// fileSecret is a secret that is read from files. At least one stream is subscribed to it.
type fileSecret struct {
	secretFiles
	refs             int // number of subscribed streams
	material         Material
	secret           *secret // last valid secret; nil if none was valid yet
	problem          string
	stamps           []fileStamp // of paths() at the last read
	extrasGeneration int         // extras.generation when secret was built
}

// fileStamp identifies the version of a file that was read, so that an unchanged file is not read again.
type fileStamp struct {
	info fs.FileInfo
	// reliable is false if the file was modified just before it was read: a second write within one tick of the file
	// system's clock does not change the modification time.
	reliable bool
}

// clockTick exceeds the clock resolution of every file system.
const clockTick = 2 * time.Second

func readStamp(path string) fileStamp {
	info, err := os.Stat(path)
	if err != nil {
		return fileStamp{}
	}
	age := time.Since(info.ModTime())
	return fileStamp{info: info, reliable: age > clockTick || age < -clockTick}
}

func (s fileStamp) matches(path string) bool {
	if s.info == nil || !s.reliable {
		return false
	}
	info, err := os.Stat(path)
	return err == nil && os.SameFile(info, s.info) && info.Size() == s.info.Size() && info.ModTime().Equal(s.info.ModTime())
}

// isUnchanged reports whether the files were valid at the last read and have not changed since then.
func (e *fileSecret) isUnchanged() bool {
	if e.secret == nil || e.problem != "" {
		return false
	}
	for i, path := range e.paths() {
		if i >= len(e.stamps) || !e.stamps[i].matches(path) {
			return false
		}
	}
	return true
}

// refresh reads the files if they have changed, and rebuilds the secret if its content differs.
func (e *fileSecret) refresh(x extras) (changed bool, err error) {
	if e.isUnchanged() && e.extrasGeneration == x.generation {
		return false, nil
	}
	var stamps []fileStamp
	for _, path := range e.paths() {
		stamps = append(stamps, readStamp(path))
	}
	m, err := e.read()
	if err != nil {
		return false, err
	}
	if e.secret != nil && m.equal(e.material) && e.extrasGeneration == x.generation {
		e.stamps = stamps
		return false, nil
	}
	made, err := e.buildSecret(m, x)
	if err != nil {
		return false, err
	}
	changed = e.secret == nil || !bytes.Equal([]byte(made.version), []byte(e.secret.version))
	e.material, e.secret, e.stamps, e.extrasGeneration = m, made, stamps, x.generation
	return changed, nil
}

func (e *fileSecret) buildSecret(m Material, x extras) (*secret, error) {
	if e.roots == "" {
		return newCertificateSecret(e.name, m, x.provider)
	}
	crl, err := x.revoked.textForRoots(m.Roots)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", e.roots, err)
	}
	context := newValidationContext(m.Roots, slices.Concat(m.Revoked, crl))
	// The resource's CRL file may have no list for intermediate CAs. Envoy would reject their certificates, so it
	// checks only the leaf.
	context.OnlyVerifyLeafCertCrl = len(m.Revoked) > 0 && len(crl) == 0
	return newValidationSecret(e.name, context, nil)
}
