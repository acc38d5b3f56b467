package lastgood

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"
)

// Snapshot is the stored configuration of one proxy. It is not safe for concurrent use. The caller must close it.
type Snapshot struct {
	// UpToDate is the last time at which the configuration was known to be that of the control plane.
	UpToDate time.Time
	types    map[string]*storedType
}

// storedType contains the resources of one type. Their contents remain in the open file until Resource reads them.
type storedType struct {
	file    *os.File
	version string
	records map[string]record
}

// load opens the files of the proxy id and verifies their checksums. If there are no such files, it returns nil. The
// error is then ErrForeign if there are files of another proxy, and otherwise nil.
func (d *directory) load(id Identity) (*Snapshot, error) {
	paths, err := d.files()
	if err != nil {
		return nil, err
	}
	s := &Snapshot{types: make(map[string]*storedType)}
	var foreign error
	for _, path := range paths {
		err := s.add(path, id)
		if errors.Is(err, ErrForeign) {
			foreign = err
			continue
		}
		if err != nil {
			_ = s.Close()
			return nil, err
		}
	}
	if len(s.types) == 0 {
		return nil, foreign
	}
	return s, nil
}

// add opens the file at path and adds its resources to the snapshot. It returns ErrForeign for the file of another
// proxy.
func (s *Snapshot) add(path string, id Identity) error {
	f, err := openRegular(path)
	if err != nil {
		return err
	}
	t, h, err := readType(f)
	if err == nil && h.Identity != id {
		err = fmt.Errorf("%s: %w: node %s, protocol %s", path, ErrForeign, h.Node, h.Protocol)
	}
	if err != nil {
		_ = f.Close()
		return err
	}
	if info, err := f.Stat(); err == nil && info.ModTime().After(s.UpToDate) {
		s.UpToDate = info.ModTime()
	}
	s.types[h.TypeURL] = t
	return nil
}

// readType reads the resources of a file, without their contents, and verifies the checksum.
func readType(f *os.File) (*storedType, header, error) {
	d, h, err := newDecoder(f)
	if err != nil {
		return nil, h, err
	}
	t := &storedType{file: f, records: make(map[string]record)}
	for {
		r, version, err := d.next()
		if err == errEnd {
			t.version = version
			return t, h, nil
		}
		if err == nil {
			err = d.copyContent(r.length, func([]byte) {})
		}
		if err != nil {
			return nil, h, fmt.Errorf("%s: %w", f.Name(), asCorrupt(err))
		}
		t.records[r.name] = r
	}
}

// Types returns the type URLs of the stored types, sorted.
func (s *Snapshot) Types() []string { return slices.Sorted(maps.Keys(s.types)) }

// Version returns the stored version of a type; ok is false if the type is not stored. The version is empty if some
// stored resources may be older than it. A control plane that compares versions then sends all resources.
func (s *Snapshot) Version(typeURL string) (version string, ok bool) {
	t := s.types[typeURL]
	if t == nil {
		return "", false
	}
	return t.version, true
}

// Names returns the names of a type's resources, sorted.
func (s *Snapshot) Names(typeURL string) []string {
	t := s.types[typeURL]
	if t == nil {
		return nil
	}
	return slices.Sorted(maps.Keys(t.records))
}

// HasResource reports whether the resource is stored.
func (s *Snapshot) HasResource(typeURL, name string) bool {
	t := s.types[typeURL]
	if t == nil {
		return false
	}
	_, ok := t.records[name]
	return ok
}

// Resource returns the version of a resource, and its content in the encoding of a response. ok is false if the
// resource is not stored.
func (s *Snapshot) Resource(typeURL, name string) (version string, content []byte, ok bool, err error) {
	t := s.types[typeURL]
	if t == nil {
		return "", nil, false, nil
	}
	r, ok := t.records[name]
	if !ok {
		return "", nil, false, nil
	}
	content = make([]byte, r.length)
	if _, err := t.file.ReadAt(content, r.offset); err != nil {
		return "", nil, false, fmt.Errorf("reading the last accepted configuration: %w", err)
	}
	return r.version, content, true, nil
}

// Size returns the number and the total size of all resources.
func (s *Snapshot) Size() (resources int, bytes int64) {
	for _, t := range s.types {
		for _, r := range t.records {
			resources++
			bytes += r.length
		}
	}
	return resources, bytes
}

// Close closes the files.
func (s *Snapshot) Close() error {
	var err error
	for _, t := range s.types {
		err = errors.Join(err, t.file.Close())
	}
	return err
}
