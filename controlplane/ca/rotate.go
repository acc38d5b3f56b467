package ca

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/atomicfile"
)

// generations is the state of a root rotation. Each root has a generation number. First the next root is announced, so
// that all members trust it before it signs. Then it signs certificates, and the previous root remains trusted until
// its certificates have expired. One file contains the whole state, so that each step is atomic.
type generations struct {
	Active    int `json:"active"`
	Announced int `json:"announced,omitempty"`
	// Previous is the number of the previous generation plus one, because generation numbers start at 0. 0 means that
	// there is no previous generation.
	Previous int `json:"previous,omitempty"`
	// Since is the time of the last step.
	Since time.Time `json:"since"`
	// Retire is the time after which the previous root may be removed.
	Retire time.Time `json:"retire,omitzero"`
}

const generationsFile = "roots.json"

// generationDir returns the directory with the root of generation n. For generation 0, it is the authority's directory.
func (s state) generationDir(n int) string {
	if n == 0 {
		return s.path()
	}
	return filepath.Join(s.path(), "root-"+strconv.Itoa(n))
}

func (s state) readGenerations() (generations, error) {
	var g generations
	data, err := os.ReadFile(filepath.Join(s.path(), generationsFile))
	if errors.Is(err, fs.ErrNotExist) {
		return g, nil
	}
	if err != nil {
		return g, err
	}
	if err := json.Unmarshal(data, &g); err != nil {
		return g, fmt.Errorf("%s is damaged (%w): restore the directory from a backup, or %s", generationsFile, err, startAgain)
	}
	return g, nil
}

func (s state) writeGenerations(g generations) error {
	data, err := json.Marshal(g)
	if err != nil {
		return err
	}
	if err := atomicfile.Write(filepath.Join(s.path(), generationsFile), data); err != nil {
		return s.explain("rotating roots", err)
	}
	return syncDir(s.path())
}

// readIssuer reads the root certificate of generation n and its key.
func (s state) readIssuer(n int) (*issuer, error) {
	certPEM, err := readFile(filepath.Join(s.generationDir(n), rootCertFile), false, startAgain)
	if err != nil {
		return nil, err
	}
	keyPEM, err := readFile(filepath.Join(s.generationDir(n), rootKeyFile), true, startAgain)
	if err != nil {
		return nil, err
	}
	root, _, err := parseRoot(certPEM)
	if err != nil {
		return nil, fmt.Errorf("%s of root %d: %w", rootCertFile, n, err)
	}
	key, err := parseKey(keyPEM)
	if err != nil {
		return nil, fmt.Errorf("%s of root %d: %w", rootKeyFile, n, err)
	}
	if !key.PublicKey.Equal(root.PublicKey) {
		return nil, fmt.Errorf("%s is not the key of %s of root %d", rootKeyFile, rootCertFile, n)
	}
	return newIssuer(root, key), nil
}

// readSigning reads the roots of the active, previous and announced generations.
func (s state) readSigning() (*signing, error) {
	g, err := s.readGenerations()
	if err != nil {
		return nil, err
	}
	by, err := s.readIssuer(g.Active)
	if err != nil {
		return nil, err
	}
	server, roots := by, []*x509.Certificate{by.root}
	if g.Previous > 0 {
		if server, err = s.readIssuer(g.Previous - 1); err != nil {
			return nil, err
		}
		roots = append(roots, server.root)
	}
	var next *issuer
	if g.Announced > 0 {
		if next, err = s.readIssuer(g.Announced); err != nil {
			return nil, err
		}
		roots = append(roots, next.root)
	}
	signing := newSigning(by, server, roots)
	signing.next = next
	return signing, nil
}

// Reload reads the issuers and trusted roots again, and reports whether they changed. If the files are invalid, Reload
// returns an error, and the authority continues to use the previous ones.
func (a *Authority) Reload() (changed bool, err error) {
	var next *signing
	if a.opts.PlugIn != "" {
		next, err = readPlugIn(a.opts.PlugIn, a.now())
	} else {
		next, err = a.state.readSigning()
	}
	if err != nil {
		return false, fmt.Errorf("the certificate authority in %s: %w", a.directory(), err)
	}
	old := a.signs.Swap(next)
	return old != nil && (!old.issuer.isSame(next.issuer) || !old.server.isSame(next.server) || !bytes.Equal(old.rootsPEM, next.rootsPEM)), nil
}

func (a *Authority) directory() string {
	if a.opts.PlugIn != "" {
		return a.opts.PlugIn
	}
	return a.dir
}

func (a *Authority) expiryRemedy() string {
	if a.opts.PlugIn != "" {
		return replacePlugIn
	}
	return "rotate the root with \"pilotfish ca rotate\", which does not interrupt traffic"
}

// RotationStep is one step of a root rotation.
type RotationStep string

// The steps in their order.
const (
	// Announce creates a new root. Members learn to trust it, but it does not sign workload certificates yet.
	Announce RotationStep = "announce"
	// Activate lets the announced root sign certificates. Members still trust the previous root.
	Activate RotationStep = "activate"
	// Retire removes the previous root from the trusted roots.
	Retire RotationStep = "retire"
)

// Rotation is the progress of a root rotation.
type Rotation struct {
	// Next is the next step. Due is the earliest time at which the step is safe.
	Next RotationStep `json:"next"`
	Due  time.Time    `json:"due"`
	// Since is the time of the last step. It is zero before the first step.
	Since time.Time `json:"since,omitzero"`
}

// Rotation returns the progress of the root rotation.
func (a *Authority) Rotation() (Rotation, error) {
	g, err := a.state.readGenerations()
	if err != nil {
		return Rotation{}, err
	}
	switch {
	case g.Announced > 0:
		return Rotation{Next: Activate, Due: g.Since.Add(a.opts.Overlap), Since: g.Since}, nil
	case g.Previous > 0:
		return Rotation{Next: Retire, Due: g.Retire, Since: g.Since}, nil
	}
	return Rotation{Next: Announce, Due: a.RootNotAfter().Add(-max(a.opts.RotateBefore, 0)), Since: g.Since}, nil
}

// Rotate executes the next step of the root rotation and returns the step. Before the due time, it fails unless force
// is set: members that do not have the new root yet would reject certificates that the new root signed.
func (a *Authority) Rotate(force bool) (RotationStep, error) {
	if a.opts.PlugIn != "" {
		return "", fmt.Errorf("the authority in %s is external, so pilotfish cannot rotate its root: %s", a.opts.PlugIn, a.expiryRemedy())
	}
	unlock, err := a.state.lock()
	if err != nil {
		return "", err
	}
	defer unlock()
	r, err := a.Rotation()
	if err != nil {
		return "", err
	}
	if r.Next != Announce && !force && a.now().Before(r.Due) {
		return "", fmt.Errorf("the next step, %s, is due at %s: wait until then, or force it if every agent already has the trust bundle",
			r.Next, r.Due.UTC().Format(time.RFC3339))
	}
	return r.Next, a.executeStep(r.Next)
}

// executeStep executes the step next, and then calls Reload. The caller must have called state.lock.
func (a *Authority) executeStep(next RotationStep) error {
	if err := a.applyStep(next); err != nil {
		return err
	}
	a.log.Info("executed a step of the mesh's root rotation", "step", next, "directory", a.dir)
	_, err := a.Reload()
	return err
}

func (a *Authority) applyStep(step RotationStep) error {
	g, err := a.state.readGenerations()
	if err != nil {
		return err
	}
	g.Since = a.now().UTC()
	switch step {
	case Announce:
		g.Announced = max(g.Active, g.Previous) + 1
		if err := a.state.makeRoot(g.Announced, a.trustDomain, a.now()); err != nil {
			return err
		}
	case Activate:
		g.Previous, g.Active, g.Announced = g.Active+1, g.Announced, 0
		g.Retire = g.Since.Add(a.opts.MaxTTL)
	case Retire:
		retired := g.Previous - 1
		g.Previous, g.Retire = 0, time.Time{}
		if err := a.state.writeGenerations(g); err != nil {
			return err
		}
		return a.state.removeRoot(retired)
	}
	return a.state.writeGenerations(g)
}

func (s state) makeRoot(n int, trustDomain string, now time.Time) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("creating the root's key: %w", err)
	}
	root, err := newRoot(trustDomain, key, now)
	if err != nil {
		return fmt.Errorf("creating the root certificate: %w", err)
	}
	keyPEM, err := encodeKey(key)
	if err != nil {
		return err
	}
	dir := s.generationDir(n)
	if err := os.RemoveAll(dir); err != nil { // a step that was interrupted may have left the directory
		return s.explain("rotating roots", err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return s.explain("rotating roots", err)
	}
	if err := errors.Join(writeFile(filepath.Join(dir, rootCertFile), encodeCertificate(root)), writeFile(filepath.Join(dir, rootKeyFile), keyPEM)); err != nil {
		return s.explain("rotating roots", err)
	}
	return syncDir(dir)
}

// removeRoot removes the files of the root of generation n, which is no longer trusted. It removes the key first.
func (s state) removeRoot(n int) error {
	dir := s.generationDir(n)
	retired := []string{filepath.Join(dir, rootKeyFile), filepath.Join(dir, rootCertFile)}
	if n > 0 {
		retired = append(retired, dir)
	}
	for _, path := range retired {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return s.explain("removing the replaced root", err)
		}
	}
	return nil
}

// removeRetired removes the files of retired roots that remain because a process was killed. Generation numbers are not
// reused, so several processes can call removeRetired at the same time.
func (s state) removeRetired() error {
	g, err := s.readGenerations()
	if err != nil {
		return err
	}
	oldest := g.Active
	if g.Previous > 0 {
		oldest = min(oldest, g.Previous-1)
	}
	for n := range oldest {
		if err := s.removeRoot(n); err != nil {
			return err
		}
	}
	return nil
}

// Run reloads changed files and executes rotation steps when they are due, until ctx ends. It polls with the given
// interval, and calls changed after a change of the issuers or trusted roots.
func (a *Authority) Run(ctx context.Context, interval time.Duration, changed func()) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	lastError := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		reloaded, err := a.Reload()
		if reloaded { // another process, or a user, changed the files
			by := a.signing()
			a.log.Info("reloaded the certificate authority because its files changed", "directory", a.directory(), "signs", by.issuer.cert.Subject.String(),
				"serial", by.issuer.cert.SerialNumber.Text(16), "notAfter", by.notAfter(), "roots", len(by.roots))
		}
		if err == nil && a.opts.PlugIn == "" && a.opts.RotateBefore > 0 {
			reloaded, err = a.rotateWhenDue(reloaded)
		}
		if err != nil && err.Error() != lastError {
			a.log.Error("reloading the certificate authority failed; the previous one stays in use", "error", err)
		}
		lastError = ""
		if err != nil {
			lastError = err.Error()
		}
		if reloaded {
			changed()
		}
	}
}

// rotateWhenDue executes the next step if it is due, and returns true if the roots changed: by the step, or before
// (reloaded). It reads the state again under the lock, because another control plane with the same directory may have
// executed the step.
func (a *Authority) rotateWhenDue(reloaded bool) (bool, error) {
	if r, err := a.Rotation(); err != nil || a.now().Before(r.Due) {
		return reloaded, err
	}
	unlock, err := a.state.lock()
	if err != nil {
		return reloaded, err
	}
	defer unlock()
	r, err := a.Rotation()
	if err != nil || a.now().Before(r.Due) {
		return reloaded, err
	}
	return true, a.executeStep(r.Next)
}
