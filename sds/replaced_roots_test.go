package sds

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/internal/testpki"
)

func hasRoot(m Material, a *testpki.Authority) bool {
	return bytes.Contains(m.Roots, bytes.TrimSpace(a.PEM()))
}

// During a root rotation, the CA's responses end with both roots.
func TestCAResponseMayContainSeveralRoots(t *testing.T) {
	ca, next := newAuthority(t), testpki.New(t, "next")
	middle := ca.root.Intermediate(t, "middle")
	ca.set(func(csr *x509.CertificateRequest) ([]string, error) {
		return []string{ca.sign(middle, csr, nil), string(middle.PEM()), string(ca.root.PEM()) + string(next.PEM())}, nil
	})
	address, _ := ca.listen(t, "127.0.0.1:0", nil)
	source := newSource(t, caConfig(address))
	runSource(t, source)
	nextSerial(t, source, "")
	m := source.Current()
	if !hasRoot(m, ca.root) || !hasRoot(m, next) || hasRoot(m, middle) {
		t.Errorf("the roots are\n%s", m.Roots)
	}
	if chain, err := parseCertificates(m.Chain); err != nil || len(chain) != 2 {
		t.Errorf("a chain of %d (%v), want the certificate and the intermediate", len(chain), err)
	}
}

func TestReplacedRootIsTrustedUntilItsCertificatesExpire(t *testing.T) {
	for _, drop := range []bool{false, true} {
		ca, next := newAuthority(t), testpki.New(t, "next")
		address, _ := ca.listen(t, "127.0.0.1:0", nil)
		clock := newFakeClock()
		config := caConfig(address)
		config.Clock, config.DropReplacedRoots = clock, drop
		source := newSource(t, config)
		runSource(t, source)
		first := nextSerial(t, source, "")
		old := source.Current().Leaf
		ca.life = 24 * time.Hour
		ca.set(func(csr *x509.CertificateRequest) ([]string, error) {
			return []string{ca.sign(next, csr, nil), string(next.PEM())}, nil
		})
		clock.advance(31 * time.Minute)
		advanceToRotation(t, clock, source, first)
		if m := source.Current(); !hasRoot(m, next) || hasRoot(m, ca.root) == drop {
			t.Errorf("drop %v: the roots are\n%s", drop, m.Roots)
		}
		clock.advance(old.NotAfter.Sub(clock.Now()))
		testenv.Eventually(t, "the replaced root is removed when its time has elapsed", func() error {
			clock.advance(maxPause)
			if hasRoot(source.Current(), ca.root) {
				return errors.New("still there")
			}
			return nil
		})
		if !hasRoot(source.Current(), next) {
			t.Error("the newest root is missing")
		}
	}
}

func TestRenewalFailureLogLevelRises(t *testing.T) {
	var a renewalLog
	refused, now := errors.New("connection refused"), time.Now()
	life := 24 * time.Hour
	for _, c := range []struct {
		left      time.Duration
		cause     error
		shouldLog bool
		level     slog.Level
	}{
		{12 * time.Hour, refused, true, slog.LevelWarn},
		{11 * time.Hour, refused, false, slog.LevelWarn},
		{11 * time.Hour, errors.New("token expired"), true, slog.LevelWarn},
		{6 * time.Hour, refused, true, slog.LevelWarn},
		{5 * time.Hour, refused, false, slog.LevelWarn},
		{2 * time.Hour, refused, true, slog.LevelError},
		{110 * time.Minute, refused, false, slog.LevelError},
		{time.Hour, refused, true, slog.LevelError},
		{20 * time.Minute, refused, true, slog.LevelError},
		{0, refused, true, slog.LevelError},
		{-time.Hour, refused, false, slog.LevelError},
	} {
		if level, shouldLog := a.recordFailure(c.cause, c.left, life, now); shouldLog != c.shouldLog || shouldLog && level != c.level {
			t.Errorf("%s left, %v: level %v, logged %v; want %v, %v", c.left, c.cause, level, shouldLog, c.level, c.shouldLog)
		}
	}
	quiet := renewalLog{}
	for i := range 100 {
		if _, shouldLog := quiet.recordFailure(fmt.Errorf("failed at %d", i), 12*time.Hour, life, now); shouldLog && i >= maxLogged {
			t.Fatalf("logged %d times in one step", i+1)
		}
	}
	a.reset()
	if _, shouldLog := a.recordFailure(refused, 12*time.Hour, life, now); !shouldLog {
		t.Error("a failure after a success is not logged")
	}
}
