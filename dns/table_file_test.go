package dns

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

const owner = "sidecar~10.0.0.1~web-1.shop~shop.svc.cluster.local"

// log collects the server's log.
type log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func keeping(t *testing.T, file string) (Config, *log) {
	l := new(log)
	return Config{ResolvConf: resolvConfOf(t), TableFile: file, Owner: owner, Logger: slog.New(slog.NewTextHandler(l, nil))}, l
}

func awaitFile(t *testing.T, file string, content []byte) {
	t.Helper()
	testenv.Eventually(t, "the names are on disk", func() error {
		text, err := os.ReadFile(file)
		if err == nil && !bytes.HasSuffix(text, content) {
			err = errors.New("other names are served")
		}
		return err
	})
}

func TestStoredNamesAreServedAfterRestart(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kept", "names")
	config, _ := keeping(t, file)
	first := start(t, config, nil)
	wire := encodeTable(meshTable())
	for range 3 {
		if err := first.Update(encodeTable(&Table{Hosts: map[string]Entry{"old.example": {IPs: addresses("1.1.1.1")}}})); err != nil {
			t.Fatal(err)
		}
	}
	if err := first.Update(wire); err != nil {
		t.Fatal(err)
	}
	awaitFile(t, file, wire)
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if c := first.Condition(); !c.OK || strings.Contains(c.Reason, "stored one") {
		t.Errorf("%+v", c)
	}

	second := start(t, config, nil)
	if got := exchange(t, second, "web.", dns.TypeA); len(got.Answer) != 1 {
		t.Errorf("after a restart: %v", got)
	}
	if c := second.Condition(); !c.OK || !strings.Contains(c.Reason, "the control plane has not sent one since") {
		t.Errorf("%+v", c)
	}
	if err := second.Update([]byte{0xff}); err == nil {
		t.Error("an invalid table was accepted")
	}
	if got := exchange(t, second, "web.", dns.TypeA); len(got.Answer) != 1 {
		t.Errorf("after an invalid table: %v", got)
	}
	if err := second.Update(wire); err != nil || strings.Contains(second.Condition().Reason, "stored one") {
		t.Errorf("after a table of the control plane: %v, %+v", err, second.Condition())
	}
}

func TestStoredNamesOfOthersAndDamagedOnesAreIgnored(t *testing.T) {
	whole, err := encodeStored(storedTable{Owner: owner, wire: encodeTable(meshTable())})
	if err != nil {
		t.Fatal(err)
	}
	foreign, _ := encodeStored(storedTable{Owner: "sidecar~10.0.0.2~other.shop~x", wire: encodeTable(meshTable())})
	nonsense, _ := encodeStored(storedTable{Owner: owner, wire: []byte{0xff, 0xff}})
	flipped := bytes.Clone(whole)
	flipped[len(flipped)/2] ^= 1
	for name, text := range map[string][]byte{
		"half": whole[:len(whole)/2], "empty": {}, "flipped": flipped, "text": []byte("names\n"), "foreign": foreign, "nonsense": nonsense,
		"without head": []byte(fileMagic + strings.Repeat("0", 64) + "\n"),
	} {
		file := filepath.Join(t.TempDir(), "names")
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		config, l := keeping(t, file)
		s := start(t, config, nil)
		if c := s.Condition(); c.OK || !strings.Contains(l.String(), "ignoring the name table on disk") {
			t.Errorf("%s: %+v; %s", name, c, l)
		}
	}
	// Opening a named pipe must not block.
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	config, l := keeping(t, pipe)
	if s := start(t, config, nil); s.Condition().OK || !strings.Contains(l.String(), "not a regular file") {
		t.Errorf("log with a named pipe: %s", l)
	}
}

func TestNamesAreServedWhenTheyCannotBeStored(t *testing.T) {
	full := filepath.Join(t.TempDir(), "names")
	if err := os.WriteFile(full, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	config, l := keeping(t, filepath.Join(full, "below-a-file"))
	s := start(t, config, nil)
	if err := s.Update(encodeTable(meshTable())); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "the log reports the error", func() error {
		if !strings.Contains(l.String(), "cannot store the name table on disk") {
			return errors.New(l.String())
		}
		return nil
	})
	if got := exchange(t, s, "web.", dns.TypeA); len(got.Answer) != 1 {
		t.Error(got)
	}
	if left, err := filepath.Glob(filepath.Join(filepath.Dir(full), ".*")); err != nil || len(left) > 0 {
		t.Errorf("temporary files remain: %q, %v", left, err)
	}
}

func TestFrequentTablesAreNotAllWritten(t *testing.T) {
	config, _ := keeping(t, filepath.Join(os.DevNull, "names")) // each write fails and is counted
	s := start(t, config, nil)
	wire := encodeTable(meshTable())
	began := time.Now()
	for range 100 {
		if err := s.Update(wire); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Millisecond) // in this time a write would happen
	}
	most := 2 + float64(time.Since(began)/writeInterval)
	if tried := testutil.ToFloat64(s.metrics.keepFailures); tried == 0 || tried > most {
		t.Errorf("%v of 100 were written", tried)
	}
}

func FuzzStoredNames(f *testing.F) {
	whole, _ := encodeStored(storedTable{Owner: owner, wire: encodeTable(meshTable())})
	f.Add(whole)
	f.Add([]byte(fileMagic))
	f.Fuzz(func(t *testing.T, text []byte) {
		kept, err := decodeStored(text)
		if err != nil {
			return
		}
		again, err := encodeStored(kept)
		if err != nil {
			t.Fatal(err)
		}
		if other, err := decodeStored(again); err != nil || other.Owner != kept.Owner || !bytes.Equal(other.wire, kept.wire) {
			t.Errorf("%v, %+v", err, other)
		}
	})
}
