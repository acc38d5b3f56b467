package config

import (
	"fmt"
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
