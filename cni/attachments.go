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

// attachment records that ADD redirects a sandbox. It contains the network, the interface and the network namespace.
// ADD writes it before it installs the rules.
type attachment struct {
	Network     string `json:"network"`
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifName"`
	NetNS       string `json:"netns"`
	Namespace   nsID   `json:"namespace"`

	noted time.Time
}

// nsID identifies an existing network namespace. It is not unique over time, because the kernel reuses inode numbers
// after a namespace is removed.
type nsID struct {
	Device uint64 `json:"device"`
	Inode  uint64 `json:"inode"`
}

// attachments is a directory with a file per attachment, below the run directory. GC reads them, because a runtime that
// lost its state cannot list its sandboxes. A reboot removes both the files and the sandboxes. Write errors are only
// logged, and GC then finds fewer sandboxes.
type attachments struct{ dir string }

const (
	// maxAttachment limits the size of an attachment's file, in bytes. A file contains a path and short names.
	maxAttachment = 16 << 10
	// maxAttachments limits the attachments that one GC examines.
	maxAttachments = 10_000
	// minAttachmentAge is the minimum age of an attachment that GC removes. A new sandbox may not have a process yet.
	// The runtime that runs GC does not know the sandboxes of another runtime that uses the same network.
	minAttachmentAge = 10 * time.Minute
)

func (c *call) attachments() attachments {
	return attachments{filepath.Join(c.config.RunDir, agentapi.AttachmentsDir)}
}

// attachment returns the attachment of the current command, without the ID of the network namespace.
func (c *call) attachment() attachment {
	return attachment{Network: c.config.Name, ContainerID: c.skel.ContainerID, IfName: c.skel.IfName, NetNS: c.skel.Netns}
}

// path returns the path of an attachment's file. The file name is a hash, because network and container names may
// contain characters that are not valid in file names.
func (s attachments) path(a attachment) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %q", a.Network, a.ContainerID, a.IfName))
	return filepath.Join(s.dir, fmt.Sprintf("%x", sum[:16]))
}

// note writes an attachment's file, with the ID of the network namespace.
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

// all returns all attachments that it can read. It removes old invalid files. Such files result from a plugin that was
// killed while it wrote them.
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
	if !info.Mode().IsRegular() { // to open a named pipe would block until a writer opens it
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

// partitionAttachments divides attachments into stale ones, which are missing in the runtime's list of valid
// attachments, and live ones. The list is about one network, so attachments of other networks count as live.
// Attachments younger than minAttachmentAge count as live too, because the list may be older than they are.
func partitionAttachments(all []attachment, network string, valid []types.GCAttachment, now time.Time) (stale, live []attachment) {
	isValid := map[types.GCAttachment]bool{}
	for _, v := range valid {
		isValid[v] = true
	}
	for _, a := range all {
		listed := isValid[types.GCAttachment{ContainerID: a.ContainerID, IfName: a.IfName}]
		if a.Network == network && !listed && now.Sub(a.noted) > minAttachmentAge {
			stale = append(stale, a)
		} else {
			live = append(live, a)
		}
	}
	return stale, live
}
