package config

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// BenchmarkParseThousandServices reads a file of 1,000 services with ten endpoints each, and their routing rules.
func BenchmarkParseThousandServices(b *testing.B) {
	var text strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&text, "---\napiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata:\n  name: s%d\nspec:\n  hosts: [s%d.example.com]\n  location: MESH_INTERNAL\n  resolution: STATIC\n  ports:\n  - number: 80\n    name: http\n    protocol: HTTP\n  endpoints:\n", i, i)
		for j := range 10 {
			fmt.Fprintf(&text, "  - address: 10.%d.%d.%d\n    labels: {app: s%d, version: v%d}\n    serviceAccount: s%d\n", i/250, i%250, j, i, j%2, i)
		}
		fmt.Fprintf(&text, "---\napiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata:\n  name: s%d\nspec:\n  hosts: [s%d.example.com]\n  http:\n  - timeout: 5s\n    route:\n    - destination: {host: s%d.example.com}\n", i, i, i)
	}
	data := []byte(text.String())
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		if resources, _ := Parse("bench.yaml", data); len(resources) != 2000 {
			b.Fatal(len(resources))
		}
	}
}

// BenchmarkEditAmongTenThousandFiles edits one of 10,000 files and scans all.
func BenchmarkEditAmongTenThousandFiles(b *testing.B) {
	root := b.TempDir()
	path := func(i int) string { return filepath.Join(root, fmt.Sprint(i%10), fmt.Sprintf("f%d.yaml", i)) }
	for i := range 10_000 {
		write(b, path(i), service(fmt.Sprintf("s%d", i), 1000))
	}
	store, err := NewDirStore(DirConfig{Paths: []string{root}})
	if err != nil {
		b.Fatal(err)
	}
	port := 1000
	for b.Loop() {
		port++
		write(b, path(1), service("s1", port))
		store.scan(map[string]bool{path(1): true})
		if got := store.Get(Key{Kind: Service, Namespace: "default", Name: "s1"}).Spec.(*ServiceSpec).Ports[0].Port; got != uint32(port) {
			b.Fatal(got)
		}
	}
}
