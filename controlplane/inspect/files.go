package inspect

import (
	"fmt"
	"io"
	"os"

	"github.com/pilotfish-mesh/pilotfish/controlplane"
	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/envoyfilter"
)

// ReadFiles reads the files of directories, as a control plane does, and single files.
func ReadFiles(paths []string) ([]controlplane.DiffFile, error) {
	names, err := config.FindFiles(paths)
	if err != nil {
		return nil, fmt.Errorf("reading the documents: %w", err)
	}
	var files []controlplane.DiffFile
	for _, name := range names {
		text, err := readBounded(name)
		if err != nil {
			return nil, fmt.Errorf("reading the documents: %w", err)
		}
		files = append(files, controlplane.DiffFile{Name: name, Text: text})
	}
	return files, nil
}

// readBounded reads no more of a file that is too large than shows that it is.
func readBounded(name string) (string, error) {
	file, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, config.MaxFileSize+1))
	return string(text), err
}

// asked is the question what files would change. It goes in plaintext: of documents that are Secrets it has the
// certificates only.
func asked(files []controlplane.DiffFile) controlplane.DiffRequest {
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
		out.Files = append(out.Files, controlplane.DiffFile{Name: f.Name, Text: string(config.WithoutSecrets([]byte(f.Text)))})
	}
	return out
}
