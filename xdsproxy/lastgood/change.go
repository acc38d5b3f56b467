package lastgood

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/pilotfish-mesh/pilotfish/xdsproxy/wire"
)

// smallMessage is the size in bytes below which the store copies an accepted message. The original buffers of such a
// message use more memory than its content.
const smallMessage = 64 << 10

// unsavedMessage is an accepted message in memory. At least one of its resources is not saved yet.
type unsavedMessage struct {
	*wire.Message
	size  int64
	users int // number of its unsaved resources; while accept runs, one more
}

// source locates the content of a changed resource: the message, and the index in its list of resources.
type source struct {
	version string
	message *unsavedMessage
	index   int
}

// typeChange contains the unsaved changes of one resource type.
type typeChange struct {
	// version is the version of the last accepted response. hasVersion: Envoy has accepted a response since the last
	// save.
	version    string
	hasVersion bool
	// isStale: some resources of this version are missing in the file, or the file contains them in an older version.
	isStale      bool
	unsavedBytes int64 // total size of the messages
	// isFull: the changes contain all resources of the type. Otherwise the store merges them with the resources in the
	// file.
	isFull    bool
	resources map[string]source
	removed   map[string]struct{}
	// isInUse, if set, reports whether Envoy still uses the resource called name. If not, the store removes it from the
	// file.
	isInUse func(name string) bool
}

func newTypeChange() *typeChange {
	return &typeChange{resources: make(map[string]source), removed: make(map[string]struct{})}
}

// accept records the resources of an accepted response, except those named in rejected. If isFull is true, it discards
// all earlier changes. It takes ownership of message.
func (c *typeChange) accept(r wire.Response, message *wire.Message, isFull bool, rejected []string) {
	c.version, c.hasVersion = r.Version, true
	if isFull {
		c.free()
		clear(c.removed)
		c.isFull = true
	}
	m := &unsavedMessage{Message: message, size: int64(message.Data.Len()), users: 1}
	c.unsavedBytes += m.size
	for i, one := range r.Resources {
		if one.Name == "" || slices.Contains(rejected, one.Name) {
			continue
		}
		c.drop(one.Name)
		delete(c.removed, one.Name)
		c.resources[one.Name] = source{one.Version, m, i}
		m.users++
	}
	for _, name := range r.Removed {
		c.remove(name)
	}
	c.release(m)
}

// remove discards the unsaved content of a resource, and records that the next save must remove the resource from the
// file.
func (c *typeChange) remove(name string) {
	c.drop(name)
	c.removed[name] = struct{}{}
}

// drop discards the unsaved content of a resource.
func (c *typeChange) drop(name string) {
	if old, ok := c.resources[name]; ok {
		delete(c.resources, name)
		c.release(old.message)
	}
}

// release records that one resource of m needs no save any more. It frees m if no resource of m needs one.
func (c *typeChange) release(m *unsavedMessage) {
	if m.users--; m.users == 0 {
		m.Free()
		c.unsavedBytes -= m.size
	}
}

// free discards the unsaved content of all resources.
func (c *typeChange) free() {
	for name := range c.resources {
		c.drop(name)
	}
}

// typeWriter writes the new file of one type.
type typeWriter struct {
	*encoder
	typeURL string
	change  *typeChange
	scratch []byte // buffer for the content of the resource that is being written
	// oldVersion is the version of the type in the current file.
	oldVersion string
	// withheld maps the name of a resource that must not be stored to the reason.
	withheld map[string]string
}

// write writes the new file after its header: the unchanged resources of old, the changed resources, the version and
// the checksum. old is the current file. It is nil if there is none, or if the changes replace all of it.
func (w *typeWriter) write(old *os.File, protocol string) error {
	if old != nil {
		if err := w.copyUnchanged(old); err != nil {
			return err
		}
	}
	written := make(map[*unsavedMessage]bool)
	for _, s := range w.change.resources {
		if written[s.message] {
			continue
		}
		written[s.message] = true
		if err := w.writeMessage(s.message); err != nil {
			return err
		}
	}
	return w.finish(w.version(protocol))
}

// version returns the version to store. In SotW it is empty if resources are missing or outdated, so that the control
// plane sends all resources.
func (w *typeWriter) version(protocol string) string {
	switch {
	case protocol == sotw && (w.change.isStale || len(w.withheld) > 0):
		return ""
	case w.change.hasVersion && len(w.change.version) <= maxField:
		return w.change.version
	case w.change.hasVersion:
		return "" // the version is too long to be stored; without one, the control plane sends all resources
	}
	return w.oldVersion
}

// copyUnchanged copies those resources of the current file that the changes do not replace or remove. It also sets
// oldVersion.
func (w *typeWriter) copyUnchanged(old *os.File) error {
	d, _, err := newDecoder(old)
	if err != nil {
		return err
	}
	for {
		r, version, err := d.next()
		if err == errEnd {
			w.oldVersion = version
			return nil
		}
		if err == nil {
			write := func([]byte) {}
			if w.isUnchanged(r.name) {
				w.beginResource(r.name, r.version, r.length)
				write = w.encoder.write
			}
			err = d.copyContent(r.length, write)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", old.Name(), asCorrupt(err))
		}
	}
}

func (w *typeWriter) isUnchanged(name string) bool {
	_, isSet := w.change.resources[name]
	_, isRemoved := w.change.removed[name]
	return !isSet && !isRemoved && (w.change.isInUse == nil || w.change.isInUse(name))
}

// writeMessage writes the unsaved resources of m. It skips those that Envoy rejected, and those that a newer message
// contains or removes.
func (w *typeWriter) writeMessage(m *unsavedMessage) error {
	names := make(map[int]string, m.users)
	for name, s := range w.change.resources {
		if s.message == m {
			names[s.index] = name
		}
	}
	index := 0
	return wire.EachResource(m.Data, func(c *wire.Cursor, length int) (err error) {
		name, ok := names[index]
		index++
		if !ok {
			return c.Skip(length)
		}
		if w.scratch, err = c.ReadInto(w.scratch[:0], length); err != nil {
			return err
		}
		w.writeResource(name, w.change.resources[name].version, w.scratch)
		return w.err
	})
}

// writeResource writes a resource. If the resource must not be stored, it only records the reason in withheld.
func (w *typeWriter) writeResource(name, version string, content []byte) {
	why := findSecret(w.typeURL, content)
	if why == "" && (len(name) > maxField || len(version) > maxField) {
		why = fmt.Sprintf("its name or version is longer than %d bytes", maxField)
	}
	if why != "" {
		w.withheld[name] = why
		return
	}
	w.beginResource(name, version, int64(len(content)))
	w.encoder.write(content)
}

// save writes the new file of a type. It writes nothing if there is no usable file and no response to save. withheld
// maps the names of resources that must not be stored to the reasons. If the current file is damaged, save removes it
// and returns an error. The next recording writes a new file.
func (d *directory) save(c *Config, h header, change *typeChange) (withheld map[string]string, err error) {
	path, err := d.file(h.TypeURL)
	if err != nil {
		return nil, err
	}
	var old *os.File
	if !change.isFull {
		if old, err = openMatching(path, h); err != nil {
			return nil, err
		}
	}
	switch {
	case old != nil:
		defer func() { _ = old.Close() }()
	case !change.hasVersion: // no response of the type was accepted since the last save
		return nil, nil
	}
	limit := c.MaxBytes - d.size(path)
	withheld = make(map[string]string)
	err = d.replace(path, c.Now(), func(out *bufio.Writer) error {
		w := &typeWriter{encoder: newEncoder(out, h, limit), typeURL: h.TypeURL, change: change, withheld: withheld}
		return w.write(old, h.Protocol)
	})
	if errors.Is(err, ErrCorrupt) {
		_ = os.Remove(path)
	}
	return withheld, err
}

// openMatching opens the current snapshot file at path. It returns nil without an error if save cannot merge changes
// with the file: the file is missing, its header is damaged, or its header differs from want.
func openMatching(path string, want header) (*os.File, error) {
	f, err := openRegular(path)
	if isMissing(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	_, got, err := newDecoder(f)
	if err == nil && got == want {
		_, err = f.Seek(0, 0)
		return f, err
	}
	_ = f.Close()
	if err != nil && !errors.Is(err, ErrCorrupt) {
		return nil, err
	}
	return nil, nil
}
