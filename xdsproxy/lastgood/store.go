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
	fileName    = "configuration.log"
	newFileName = "configuration.new"
	// minRewriteSize is the minimum length of a log that is rewritten.
	minRewriteSize = 1 << 20
	// writeBufferSize is the size of the write buffer.
	writeBufferSize = 64 << 10
)

// Store writes the log of one proxy. Its methods are safe for concurrent use. Only Open and Load return errors: if
// writing fails, the store logs a warning, retains the last checkpoint, and ignores writes until the next Begin.
type Store struct {
	config Config

	mu sync.Mutex
	// disk and memory are nil if not configured. active is the one that is written.
	disk          *disk
	memory        *memory
	active        storage
	retry         diskBackoff // of the disk
	file          file        // nil if the store does not write
	out           *bufio.Writer
	size          int64 // of the file, including buffered data
	checkpointEnd int64 // position after the last checkpoint; 0 if there is none
	isNew         bool  // the file replaces the current one at its first checkpoint
	rewriteSize   int64 // size from which the log is rewritten
	identity      Identity
	pending       map[uint64]struct{} // stages without an ACK or NACK
	status        Status
	published     atomic.Pointer[Status]
}

// Status is the state of a store.
type Status struct {
	// File is the path of the file, or empty if it is not on disk. Bytes is its length.
	File  string `json:"file,omitempty"`
	Bytes int64  `json:"bytes"`
	// InMemory reports that the file is in memory and is lost when this process ends. Memory is its size there in
	// bytes. NoDisk is the reason why it is not on disk.
	InMemory bool   `json:"inMemory,omitempty"`
	Memory   int64  `json:"memory,omitempty"`
	NoDisk   string `json:"noDisk,omitempty"`
	// LastCheckpoint is the time of the last checkpoint.
	LastCheckpoint time.Time `json:"marked,omitzero"`
	// Reason is why nothing is stored at present, or empty.
	Reason string `json:"reason,omitempty"`
	// Failures counts the write failures.
	Failures uint64 `json:"failures"`
	// Withheld are the last maxWithheld resources that are not stored because of secrets or too long names.
	Withheld []string `json:"withheld,omitempty"`
}

const maxWithheld = 16

// Open locks and checks the directory. Without a directory, or with ReadOnly, the store writes to memory. Open does not
// read the file.
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
		s.disk, s.active = d, d
	}
	if c.MaxMemory > 0 {
		s.memory = newMemory(c.MaxMemory)
	}
	if s.disk == nil || c.ReadOnly {
		if s.memory == nil {
			return nil, errors.New("neither a directory nor memory is configured for the last good configuration")
		}
		s.switchToMemory(c.Reason)
	}
	s.status.Bytes = s.currentSize()
	s.publishStatus()
	return s, nil
}

// Close writes buffered data, closes the file and unlocks the directory.
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
		s.discardFile()
	}
}

// Load returns the stored configuration of id, or nil if there is none. The error is the reason why the file cannot be
// used.
func (s *Store) Load(id Identity) (*Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file != nil {
		s.flush()
	}
	return s.load(id)
}

func (s *Store) load(id Identity) (*Snapshot, error) {
	from := s.currentStorage()
	if from == nil {
		return nil, nil
	}
	f, err := from.openCurrent()
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
	return replayFile(f, id)
}

// Begin starts to write for id. If replace is set, all resources follow, and the file replaces the current one at its
// first checkpoint. Otherwise the store appends to the current file.
func (s *Store) Begin(id Identity, replace bool) {
	s.mu.Lock()
	defer s.publishAndUnlock()
	s.closeFile()
	s.identity, s.pending = id, make(map[uint64]struct{})
	s.status.Reason = ""
	begin := s.resumeFile
	if replace {
		begin = s.createReplacement
	}
	err := begin()
	if err != nil && s.canSwitchToMemory(err) {
		s.switchToMemory(err)
		err = begin()
	}
	if err != nil {
		s.disable(err)
	}
}

// WriteResource writes a resource of a response that is sent to Envoy. It does not update the status, because a
// response may have thousands of resources; the next Flush does.
func (s *Store) WriteResource(stage uint64, typeURL, name, version string, content []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addPending(stage)
	why, remedy := findSecret(typeURL, content), "move the secret to an SDS resource and refer to it"
	if why == "" && (len(name) > maxField || len(version) > maxField) {
		why, remedy = fmt.Sprintf("its name or version is longer than %d bytes", maxField), "shorten it"
	}
	if why != "" {
		s.withholdResource(stage, typeURL, name, why, remedy)
		return
	}
	s.write(kindResource, encodeFields(stage, typeURL, name, version), content)
}

// withholdResource records that a resource is not stored. It also removes an older version, which is not what Envoy
// has.
func (s *Store) withholdResource(stage uint64, typeURL, name, why, remedy string) {
	s.writeRemoval(stage, typeURL, name)
	if typeURL == secretType {
		return
	}
	what := fmt.Sprintf("%s %.200s", typeURL, name)
	for _, w := range s.status.Withheld {
		if w == what {
			return
		}
	}
	s.config.Logger.Warn("a resource is not stored; an Envoy that starts while no control plane answers will lack it",
		"resource", what, "reason", why, "remedy", remedy)
	if len(s.status.Withheld) == maxWithheld {
		s.status.Withheld = s.status.Withheld[1:]
	}
	s.status.Withheld = append(s.status.Withheld, what)
	s.publishStatus()
}

func (s *Store) addPending(stage uint64) {
	if s.file != nil {
		s.pending[stage] = struct{}{}
	}
}

// WriteRemoval writes that a response removes a resource.
func (s *Store) WriteRemoval(stage uint64, typeURL, name string) {
	s.mu.Lock()
	defer s.publishAndUnlock()
	s.addPending(stage)
	s.writeRemoval(stage, typeURL, name)
}

// writeRemoval writes the removal of a resource. Resources with a too long name are never stored.
func (s *Store) writeRemoval(stage uint64, typeURL, name string) {
	if len(name) <= maxField {
		s.write(kindRemoved, encodeFields(stage, typeURL, name), nil)
	}
}

// WriteResponse ends the records of a response. If complete is set, the response contains all resources of its type.
func (s *Store) WriteResponse(stage uint64, typeURL, version string, complete bool) {
	s.mu.Lock()
	defer s.publishAndUnlock()
	s.addPending(stage)
	if len(version) > maxField {
		version = "" // an empty version requests all resources
	}
	b := encodeFields(stage, typeURL, version)
	if complete {
		b = append(b, 1)
	} else {
		b = append(b, 0)
	}
	s.write(kindResponse, b, nil)
}

// Accept records that Envoy accepted a response, except for the resources in except.
func (s *Store) Accept(stage uint64, except ...string) {
	s.mu.Lock()
	defer s.publishAndUnlock()
	if _, ok := s.pending[stage]; ok {
		delete(s.pending, stage)
		except = slices.DeleteFunc(except, func(name string) bool { return len(name) > maxField })
		s.write(kindAccepted, encodeFields(stage, except...), nil)
	}
}

// Reject records that Envoy rejected a response.
func (s *Store) Reject(stage uint64) {
	s.mu.Lock()
	defer s.publishAndUnlock()
	if _, ok := s.pending[stage]; ok {
		delete(s.pending, stage)
		s.write(kindRejected, encodeFields(stage), nil)
	}
}

// Unsubscribe removes a resource that Envoy no longer requests.
func (s *Store) Unsubscribe(typeURL, name string) {
	s.mu.Lock()
	defer s.publishAndUnlock()
	if len(name) <= maxField {
		s.write(kindUnsubscribed, encodeFields(0, typeURL, name), nil)
	}
}

// Checkpoint appends a checkpoint. Readers restore the state at the last checkpoint, so call it only when the accepted
// resources are consistent. If no stage is pending, it also rewrites a long log and retries a failed disk.
func (s *Store) Checkpoint() {
	s.mu.Lock()
	defer s.publishAndUnlock()
	now := s.config.Now()
	s.write(kindCheckpoint, encodeFields(uint64(now.UnixMilli())), nil)
	s.flush()
	if s.file != nil && s.isNew {
		if err := s.replaceFile(); err != nil {
			s.disable(err)
		}
	}
	if s.file == nil {
		return
	}
	s.checkpointEnd, s.status.LastCheckpoint = s.size, now
	if len(s.pending) == 0 {
		s.maintain()
	}
	s.active.releaseBuffers()
}

// maintain rewrites a long log and retries a failed disk. It must be called only while no stage is pending.
func (s *Store) maintain() {
	if s.size > s.rewriteSize {
		s.rewrite()
	}
	if !s.isOnDisk() && s.disk != nil && s.retry.isDue(s.config.Now()) {
		s.switchToDisk()
	}
}

// ConfirmUpToDate records that the accepted configuration is still that of the control plane.
func (s *Store) ConfirmUpToDate() {
	s.mu.Lock()
	defer s.publishAndUnlock()
	s.write(kindUpToDate, encodeFields(uint64(s.config.Now().UnixMilli())), nil)
	s.flush()
}

// Flush writes buffered data.
func (s *Store) Flush() {
	s.mu.Lock()
	defer s.publishAndUnlock()
	s.flush()
}

// Status returns the state. It does not block on a hung disk.
func (s *Store) Status() Status { return *s.published.Load() }

// publishAndUnlock updates the status and unlocks the mutex at the end of a method.
func (s *Store) publishAndUnlock() {
	s.publishStatus()
	s.mu.Unlock()
}

func (s *Store) publishStatus() {
	st := s.status
	st.Withheld = slices.Clone(st.Withheld)
	if s.file != nil {
		st.Bytes = s.size
	}
	st.InMemory = !s.isOnDisk()
	if s.disk != nil && !st.InMemory {
		st.File = s.disk.path(fileName)
	}
	if s.memory != nil {
		st.Memory = s.memory.usage()
	}
	s.published.Store(&st)
}

func (s *Store) write(k kind, fields, content []byte) {
	if s.file == nil {
		return
	}
	length := len(fields) + len(content)
	if s.size+int64(length)+recordHeaderLen+checksumLen > s.config.MaxBytes || length > maxRecord {
		s.disable(fmt.Errorf("%w of %d bytes", ErrTooBig, s.config.MaxBytes))
		return
	}
	if err := writeRecord(s.out, k, fields, content); err != nil {
		s.disable(err)
		return
	}
	s.size += int64(length) + recordHeaderLen + checksumLen
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
		s.disable(err)
	}
}

// disable stops writing after an error. The state at the last checkpoint is retained.
func (s *Store) disable(err error) {
	s.config.Logger.Warn("the last good configuration cannot be stored; the last checkpoint is retained, and Envoy still receives its configuration",
		"place", s.location(), "error", err, "remedy", "free disk space, or set another directory or limit")
	s.status.Failures++
	s.status.Reason = err.Error()
	if s.file != nil {
		if !s.isNew {
			_ = s.file.Truncate(s.checkpointEnd)
		}
		s.discardFile()
		clear(s.pending)
	}
	if s.canSwitchToMemory(err) {
		s.switchToMemory(err)
	}
	s.publishStatus()
}

// discardFile closes the file, and removes it if it has not become the current one.
func (s *Store) discardFile() {
	_ = s.file.Close()
	if s.isNew {
		s.active.remove(newFileName)
	}
	s.file, s.isNew = nil, false
	s.status.Bytes = s.currentSize()
	s.active.releaseBuffers()
}
