package dirstore

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// BenchmarkEditAmongTenThousandFiles edits one of 10,000 files and scans all.
func BenchmarkEditAmongTenThousandFiles(b *testing.B) {
	root := b.TempDir()
	path := func(i int) string { return filepath.Join(root, fmt.Sprint(i%10), fmt.Sprintf("f%d.yaml", i)) }
	for i := range 10_000 {
		write(b, path(i), service(fmt.Sprintf("s%d", i), 1000))
	}
	store, err := New(Config{Paths: []string{root}})
	if err != nil {
		b.Fatal(err)
	}
	port := 1000
	for b.Loop() {
		port++
		write(b, path(1), service("s1", port))
		store.scan(map[string]bool{path(1): true})
		if got := store.Get(config.Key{Kind: config.Service, Namespace: "default", Name: "s1"}).Spec.(*config.ServiceSpec).Ports[0].Port; got != uint32(port) {
			b.Fatal(got)
		}
	}
}
