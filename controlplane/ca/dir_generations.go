package ca

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/atomicfile"
)

// generations is the state of a root rotation in a directory. Each root has a generation number and a directory with
// this number. One file contains the whole state, so that each step is atomic.
type generations struct {
	Active    int `json:"active"`
	Announced int `json:"announced,omitempty"`
	// Previous is the number of the previous generation plus one, because generation numbers start at 0. 0 means that
	// there is no previous generation.
	Previous int       `json:"previous,omitempty"`
	Since    time.Time `json:"since"`
	Retire   time.Time `json:"retire,omitzero"`

	encoded string // content of the file
}

const generationsFile = "roots.json"

// generationDir returns the directory with the root of generation n. For generation 0, it is the authority's directory.
func (s dirStore) generationDir(n int) string {
	if n == 0 {
		return s.path()
	}
	return filepath.Join(s.path(), "root-"+strconv.Itoa(n))
}

func (s dirStore) readGenerations() (generations, error) {
	var g generations
	data, err := os.ReadFile(filepath.Join(s.path(), generationsFile))
	if errors.Is(err, fs.ErrNotExist) {
		return g, nil
	}
	if err != nil {
		return g, err
	}
	if err := json.Unmarshal(data, &g); err != nil {
		return g, damagedError(File{Name: generationsFile}, err, startAgain)
	}
	g.encoded = string(data)
	return g, nil
}

func (s dirStore) writeGenerations(g generations) error {
	data, err := json.Marshal(g)
	if err != nil {
		return err
	}
	if err := atomicfile.Write(filepath.Join(s.path(), generationsFile), data); err != nil {
		return s.explain("rotating roots", err)
	}
	return syncDir(s.path())
}

// Replace implements Store. A new root receives the next generation number.
func (s dirStore) Replace(ctx context.Context, previous, next Material) error {
	unlock, err := s.lock()
	if err != nil {
		return err
	}
	defer unlock()
	g, err := s.readGenerations()
	if err != nil {
		return err
	}
	if g.encoded != previous.Version {
		return ErrConflict
	}
	old, err := s.Read(ctx)
	if err != nil {
		return err
	}
	if g, err = s.writeRoots(g, old, next); err != nil {
		return err
	}
	g.Since, g.Retire = next.Since, next.Retire
	if err := s.writeGenerations(g); err != nil {
		return err
	}
	return s.removeRetired()
}

// writeRoots writes the roots of next that old does not contain. It returns the generations of next's roots.
func (s dirStore) writeRoots(g generations, old, next Material) (generations, error) {
	known := map[int]*KeyPair{g.Active: &old.Active}
	if old.Announced != nil {
		known[g.Announced] = old.Announced
	}
	if old.Previous != nil {
		known[g.Previous-1] = old.Previous
	}
	unused := max(g.Active, g.Announced, g.Previous-1) + 1
	write := func(p *KeyPair) (int, error) {
		for n, stored := range known {
			if bytes.Equal(stored.Certificate.Data, p.Certificate.Data) {
				return n, nil
			}
		}
		n := unused
		unused++
		return n, s.writeRoot(n, *p)
	}
	var out generations
	var err error
	if out.Active, err = write(&next.Active); err != nil {
		return out, err
	}
	if next.Announced != nil {
		if out.Announced, err = write(next.Announced); err != nil {
			return out, err
		}
	}
	if next.Previous != nil {
		if out.Previous, err = write(next.Previous); err != nil {
			return out, err
		}
		out.Previous++
	}
	return out, nil
}

func (s dirStore) writeRoot(n int, p KeyPair) error {
	dir := s.generationDir(n)
	if err := os.RemoveAll(dir); err != nil { // a step that was interrupted may have left the directory
		return s.explain("rotating roots", err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return s.explain("rotating roots", err)
	}
	if err := writeFiles(dir, File{rootCertFile, p.Certificate.Data}, File{rootKeyFile, p.Key.Data}); err != nil {
		return s.explain("rotating roots", err)
	}
	return nil
}

// removeRoot removes the files of the root of generation n, which is no longer trusted. It removes the key first.
func (s dirStore) removeRoot(n int) error {
	dir := s.generationDir(n)
	retired := []string{filepath.Join(dir, rootKeyFile), filepath.Join(dir, rootCertFile)}
	if n > 0 {
		retired = append(retired, dir)
	}
	for _, path := range retired {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return s.explain("removing the replaced root", err)
		}
	}
	return nil
}

// removeRetired removes the files of retired roots that remain because a process was killed. Generation numbers are not
// reused, so several processes can call removeRetired at the same time.
func (s dirStore) removeRetired() error {
	g, err := s.readGenerations()
	if err != nil {
		return err
	}
	oldest := g.Active
	if g.Previous > 0 {
		oldest = min(oldest, g.Previous-1)
	}
	for n := range oldest {
		if err := s.removeRoot(n); err != nil {
			return err
		}
	}
	return nil
}
