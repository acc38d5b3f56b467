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
	"github.com/pilotfish-mesh/pilotfish/internal/atomicfile"
)

// attachment is one network of a sandbox that ADD has redirected or is redirecting.
type attachment struct {
	Network     string `json:"network"`
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifName"`
	NetNS       string `json:"netns"`
	Namespace   nsID   `json:"namespace"`

	noted time.Time
}

// nsID identifies a network namespace among those that exist at the same time.
type nsID struct {
	Device uint64 `json:"device"`
	Inode  uint64 `json:"inode"`
}

// attachments is a directory with a file per attachment, below the run directory. GC reads it, because a runtime that
// has lost its state cannot name the sandboxes. The files are lost on reboot, as sandboxes are. Write errors are only
// logged; GC then finds fewer sandboxes.
type attachments struct{ dir string }

const (
	// maxAttachment limits the size of a file, in bytes. It contains paths and names of up to 63 characters.
	maxAttachment = 16 << 10
	// maxAttachments limits the attachments that one GC examines.
	maxAttachments = 10_000
	// minAttachmentAge is the time within which a sandbox has its first process. A runtime should not run ADD during
	// GC, but two runtimes may share a network, and one may not know all sandboxes.
	minAttachmentAge = 10 * time.Minute
)

func (c *call) attachments() attachments {
	return attachments{filepath.Join(c.config.RunDir, agentapi.AttachmentsDir)}
}

// attachment returns the attachment of the command, without the namespace's ID.
func (c *call) attachment() attachment {
	return attachment{Network: c.config.Name, ContainerID: c.skel.ContainerID, IfName: c.skel.IfName, NetNS: c.skel.Netns}
}

// path returns the path of an attachment's file. It hashes the names, since they may contain any character.
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
	return atomicfile.Write(s.path(a), text)
}

func (s attachments) remove(a attachment) { _ = os.Remove(s.path(a)) }

// all returns the readable attachments. Unreadable files are incomplete writes of killed plugins.
func (s attachments) all() ([]attachment, error) {
	dir, err := os.Open(s.dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }()
	names, err := dir.Readdirnames(maxAttachments)
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
	if !info.Mode().IsRegular() { // opening a pipe would block until it has a writer
		return a, fmt.Errorf("%s is not a regular file", path)
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

// partitionAttachments separates the attachments that the runtime no longer knows from the others. Attachments of other
// networks count as known, since the runtime's list covers one network. So do recent ones, which may be newer than the
// list.
func partitionAttachments(all []attachment, network string, valid []types.GCAttachment, now time.Time) (gone, known []attachment) {
	lives := map[types.GCAttachment]bool{}
	for _, v := range valid {
		lives[v] = true
	}
	for _, a := range all {
		lives := lives[types.GCAttachment{ContainerID: a.ContainerID, IfName: a.IfName}]
		if a.Network == network && !lives && now.Sub(a.noted) > minAttachmentAge {
			gone = append(gone, a)
		} else {
			known = append(known, a)
		}
	}
	return gone, known
}
