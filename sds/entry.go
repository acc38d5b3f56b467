package sds

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"
)

// entry is one file resource that somebody has asked for.
type entry struct {
	files
	users    int
	material Material
	secret   *secret // the last good one; nil before the first
	problem  string
	stamps   []stamp // of the files when they were read last
	extras   int     // the generation of what was added to the secret
}

// stamp tells whether a file is the one that was read, without reading it.
type stamp struct {
	info fs.FileInfo
	// sure is false when the file had just been written when it was read: what is written within one tick of the file
	// system's clock leaves no trace.
	sure bool
}

// clockTick is more than one tick of any file system's clock.
const clockTick = 2 * time.Second

func stampOf(path string) stamp {
	info, err := os.Stat(path)
	if err != nil {
		return stamp{}
	}
	age := time.Since(info.ModTime())
	return stamp{info: info, sure: age > clockTick || age < -clockTick}
}

func (s stamp) same(path string) bool {
	if s.info == nil || !s.sure {
		return false
	}
	info, err := os.Stat(path)
	return err == nil && os.SameFile(info, s.info) && info.Size() == s.info.Size() && info.ModTime().Equal(s.info.ModTime())
}

// untouched says that the files are those that were read, and were good.
func (e *entry) untouched() bool {
	if e.secret == nil || e.problem != "" {
		return false
	}
	for i, path := range e.paths() {
		if i >= len(e.stamps) || !e.stamps[i].same(path) {
			return false
		}
	}
	return true
}

// refresh reads the files, if they were touched, and makes the secret anew, if it is another one.
func (e *entry) refresh(x extras) (changed bool, err error) {
	if e.untouched() && e.extras == x.generation {
		return false, nil
	}
	var stamps []stamp
	for _, path := range e.paths() {
		stamps = append(stamps, stampOf(path))
	}
	m, err := e.read()
	if err != nil {
		return false, err
	}
	if e.secret != nil && m.equal(e.material) && e.extras == x.generation {
		e.stamps = stamps
		return false, nil
	}
	made, err := e.make(m, x)
	if err != nil {
		return false, err
	}
	changed = e.secret == nil || !bytes.Equal([]byte(made.version), []byte(e.secret.version))
	e.material, e.secret, e.stamps, e.extras = m, made, stamps, x.generation
	return changed, nil
}

func (e *entry) make(m Material, x extras) (*secret, error) {
	if e.roots == "" {
		return certificateSecret(e.name, m, x.provider)
	}
	crl, err := x.revoked.of(m.Roots)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", e.roots, err)
	}
	context := trustedRoots(m.Roots, slices.Concat(m.Revoked, crl))
	// Who gives a list for some roots need not have one for every authority between them and the certificate.
	context.OnlyVerifyLeafCertCrl = len(m.Revoked) > 0 && len(crl) == 0
	return trustSecret(e.name, context, nil)
}
