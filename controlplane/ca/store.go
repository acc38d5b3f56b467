package ca

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"time"
)

// storeTimeout limits the duration of one access to a Store.
const storeTimeout = 10 * time.Second

// ErrConflict is the error of Store.Replace if another process has changed the stored material.
var ErrConflict = errors.New("another process has changed the certificate authority at the same time")

// File is a part of an authority's material. Name identifies it in messages.
type File struct {
	Name string
	Data []byte
}

// KeyPair is a CA certificate and its private key, in PEM.
type KeyPair struct{ Certificate, Key File }

// Material is the stored state of an authority: its roots, and the progress of a root rotation.
type Material struct {
	// Active signs certificates.
	Active KeyPair
	// Announced is the root that signs after the next rotation step. Previous is the root that signed before the last
	// rotation. All members trust them. They are nil if there are none.
	Announced, Previous *KeyPair
	// Since is the time of the last rotation step. Retire is the time after which Previous may be removed.
	Since, Retire time.Time
	// Version identifies this state of the store.
	Version string
}

// Store stores the material of an authority. Several control planes may use one store at the same time. The methods
// are safe for concurrent use.
type Store interface {
	// Location names the place of the material in messages.
	Location() string
	// Remedy describes how to replace an authority that cannot be used any more. It completes a sentence.
	Remedy() string
	// Read returns the material. The error wraps fs.ErrNotExist if the store contains none.
	Read(ctx context.Context) (Material, error)
	// Create stores the first material and a key that signs tokens. It has no effect and returns no error if the store
	// already contains an authority.
	Create(ctx context.Context, m Material, tokenKey []byte) error
	// Replace stores next, if the store still contains previous. Otherwise it returns ErrConflict. It erases the keys
	// of roots that next does not contain.
	Replace(ctx context.Context, previous, next Material) error
	// TokenKey returns the key that signs tokens.
	TokenKey(ctx context.Context) (File, error)
}

func storeContext() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), storeTimeout)
}

// openStore reads the material. If the store contains none, openStore creates an authority, unless opts.MustExist is
// set.
func openStore(store Store, opts Options) (Material, error) {
	ctx, cancel := storeContext()
	defer cancel()
	m, err := store.Read(ctx)
	switch {
	case err == nil:
		return m, nil
	case !errors.Is(err, fs.ErrNotExist):
		return m, locatedError(store, err)
	case opts.MustExist:
		return m, err
	}
	return createAuthority(ctx, store, opts)
}

// createAuthority creates an authority in store, if there is none, and reads it.
func createAuthority(ctx context.Context, store Store, opts Options) (Material, error) {
	domain := opts.trustDomain("")
	if err := validateTrustDomain(domain); err != nil {
		return Material{}, err
	}
	created, tokenKey, err := newMaterial(domain, opts.Clock())
	if err != nil {
		return Material{}, err
	}
	if err := store.Create(ctx, created, tokenKey); err != nil {
		return Material{}, err
	}
	m, err := store.Read(ctx)
	if err != nil {
		return Material{}, locatedError(store, err)
	}
	if bytes.Equal(m.Active.Certificate.Data, created.Active.Certificate.Data) { // otherwise another process created it
		opts.Logger.Info("created a certificate authority", "location", store.Location(), "trustDomain", domain)
	}
	return m, nil
}

func locatedError(store Store, err error) error {
	return fmt.Errorf("the certificate authority in %s: %w", store.Location(), err)
}

// readTokenKey reads the key that signs tokens.
func readTokenKey(store Store) (*ecdsa.PrivateKey, error) {
	ctx, cancel := storeContext()
	defer cancel()
	file, err := store.TokenKey(ctx)
	if err != nil {
		return nil, err
	}
	key, err := parseECKey(file.Data)
	if err != nil {
		return nil, damagedError(file, err, store.Remedy())
	}
	return key, nil
}

func damagedError(f File, err error, remedy string) error {
	return fmt.Errorf("%s is damaged (%w): restore it from a backup, or %s", f.Name, err, remedy)
}

// issuer parses a certificate and its key. It fails if the key is not that of the certificate. remedy is the remedy of
// the store.
func (p KeyPair) issuer(remedy string) (*issuer, error) {
	root, err := parseRoot(p.Certificate.Data)
	if err != nil {
		return nil, damagedError(p.Certificate, err, remedy)
	}
	key, err := parseOnlyKey(p.Key.Data)
	if err != nil {
		return nil, damagedError(p.Key, err, remedy)
	}
	if !isKeyOf(root, key) {
		return nil, fmt.Errorf("%s is not the key of %s: restore both from the same backup", p.Key.Name, p.Certificate.Name)
	}
	return newIssuer(root, key), nil
}

// signing parses the roots. remedy is the remedy of the store.
func (m Material) signing(remedy string) (*signing, error) {
	by, err := m.Active.issuer(remedy)
	if err != nil {
		return nil, err
	}
	server, roots := by, []*x509.Certificate{by.root}
	if m.Previous != nil {
		if server, err = m.Previous.issuer(remedy); err != nil {
			return nil, err
		}
		roots = append(roots, server.root)
	}
	var next *issuer
	if m.Announced != nil {
		if next, err = m.Announced.issuer(remedy); err != nil {
			return nil, err
		}
		roots = append(roots, next.root)
	}
	signing := newSigning(by, server, roots)
	signing.next = next
	return signing, nil
}
