package sds

import (
	"crypto/x509"
	"errors"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// simulatedDay runs a source of certificates with a lifetime of one hour for a simulated day. Every third request to
// the CA fails.
type simulatedDay struct {
	ca     *authority
	clock  *fakeClock
	source *CASource
	start  time.Time
	serial string
	count  int // number of certificates
}

func newSimulatedDay(t *testing.T) *simulatedDay {
	ca, clock, requests := newAuthority(t), newFakeClock(), 0
	ca.set(func(csr *x509.CertificateRequest) ([]string, error) {
		if requests++; requests%3 == 1 {
			return nil, errors.New("not now")
		}
		return []string{ca.sign(ca.root, csr, func(c *x509.Certificate) {
			c.NotBefore, c.NotAfter = time.Now().Add(-time.Minute), clock.Now().Add(time.Hour) // valid for both the real and the simulated clock
		}), string(ca.root.PEM())}, nil
	})
	address, _ := ca.listen(t, "127.0.0.1:0", nil)
	config := caConfig(address)
	config.Clock = clock
	config.MinRetry, config.MaxRetry = time.Second, time.Minute
	return &simulatedDay{ca: ca, clock: clock, source: newSource(t, config)}
}

// run simulates the day. It calls seen after each new certificate, including the first.
func (d *simulatedDay) run(t *testing.T, seen func()) {
	t.Helper()
	testenv.Eventually(t, "the first certificate", func() error {
		d.clock.advance(time.Second)
		if d.source.Current().Leaf == nil {
			return errors.New("none yet")
		}
		return nil
	})
	d.start, d.serial = d.clock.Now(), d.source.Current().Leaf.SerialNumber.String()
	for d.count = 1; d.clock.Now().Sub(d.start) < 24*time.Hour; d.count++ {
		seen()
		if d.count == 10 {
			d.clock.jump(20 * time.Minute)
		}
		d.clock.advance(d.source.NextRotation().Sub(d.clock.Now()))
		d.serial = advanceToRotation(t, d.clock, d.source, d.serial)
		if ok, reason := d.source.Health(); !ok {
			t.Fatalf("after %s: %s", d.clock.Now().Sub(d.start), reason)
		}
	}
	if d.count < 40 || d.count > 52 {
		t.Errorf("%d certificates in a day, want one per half hour", d.count)
	}
}

// TestRotationsOfOneSimulatedDay simulates a day of rotations, with a CA that fails sometimes and a clock that jumps.
func TestRotationsOfOneSimulatedDay(t *testing.T) {
	d := newSimulatedDay(t)
	runSource(t, d.source)
	d.run(t, func() {})
}

// TestRotationsOfOneSimulatedDayReachEnvoy: Envoy receives each certificate, rejects no client and closes no
// connection.
func TestRotationsOfOneSimulatedDayReachEnvoy(t *testing.T) {
	d, dir := newSimulatedDay(t), t.TempDir()
	serveUntilStopped(t, dir, d.source)
	port := startProxy(t, testenv.Envoy(t), dir, "DELTA_GRPC")
	var lasting *openConn
	d.run(t, func() {
		if lasting == nil {
			testenv.Eventually(t, "Envoy serves", func() error { _, err := handshake(t, port, d.ca.root, d.ca.root); return err })
			lasting = openConnection(t, port, d.ca.root)
		}
		testenv.Eventually(t, "Envoy presents the certificate", func() error {
			got, err := handshake(t, port, d.ca.root, d.ca.root)
			if err != nil {
				t.Fatalf("Envoy rejected a client after %s: %v", d.clock.Now().Sub(d.start), err)
			}
			if got != d.serial {
				return errors.New("another one")
			}
			return nil
		})
		if err := lasting.request(); err != nil {
			t.Fatalf("the connection of the first certificate, after %s: %v", d.clock.Now().Sub(d.start), err)
		}
	})
}

// TestRotationTimesAreSpread: agents that start together do not send their requests together.
func TestRotationTimesAreSpread(t *testing.T) {
	config := caConfig("a:1")
	config.GraceRatio, config.GraceJitter = 0.5, 0.01
	source, err := NewCASource(config)
	if err != nil {
		t.Fatal(err)
	}
	since := time.Now()
	life := 24 * time.Hour
	earliest, latest := life, time.Duration(0)
	for range 1000 {
		after := source.rotationTime(issuedCert{start: since, end: since.Add(life)}, since).Sub(since)
		earliest, latest = min(earliest, after), max(latest, after)
	}
	if earliest < life*49/100 || latest > life*51/100 || latest-earliest < life/100 {
		t.Errorf("rotations after %s to %s of %s", earliest, latest, life)
	}
}
