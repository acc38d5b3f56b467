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
)

// generations say which root does what while roots are rotated: first the next one is announced, so that everyone comes to
// trust it; then it signs, and the previous one is still trusted until all that it signed has ended. They are one file, so
// that a step is taken or not.
type generations struct {
	Active    int `json:"active"`
	Announced int `json:"announced,omitempty"`
	// Previous is a generation more than its number, as the first is 0; 0 is none.
	Previous int `json:"previous,omitempty"`
	// Since is when the last step was taken.
	Since time.Time `json:"since"`
	// Retire is when the previous one may go.
	Retire time.Time `json:"retire,omitzero"`
}

const generationsFile = "roots.json"

// generationDir is where a root is: the first in the authority's own directory.
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
		return g, fmt.Errorf("%s is damaged (%w): restore the directory from a backup, or %s", generationsFile, err, startAnew)
	}
	return g, nil
}

func (s state) writeGenerations(g generations) error {
	data, err := json.Marshal(g)
	if err != nil {
		return err
	}
	draft := filepath.Join(s.path(), "."+generationsFile)
	_ = os.Remove(draft) // of a process that was killed
	if err := writeFile(draft, data); err != nil {
		return s.explain("rotating roots", err)
	}
	if err := os.Rename(draft, filepath.Join(s.path(), generationsFile)); err != nil {
		return s.explain("rotating roots", err)
	}
	return syncDir(s.path())
}

// readIssuer reads a root and its key.
func (s state) readIssuer(n int) (*issuer, error) {
	certPEM, err := readFile(filepath.Join(s.generationDir(n), rootCertFile), false, startAnew)
	if err != nil {
		return nil, err
	}
	keyPEM, err := readFile(filepath.Join(s.generationDir(n), rootKeyFile), true, startAnew)
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

// readSigning reads what signs by the generations.
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
	if g.Announced > 0 {
		next, err := s.readIssuer(g.Announced)
		if err != nil {
			return nil, err
		}
		roots = append(roots, next.root)
	}
	return newSigning(by, server, roots), nil
}

// Reload reads again what signs and whom members have to trust, and says whether that changed. What cannot be used is an
// error, and what was in use stays.
func (a *Authority) Reload() (changed bool, err error) {
	var next *signing
	if a.opts.PlugIn != "" {
		next, err = readPlugIn(a.opts.PlugIn, a.now())
	} else {
		next, err = a.state.readSigning()
	}
	if err != nil {
		return false, fmt.Errorf("the certificate authority in %s: %w", a.place(), err)
	}
	old := a.signs.Swap(next)
	return old != nil && (!old.issuer.same(next.issuer) || !old.server.same(next.server) || !bytes.Equal(old.rootsPEM, next.rootsPEM)), nil
}

func (a *Authority) place() string {
	if a.opts.PlugIn != "" {
		return a.opts.PlugIn
	}
	return a.dir
}

func (a *Authority) endRemedy() string {
	if a.opts.PlugIn != "" {
		return replacePlugIn
	}
	return "rotate the root: pilotfish ca rotate, which needs no interruption"
}

// RotationStep is one step of the rotation of roots.
type RotationStep string

// The steps, in their order.
const (
	// Announce makes a new root, which everyone is told to trust and that signs nothing yet.
	Announce RotationStep = "announce"
	// Activate has the announced root sign; the one before it is still trusted.
	Activate RotationStep = "activate"
	// Retire ends the trust in the one before.
	Retire RotationStep = "retire"
)

// Rotation is how far a rotation of roots is.
type Rotation struct {
	// Next is the step that comes next, and Due when it is safe to take it.
	Next RotationStep `json:"next"`
	Due  time.Time    `json:"due"`
	// Since is when the last step was taken; zero when there was none.
	Since time.Time `json:"since,omitzero"`
}

// Rotation says how far the rotation of roots is.
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

// Rotate takes the next step of the rotation of roots, and gives which it was. A step before its time is an error, unless
// it is forced: certificates might then be refused by those who do not know of it yet.
func (a *Authority) Rotate(force bool) (RotationStep, error) {
	if a.opts.PlugIn != "" {
		return "", fmt.Errorf("the authority in %s is not made here, and its root is not rotated here: %s", a.opts.PlugIn, a.endRemedy())
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
		return "", fmt.Errorf("the next step, %s, is due at %s: wait until then, or force it where every agent has the trust bundle already",
			r.Next, r.Due.UTC().Format(time.RFC3339))
	}
	return r.Next, a.step(r.Next)
}

// step takes a step, of which whoever holds the lock knows that it is the next one.
func (a *Authority) step(next RotationStep) error {
	if err := a.take(next); err != nil {
		return err
	}
	a.log.Info("the rotation of the mesh's root took a step", "step", next, "directory", a.dir)
	_, err := a.Reload()
	return err
}

func (a *Authority) take(step RotationStep) error {
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
		gone := g.Previous - 1
		g.Previous, g.Retire = 0, time.Time{}
		if err := a.state.writeGenerations(g); err != nil {
			return err
		}
		return a.state.removeRoot(gone)
	}
	return a.state.writeGenerations(g)
}

func (s state) makeRoot(n int, trustDomain string, now time.Time) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("making the root's key: %w", err)
	}
	root, err := newRoot(trustDomain, key, now)
	if err != nil {
		return fmt.Errorf("making the root certificate: %w", err)
	}
	keyPEM, err := encodeKey(key)
	if err != nil {
		return err
	}
	dir := s.generationDir(n)
	if err := os.RemoveAll(dir); err != nil { // of a step that was not finished
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

// removeRoot removes a root that nobody is to trust any more, its key first.
func (s state) removeRoot(n int) error {
	dir := s.generationDir(n)
	gone := []string{filepath.Join(dir, rootKeyFile), filepath.Join(dir, rootCertFile)}
	if n > 0 {
		gone = append(gone, dir)
	}
	for _, path := range gone {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return s.explain("removing a root that was replaced", err)
		}
	}
	return nil
}

// removeRetired removes what a process that was ended half-way left of roots that were retired. Nobody needs them, and none is
// made under an old number again, so that it does not matter who else does so.
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

// Run takes up what changes on disk, and takes the steps of a rotation when they are due, until the context ends. changed
// is called after the roots that members have to trust changed.
func (a *Authority) Run(ctx context.Context, interval time.Duration, changed func()) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	complaint := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		news, err := a.Reload()
		if news { // by another process or person
			by := a.signing()
			a.log.Info("the certificate authority has changed", "directory", a.place(), "signs", by.issuer.cert.Subject.String(),
				"serial", by.issuer.cert.SerialNumber.Text(16), "notAfter", by.end(), "roots", len(by.roots))
		}
		if err == nil && a.opts.PlugIn == "" && a.opts.RotateBefore > 0 {
			news, err = a.rotateWhenDue(news)
		}
		if err != nil && err.Error() != complaint {
			a.log.Error("the certificate authority cannot be read again; what was in use stays", "error", err)
		}
		complaint = ""
		if err != nil {
			complaint = err.Error()
		}
		if news {
			changed()
		}
	}
}

// rotateWhenDue takes the next step when it is due. Another control plane on the same directory may be about to take the
// same one, so it is looked at again under the lock.
func (a *Authority) rotateWhenDue(news bool) (bool, error) {
	if r, err := a.Rotation(); err != nil || a.now().Before(r.Due) {
		return news, err
	}
	unlock, err := a.state.lock()
	if err != nil {
		return news, err
	}
	defer unlock()
	r, err := a.Rotation()
	if err != nil || a.now().Before(r.Due) {
		return news, err
	}
	return true, a.step(r.Next)
}
