package ca

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"
)

// Reload reads the issuers and trusted roots again, and reports whether they changed. If they are invalid, Reload
// returns an error, and the authority continues to use the previous ones.
func (a *Authority) Reload() (changed bool, err error) {
	_, changed, err = a.reload()
	return changed, err
}

// reload is like Reload. It also returns the stored material, which is empty if the CA is external.
func (a *Authority) reload() (m Material, changed bool, err error) {
	ctx, cancel := storeContext()
	defer cancel()
	var next *signing
	if a.opts.PlugIn != nil {
		next, err = readPlugIn(ctx, a.opts.PlugIn, a.now())
	} else if m, err = a.store.Read(ctx); err == nil {
		next, err = m.signing(a.store.Remedy())
	}
	if err != nil {
		return m, false, fmt.Errorf("the certificate authority in %s: %w", a.location(), err)
	}
	old := a.signs.Swap(next)
	return m, old != nil && (!old.issuer.isSame(next.issuer) || !old.server.isSame(next.server) || !bytes.Equal(old.rootsPEM, next.rootsPEM)), nil
}

// location names the place of the authority's certificate and key in messages.
func (a *Authority) location() string {
	if a.opts.PlugIn != nil {
		return a.opts.PlugIn.Location()
	}
	return a.store.Location()
}

func (a *Authority) expiryRemedy() string {
	if a.opts.PlugIn != nil {
		return a.opts.PlugIn.Remedy()
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
	ctx, cancel := storeContext()
	defer cancel()
	m, err := a.store.Read(ctx)
	if err != nil {
		return Rotation{}, err
	}
	return a.nextStep(m), nil
}

// nextStep returns the next step of the root rotation with the progress in m.
func (a *Authority) nextStep(m Material) Rotation {
	switch {
	case m.Announced != nil:
		return Rotation{Next: Activate, Due: m.Since.Add(a.opts.Overlap), Since: m.Since}
	case m.Previous != nil:
		return Rotation{Next: Retire, Due: m.Retire, Since: m.Since}
	}
	return Rotation{Next: Announce, Due: a.RootNotAfter().Add(-max(a.opts.RotateBefore, 0)), Since: m.Since}
}

// Rotate executes the next step of the root rotation and returns the step. Before the due time, it fails unless force
// is set: members that do not have the new root yet would reject certificates that the new root signed. If another
// process executes a step at the same time, Rotate continues with the step after it.
func (a *Authority) Rotate(force bool) (RotationStep, error) {
	if a.opts.PlugIn != nil {
		return "", fmt.Errorf("the authority in %s is external, so pilotfish cannot rotate its root: %s", a.location(), a.expiryRemedy())
	}
	for attempt := 1; ; attempt++ {
		m, _, err := a.reload()
		if err != nil {
			return "", err
		}
		r := a.nextStep(m)
		if r.Next != Announce && !force && a.now().Before(r.Due) {
			return "", fmt.Errorf("the next step, %s, is due at %s: wait until then, or force it if every agent already has the trust bundle",
				r.Next, r.Due.UTC().Format(time.RFC3339))
		}
		if err := a.executeStep(m, r.Next); !errors.Is(err, ErrConflict) || attempt == maxRotateAttempts {
			return r.Next, err
		}
	}
}

// maxRotateAttempts limits how often Rotate tries a step again because another process executed a step.
const maxRotateAttempts = 100

// executeStep executes the step next of the rotation with the progress in m, and then calls Reload. It returns
// ErrConflict if the stored material is not m any more.
func (a *Authority) executeStep(m Material, next RotationStep) error {
	changed, err := a.applyStep(m, next)
	if err != nil {
		return err
	}
	ctx, cancel := storeContext()
	defer cancel()
	if err := a.store.Replace(ctx, m, changed); err != nil {
		return err
	}
	a.log.Info("executed a step of the mesh's root rotation", "step", next, "location", a.location())
	_, err = a.Reload()
	return err
}

// applyStep returns the material after a step.
func (a *Authority) applyStep(m Material, step RotationStep) (Material, error) {
	m.Since = a.now().UTC()
	switch step {
	case Announce:
		root, err := newRootPair(a.trustDomain, a.now())
		m.Announced = &root
		return m, err
	case Activate:
		replaced := m.Active
		m.Previous, m.Active, m.Announced = &replaced, *m.Announced, nil
		m.Retire = m.Since.Add(a.opts.MaxTTL)
	case Retire:
		m.Previous, m.Retire = nil, time.Time{}
	}
	return m, nil
}

// Run reloads changed material and executes rotation steps when they are due, until ctx ends. It polls with the given
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
		failed := "reloading the certificate authority failed; the previously loaded root and key stay in use"
		m, reloaded, err := a.reload()
		if reloaded { // another process, or a user, changed the material
			by := a.signing()
			a.log.Info("reloaded the certificate authority because its stored material changed", "location", a.location(), "signingCA", by.issuer.cert.Subject.String(),
				"serial", by.issuer.cert.SerialNumber.Text(16), "notAfter", by.notAfter(), "roots", len(by.roots))
		}
		if err == nil && a.opts.PlugIn == nil && a.opts.RotateBefore > 0 {
			failed = "a due step of the root rotation failed; the control plane tries again, and the current root and key stay in use"
			reloaded, err = a.rotateWhenDue(m, reloaded)
		}
		if err != nil && err.Error() != lastError {
			a.log.Error(failed, "error", err)
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
// (reloaded). m is the stored material. If another control plane has executed the step, the next call of reload reads
// the result.
func (a *Authority) rotateWhenDue(m Material, reloaded bool) (bool, error) {
	r := a.nextStep(m)
	if a.now().Before(r.Due) {
		return reloaded, nil
	}
	err := a.executeStep(m, r.Next)
	if errors.Is(err, ErrConflict) {
		return reloaded, nil
	}
	return reloaded || err == nil, err
}
