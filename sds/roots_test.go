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

func trusts(m Material, a *testpki.Authority) bool {
	return bytes.Contains(m.Roots, bytes.TrimSpace(a.PEM()))
}

// While an authority's root is being replaced, its answers end with both.
func TestAnswerMayHaveSeveralRoots(t *testing.T) {
	ca, next := newAuthority(t), testpki.New(t, "next")
	middle := ca.root.Intermediate(t, "middle")
	ca.set(func(csr *x509.CertificateRequest) ([]string, error) {
		return []string{ca.sign(middle, csr, nil), string(middle.PEM()), string(ca.root.PEM()) + string(next.PEM())}, nil
	})
	address, _ := ca.listen(t, "127.0.0.1:0", nil)
	source := newSource(t, caConfig(address))
	run(t, source)
	nextSerial(t, source, "")
	m := source.Current()
	if !trusts(m, ca.root) || !trusts(m, next) || trusts(m, middle) {
		t.Errorf("the roots are\n%s", m.Roots)
	}
	if chain, err := parseCertificates(m.Chain); err != nil || len(chain) != 2 {
		t.Errorf("a chain of %d (%v), want the certificate and the intermediate", len(chain), err)
	}
}

func TestReplacedRootStaysAsLongAsItsCertificates(t *testing.T) {
	for _, drop := range []bool{false, true} {
		ca, next := newAuthority(t), testpki.New(t, "next")
		address, _ := ca.listen(t, "127.0.0.1:0", nil)
		clock := newFakeClock()
		config := caConfig(address)
		config.Clock, config.DropReplacedRoots = clock, drop
		source := newSource(t, config)
		run(t, source)
		first := nextSerial(t, source, "")
		old := source.Current().Leaf
		ca.life = 24 * time.Hour
		ca.set(func(csr *x509.CertificateRequest) ([]string, error) {
			return []string{ca.sign(next, csr, nil), string(next.PEM())}, nil
		})
		clock.advance(31 * time.Minute)
		tick(t, clock, source, first)
		if m := source.Current(); !trusts(m, next) || trusts(m, ca.root) == drop {
			t.Errorf("drop %v: the roots are\n%s", drop, m.Roots)
		}
		clock.advance(old.NotAfter.Sub(clock.Now()))
		testenv.Eventually(t, "the replaced root is dropped in time", func() error {
			clock.advance(longestPause)
			if trusts(source.Current(), ca.root) {
				return errors.New("still there")
			}
			return nil
		})
		if !trusts(source.Current(), next) {
			t.Error("the newest root is gone")
		}
	}
}

func TestFailingRenewalGrowsLouder(t *testing.T) {
	var a alarm
	refused, now := errors.New("connection refused"), time.Now()
	life := 24 * time.Hour
	for _, c := range []struct {
		left  time.Duration
		cause error
		tell  bool
		level slog.Level
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
		if level, tell := a.failed(c.cause, c.left, life, now); tell != c.tell || tell && level != c.level {
			t.Errorf("%s left, %v: level %v, told %v; want %v, %v", c.left, c.cause, level, tell, c.level, c.tell)
		}
	}
	quiet := alarm{}
	for i := range 100 {
		if _, tell := quiet.failed(fmt.Errorf("failed at %d", i), 12*time.Hour, life, now); tell && i >= mostTold {
			t.Fatalf("told %d times before anything has become worse", i+1)
		}
	}
	a.reset()
	if _, tell := a.failed(refused, 12*time.Hour, life, now); !tell {
		t.Error("a failure after a success is not told")
	}
}
