package cni

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/pilotfish-mesh/pilotfish/cni/agentapi"
)

// attachment is one network of a sandbox that ADD has redirected, or was about to.
type attachment struct {
	Network     string `json:"network"`
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifName"`
	NetNS       string `json:"netns"`
	Namespace   nsID   `json:"namespace"`

	noted time.Time
}

// nsID tells a network namespace from all others that exist at the same time.
type nsID struct {
	Device uint64 `json:"device"`
	Inode  uint64 `json:"inode"`
}

// attachments are kept in the run directory, a file each, for the GC of a runtime that has forgotten what it made: nobody
// else knows then where the sandbox is. They go with the node's memory, as sandboxes do. Nothing depends on them: what
// cannot be written is told, and GC knows less.
type attachments struct{ dir string }

const (
	// maxAttachment bounds a file: paths, and names of 63 letters.
	maxAttachment = 16 << 10
	// mostAttachments are looked at by one GC.
	mostAttachments = 10_000
	// settling is how long a sandbox may take to have its first process. A runtime should not add while it collects; one
	// that shares the network with another does, or knows less than the other.
	settling = 10 * time.Minute
)

func (c *call) attachments() attachments {
	return attachments{filepath.Join(c.config.RunDir, agentapi.AttachmentsDir)}
}

// attachment is that of the command, in a namespace.
func (c *call) attachment() attachment {
	return attachment{Network: c.config.Name, ContainerID: c.skel.ContainerID, IfName: c.skel.IfName, NetNS: c.skel.Netns}
}

// path names an attachment's file whatever letters a runtime gives names.
func (s attachments) path(a attachment) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %q", a.Network, a.ContainerID, a.IfName))
	return filepath.Join(s.dir, fmt.Sprintf("%x", sum[:16]))
}

func (s attachments) note(a attachment, netns *os.File) error {
	var err error
	if a.Namespace, err = identify(netns); err != nil {
		return err
	}
	text, err := json.Marshal(a)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return err
	}
	temp := fmt.Sprintf("%s.%d", s.path(a), os.Getpid())
	if err := os.WriteFile(temp, text, 0o600); err != nil {
		return err
	}
	return os.Rename(temp, s.path(a))
}

func (s attachments) forget(a attachment) { _ = os.Remove(s.path(a)) }

// all gives those that can be read. Others are what a plugin left that was killed: nobody writes them on.
func (s attachments) all() ([]attachment, error) {
	dir, err := os.Open(s.dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }()
	names, err := dir.Readdirnames(mostAttachments)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	var all []attachment
	for _, name := range names {
		path := filepath.Join(s.dir, name)
		info, err := os.Lstat(path)
		if err != nil || info.IsDir() {
			continue
		}
		a, err := readAttachment(path, info)
		switch {
		case err == nil && s.path(a) == path:
			all = append(all, a)
		case time.Since(info.ModTime()) > 2*commandTime:
			_ = os.Remove(path)
		}
	}
	return all, err
}

func readAttachment(path string, info fs.FileInfo) (a attachment, err error) {
	if !info.Mode().IsRegular() { // who reads a pipe waits for its writer
		return a, fmt.Errorf("%s is no file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return a, err
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, maxAttachment))
	if err != nil {
		return a, err
	}
	a.noted = info.ModTime()
	return a, json.Unmarshal(text, &a)
}

// stale divides the attachments of one network by whether the runtime knows them. Those of other networks count as known:
// this runtime's word is for the one alone. So do those that are new: its word may be older.
func stale(all []attachment, network string, valid []types.GCAttachment, now time.Time) (gone, known []attachment) {
	lives := map[types.GCAttachment]bool{}
	for _, v := range valid {
		lives[v] = true
	}
	for _, a := range all {
		lives := lives[types.GCAttachment{ContainerID: a.ContainerID, IfName: a.IfName}]
		if a.Network == network && !lives && now.Sub(a.noted) > settling {
			gone = append(gone, a)
		} else {
			known = append(known, a)
		}
	}
	return gone, known
}
