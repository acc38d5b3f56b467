package inspect

import (
	"fmt"
	"io"
	"os"

	"github.com/pilotfish-mesh/pilotfish/controlplane"
	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/config/dirstore"
	"github.com/pilotfish-mesh/pilotfish/controlplane/envoyfilter"
)

// ReadFiles reads files. For a directory, it reads the configuration files in it, as a control plane does.
func ReadFiles(paths []string) ([]controlplane.DiffFile, error) {
	names, err := dirstore.FindFiles(paths)
	if err != nil {
		return nil, fmt.Errorf("reading the documents: %w", err)
	}
	var files []controlplane.DiffFile
	for _, name := range names {
		text, err := readLimited(name)
		if err != nil {
			return nil, fmt.Errorf("reading the documents: %w", err)
		}
		files = append(files, controlplane.DiffFile{Name: name, Text: text})
	}
	return files, nil
}

// readLimited reads a file, up to one byte more than the maximum size. The caller can thus detect a larger file.
func readLimited(name string) (string, error) {
	file, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, config.MaxFileSize+1))
	return string(text), err
}

// newDiffRequest returns the request for a comparison. The request is sent in plaintext, so private keys and registry
// credentials are removed from its Secrets.
func newDiffRequest(files []controlplane.DiffFile) controlplane.DiffRequest {
	out := controlplane.DiffRequest{Files: []controlplane.DiffFile{}}
	for _, f := range files {
		resources, _ := config.Parser{Check: envoyfilter.Check}.Parse(f.Name, []byte(f.Text))
		for _, r := range resources {
			if secret, ok := r.Spec.(*config.SecretSpec); ok {
				out.Secrets = append(out.Secrets, controlplane.DiffSecret{
					Namespace: r.Namespace, Name: r.Name, Certificate: secret.Certificate, Authorities: secret.Authorities, Revoked: secret.Revoked,
					Registries: len(secret.Registries) > 0,
				})
			}
		}
		out.Files = append(out.Files, controlplane.DiffFile{Name: f.Name, Text: string(config.RemoveSecrets([]byte(f.Text)))})
	}
	return out
}
