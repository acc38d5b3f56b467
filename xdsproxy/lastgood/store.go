package lastgood

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	fileName = "configuration.log"
	newName  = "configuration.new"
	// rewriteAt is how long the log has to be at least to be written anew.
	rewriteAt = 1 << 20
	// writeSize is how much is written at a time.
	writeSize = 64 << 10
)

// Store writes the log of one proxy. Its methods are safe for concurrent use, and none but Open and Load returns an error:
// a store that cannot write says so once, keeps what it has, and goes on when it is told to Begin.
type Store struct {
	config Config

	mu sync.Mutex
	// disk and memory are nil where there is none, and at is the one of them that is written to.
	disk     *disk
	memory   *memory
	at       shelf
	retry    waiting // for the disk
	file     file    // nil while nothing is written
	out      *bufio.Writer
	size     int64 // of the file and what is still to be written
	marked   int64 // where the last mark ends; 0 for none
	fresh    bool  // the file is beside the one that counts, and takes its place with its first mark
	limit    int64 // at which the log is written anew
	identity Identity
	open     map[uint64]struct{} // stages without an answer
	status   Status
	told     atomic.Pointer[Status]
}

// Status is what is known of a store.
type Status struct {
	// File is where it is kept on disk, if it is, and Bytes how long that is.
	File  string `json:"file,omitempty"`
	Bytes int64  `json:"bytes"`
	// InMemory says that it is kept in memory, for as long as this process lives, Memory how much it takes there, and NoDisk
	// why it is not on disk.
	InMemory bool   `json:"inMemory,omitempty"`
	Memory   int64  `json:"memory,omitempty"`
	NoDisk   string `json:"noDisk,omitempty"`
	// Marked is when it was last whole.
	Marked time.Time `json:"marked,omitzero"`
	// Reason says why nothing is kept at present, or nothing.
	Reason string `json:"reason,omitempty"`
	// Failures counts how often that has happened.
	Failures uint64 `json:"failures"`
	// Withheld are resources, the newest of them at most, that are not kept because of what is in them.
	Withheld []string `json:"withheld,omitempty"`
}

const maxWithheld = 16

// Open takes the directory, if one is given; without, or where it is for reading, all is kept in memory. It reads nothing yet.
func Open(c Config) (*Store, error) {
	c.MaxBytes = cmp.Or(c.MaxBytes, DefaultMaxBytes)
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Store{config: c}
	if c.Dir != "" {
		d, err := openDisk(c.Dir, c.ReadOnly)
		if err != nil {
			return nil, err
		}
		s.disk, s.at = d, d
	}
	if c.MaxMemory > 0 {
		s.memory = newMemory(c.MaxMemory)
	}
	if s.disk == nil || c.ReadOnly {
		if s.memory == nil {
			return nil, errors.New("neither a directory nor memory is given to keep the last good configuration in")
		}
		s.leaveDisk(c.Why)
	}
	s.status.Bytes = s.keptSize()
	s.tell()
	return s, nil
}

// Close ends the use of the directory.
func (s *Store) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closeFile()
	if s.disk != nil {
		s.disk.close()
	}
	if s.memory != nil {
		s.memory.close()
	}
}

func (s *Store) closeFile() {
	if s.file != nil {
		s.flush()
	}
	if s.file != nil {
		s.dropFile()
	}
}

// Load reads what is kept for an identity. When there is none it gives nil; the error says why what is there is of no use.
func (s *Store) Load(id Identity) (*Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file != nil {
		s.flush()
	}
	return s.load(id)
}

func (s *Store) load(id Identity) (*Snapshot, error) {
	from := s.kept()
	if from == nil {
		return nil, nil
	}
	f, err := from.read()
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if f.Size() > s.config.MaxBytes {
		_ = f.Close()
		return nil, ErrTooBig
	}
	return read(f, id)
}

// Begin starts to write for an identity. Anew means that what comes is all there is, and that what was kept counts until the
// first mark; otherwise it adds to what is kept.
func (s *Store) Begin(id Identity, anew bool) {
	s.mu.Lock()
	defer s.unlock()
	s.closeFile()
	s.identity, s.open = id, make(map[uint64]struct{})
	s.status.Reason = ""
	begin := s.resume
	if anew {
		begin = s.beside
	}
	err := begin()
	if err != nil && s.canLeaveDisk(err) {
		s.leaveDisk(err)
		err = begin()
	}
	if err != nil {
		s.fail(err)
	}
}

// Resource writes a resource that Envoy is sent in a response. How many bytes there are by now is told with the next flush:
// there are thousands of resources in a response.
func (s *Store) Resource(stage uint64, typeURL, name, version string, content []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stage(stage)
	why, remedy := secretIn(typeURL, content), "let it refer to a secret of its own, by SDS"
	if why == "" && (len(name) > maxField || len(version) > maxField) {
		why, remedy = fmt.Sprintf("its name or version is longer than %d bytes", maxField), "shorten it"
	}
	if why != "" {
		s.withhold(stage, typeURL, name, why, remedy)
		return
	}
	s.write(kindResource, fields(stage, typeURL, name, version), content)
}

// withhold leaves a resource out: also an older one of that name, since it is not what Envoy has.
func (s *Store) withhold(stage uint64, typeURL, name, why, remedy string) {
	s.removed(stage, typeURL, name)
	if typeURL == secretType {
		return
	}
	what := fmt.Sprintf("%s %.200s", typeURL, name)
	for _, w := range s.status.Withheld {
		if w == what {
			return
		}
	}
	s.config.Logger.Warn("a resource is not kept, and an Envoy that starts while no control plane answers will lack it",
		"resource", what, "reason", why, "remedy", remedy)
	if len(s.status.Withheld) == maxWithheld {
		s.status.Withheld = s.status.Withheld[1:]
	}
	s.status.Withheld = append(s.status.Withheld, what)
	s.tell()
}

func (s *Store) stage(stage uint64) {
	if s.file != nil {
		s.open[stage] = struct{}{}
	}
}

// Removed writes that a response takes a resource away.
func (s *Store) Removed(stage uint64, typeURL, name string) {
	s.mu.Lock()
	defer s.unlock()
	s.stage(stage)
	s.removed(stage, typeURL, name)
}

// removed writes that a resource is none of those that are kept; one whose name is too long is never kept.
func (s *Store) removed(stage uint64, typeURL, name string) {
	if len(name) <= maxField {
		s.write(kindRemoved, fields(stage, typeURL, name), nil)
	}
}

// Response ends what is written of a response. Whole says that there are no other resources of its type.
func (s *Store) Response(stage uint64, typeURL, version string, whole bool) {
	s.mu.Lock()
	defer s.unlock()
	s.stage(stage)
	if len(version) > maxField {
		version = "" // then all is asked for again
	}
	b := fields(stage, typeURL, version)
	if whole {
		b = append(b, 1)
	} else {
		b = append(b, 0)
	}
	s.write(kindResponse, b, nil)
}

// Accepted lets a response count, but for the resources of these names.
func (s *Store) Accepted(stage uint64, except ...string) {
	s.mu.Lock()
	defer s.unlock()
	if _, ok := s.open[stage]; ok {
		delete(s.open, stage)
		except = slices.DeleteFunc(except, func(name string) bool { return len(name) > maxField })
		s.write(kindAccepted, fields(stage, except...), nil)
	}
}

// Rejected forgets a response.
func (s *Store) Rejected(stage uint64) {
	s.mu.Lock()
	defer s.unlock()
	if _, ok := s.open[stage]; ok {
		delete(s.open, stage)
		s.write(kindRejected, fields(stage), nil)
	}
}

// Dropped forgets a resource that is not asked for any more.
func (s *Store) Dropped(typeURL, name string) {
	s.mu.Lock()
	defer s.unlock()
	if len(name) <= maxField {
		s.write(kindDropped, fields(0, typeURL, name), nil)
	}
}

// Mark says that what counts fits together.
func (s *Store) Mark() {
	s.mu.Lock()
	defer s.unlock()
	now := s.config.Now()
	s.write(kindMark, fields(uint64(now.UnixMilli())), nil)
	s.flush()
	if s.file != nil && s.fresh {
		if err := s.replace(); err != nil {
			s.fail(err)
		}
	}
	if s.file == nil {
		return
	}
	s.marked, s.status.Marked = s.size, now
	if len(s.open) == 0 {
		s.tidy()
	}
	s.at.settle()
}

// tidy is for a moment at which all that is written counts.
func (s *Store) tidy() {
	if s.size > s.limit {
		s.rewrite()
	}
	if !s.onDisk() && s.disk != nil && s.retry.isOver(s.config.Now()) {
		s.returnToDisk()
	}
}

// Seen says that what counts was up to date until now.
func (s *Store) Seen() {
	s.mu.Lock()
	defer s.unlock()
	s.write(kindSeen, fields(uint64(s.config.Now().UnixMilli())), nil)
	s.flush()
}

// Flush writes what waits to be written.
func (s *Store) Flush() {
	s.mu.Lock()
	defer s.unlock()
	s.flush()
}

// Status reports. It does not wait for a disk that has come to a stand.
func (s *Store) Status() Status { return *s.told.Load() }

// unlock tells the status to those who ask, and ends a method.
func (s *Store) unlock() {
	s.tell()
	s.mu.Unlock()
}

func (s *Store) tell() {
	st := s.status
	st.Withheld = slices.Clone(st.Withheld)
	if s.file != nil {
		st.Bytes = s.size
	}
	st.InMemory = !s.onDisk()
	if s.disk != nil && !st.InMemory {
		st.File = s.disk.path(fileName)
	}
	if s.memory != nil {
		st.Memory = s.memory.held()
	}
	s.told.Store(&st)
}

func (s *Store) write(k kind, fields, content []byte) {
	if s.file == nil {
		return
	}
	length := len(fields) + len(content)
	if s.size+int64(length)+recordHead+recordTail > s.config.MaxBytes || length > maxRecord {
		s.fail(fmt.Errorf("%w of %d bytes", ErrTooBig, s.config.MaxBytes))
		return
	}
	if err := writeRecord(s.out, k, fields, content); err != nil {
		s.fail(err)
		return
	}
	s.size += int64(length) + recordHead + recordTail
}

func writeRecord(w io.Writer, k kind, fields, content []byte) error {
	head := binary.BigEndian.AppendUint32([]byte{byte(k)}, uint32(len(fields)+len(content)))
	sum := crc32.Checksum(head, castagnoli)
	for _, part := range [][]byte{head, fields, content} {
		if _, err := w.Write(part); err != nil {
			return err
		}
	}
	sum = crc32.Update(crc32.Update(sum, castagnoli, fields), castagnoli, content)
	_, err := w.Write(binary.BigEndian.AppendUint32(nil, sum))
	return err
}

func (s *Store) flush() {
	if s.file == nil {
		return
	}
	if err := s.out.Flush(); err != nil {
		s.fail(err)
	}
}

// fail stops writing. What was kept until the last mark stays.
func (s *Store) fail(err error) {
	s.config.Logger.Warn("the last good configuration cannot be kept; what was kept before stays, and Envoy gets its configuration as before",
		"place", s.place(), "error", err, "remedy", "make room, or set another directory or limit")
	s.status.Failures++
	s.status.Reason = err.Error()
	if s.file != nil {
		if !s.fresh {
			_ = s.file.Truncate(s.marked)
		}
		s.dropFile()
		clear(s.open)
	}
	if s.canLeaveDisk(err) {
		s.leaveDisk(err)
	}
	s.tell()
}

// dropFile ends the use of the file, and removes it if it never came to count.
func (s *Store) dropFile() {
	_ = s.file.Close()
	if s.fresh {
		s.at.remove(newName)
	}
	s.file, s.fresh = nil, false
	s.status.Bytes = s.keptSize()
	s.at.settle()
}
