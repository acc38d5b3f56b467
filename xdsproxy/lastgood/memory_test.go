package lastgood

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

func openMemory(t testing.TB, maxBytes, maxMemory int64) *Store {
	t.Helper()
	s, err := Open(Config{MaxBytes: maxBytes, MaxMemory: maxMemory})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// TestMemoryAndDiskStoreTheSameConfiguration applies the same random operations to both.
func TestMemoryAndDiskStoreTheSameConfiguration(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	both := []*Store{openStore(t, t.TempDir(), 0), openMemory(t, 0, 64<<20)}
	each := func(do func(*Store)) {
		for _, s := range both {
			do(s)
		}
	}
	each(func(s *Store) { s.Begin(testIdentity, true) })
	for stage := range uint64(2000) {
		name, size := fmt.Sprint(random.IntN(50)), random.IntN(20<<10)
		content := strings.Repeat(fmt.Sprint(stage, " "), size/5)
		switch random.IntN(20) {
		case 0:
			replace := random.IntN(2) == 0
			each(func(s *Store) { s.Begin(testIdentity, replace) })
		case 1:
			each(func(s *Store) { s.Unsubscribe(clusters, name) })
		case 2:
			each(func(s *Store) { s.WriteResource(stage, clusters, name, "bad", []byte(content)); s.Reject(stage) })
		case 3, 4, 5, 6:
			each((*Store).Checkpoint)
		default:
			each(func(s *Store) { writeAccepted(s, stage, clusters, name, fmt.Sprint(stage), content) })
		}
		if stage%50 == 0 {
			if disk, memory := loadText(t, both[0], testIdentity), loadText(t, both[1], testIdentity); disk != memory {
				t.Fatalf("after %d steps: %d bytes on disk, %d bytes in memory", stage, len(disk), len(memory))
			}
		}
	}
	disk, memory := both[0].Status(), both[1].Status()
	if max(disk.Bytes, memory.Bytes)-min(disk.Bytes, memory.Bytes) > 100 || !memory.InMemory || memory.File != "" || disk.InMemory || disk.Memory != 0 {
		t.Errorf("status on disk %+v, in memory %+v", disk, memory)
	}
	if memory.Memory == 0 || memory.Memory > memory.Bytes/2+2*blockSize {
		t.Errorf("%d bytes take %d in memory", memory.Bytes, memory.Memory)
	}
}

func TestMemoryFileReturnsWrittenContent(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	m := newMemory(64 << 20)
	f, err := m.create(fileName)
	if err != nil {
		t.Fatal(err)
	}
	var want []byte
	var views []source
	var seen [][]byte
	for range 300 {
		piece := make([]byte, random.IntN(30<<10))
		if random.IntN(2) == 0 { // otherwise the chunk contains only zeroes
			for i := range piece {
				piece[i] = byte(random.Uint32())
			}
		}
		if _, err := f.Write(piece); err != nil {
			t.Fatal(err)
		}
		want = append(want, piece...)
		switch random.IntN(10) {
		case 0:
			want = want[:random.IntN(len(want)+1)]
			if f, err = m.openAppend(int64(len(want))); err != nil {
				t.Fatal(err)
			}
		case 1:
			view, err := m.openCurrent()
			if err != nil {
				t.Fatal(err)
			}
			views, seen = append(views, view), append(seen, bytes.Clone(want))
		}
	}
	for i, view := range views {
		got, err := io.ReadAll(io.NewSectionReader(view, 0, view.Size()))
		if err != nil || !bytes.Equal(got, seen[i]) {
			t.Fatalf("view %d has %d bytes, %v; want %d", i, len(got), err, len(seen[i]))
		}
		for range 20 {
			at := random.IntN(len(seen[i]) + 1)
			part := make([]byte, random.IntN(len(seen[i])-at+1))
			if _, err := view.ReadAt(part, int64(at)); err != nil || !bytes.Equal(part, seen[i][at:at+len(part)]) {
				t.Fatalf("view %d at %d: %v", i, at, err)
			}
		}
	}
}

func TestMemoryLimitIsEnforced(t *testing.T) {
	const maxMemory = 300 << 10
	s := openMemory(t, 0, maxMemory)
	s.Begin(testIdentity, true)
	writeAccepted(s, 1, clusters, "a", "1", "A")
	s.Checkpoint()
	random := rand.New(rand.NewPCG(5, 6))
	for i := range uint64(100) {
		content := make([]byte, 8<<10) // random, thus incompressible
		for j := range content {
			content[j] = byte(random.Uint32())
		}
		writeAccepted(s, i+2, clusters, fmt.Sprint(i), "1", string(content))
		if st := s.Status(); st.Memory > maxMemory+2*blockSize {
			t.Fatalf("status: %+v", st)
		}
	}
	s.Checkpoint()
	if st := s.Status(); st.Failures != 1 || !strings.Contains(st.Reason, ErrTooBig.Error()) {
		t.Errorf("status: %+v", st)
	}
	expectStored(t, s, "a=1:A")
}

func TestSecretsAreNotStoredInMemory(t *testing.T) {
	s := openMemory(t, 0, 1<<20)
	s.Begin(testIdentity, true)
	writeAccepted(s, 1, clusters, "a", "1", "A")
	writeAccepted(s, 2, clusters, "b", "1", "-----BEGIN PRIVATE KEY-----")
	writeAccepted(s, 3, secretType, "c", "1", "secret")
	s.Checkpoint()
	expectStored(t, s, "a=1:A")
	f := s.memory.files[fileName]
	for _, secret := range []string{"PRIVATE KEY", "secret"} {
		if bytes.Contains(f.tail, []byte(secret)) {
			t.Errorf("%q is in memory", secret)
		}
	}
}

func TestStoreWithoutDirectoryAndMemoryIsRefused(t *testing.T) {
	if _, err := Open(Config{}); err == nil {
		t.Error("opened")
	}
}

// TestFailedDiskIsRetriedWithBackoff: until the retry, accepted resources are stored in memory.
func TestFailedDiskIsRetriedWithBackoff(t *testing.T) {
	now := time.Now()
	dir := t.TempDir()
	s, err := Open(Config{Dir: dir, MaxMemory: 1 << 20, Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	s.Begin(testIdentity, true)
	writeAccepted(s, 1, clusters, "a", "1", "A")
	s.Checkpoint()
	writeAccepted(s, 2, clusters, "b", "1", "B") // the disk fails before the next checkpoint
	s.mu.Lock()
	s.disable(errors.New("input/output error"))
	s.publishAndUnlock()
	expectStored(t, s, "a=1:A")
	s.Begin(testIdentity, false)
	writeAccepted(s, 3, clusters, "c", "1", "C")
	s.Checkpoint()
	expectStored(t, s, "a=1:A c=1:C")
	if st := s.Status(); !st.InMemory || st.Reason != "" || st.NoDisk != "input/output error" || st.File != "" {
		t.Errorf("status: %+v", st)
	}
	now = now.Add(minDiskRetry)
	writeAccepted(s, 4, clusters, "d", "1", "D")
	s.Checkpoint()
	if st := s.Status(); st.InMemory || st.Memory != 0 || st.NoDisk != "" || st.File == "" {
		t.Errorf("status after the retry: %+v", st)
	}
	s.Close()
	expectStored(t, openStore(t, dir, 0), "a=1:A c=1:C d=1:D")
}
