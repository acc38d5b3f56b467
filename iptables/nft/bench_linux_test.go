package nft

import (
	"context"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testns"
)

func BenchmarkApplyAgain(b *testing.B) {
	for name, change := range map[string]string{"all": "all", "tproxy dual": "tproxy dual"} {
		b.Run(name, func(b *testing.B) {
			ns := testns.New(b)
			be := backend(b, Config{NetNS: int(ns.Handle)})
			rules := compile(b, choices()[change])
			for b.Loop() {
				if err := be.Apply(context.Background(), rules); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkApplyAndClean(b *testing.B) {
	ns := testns.New(b)
	be := backend(b, Config{NetNS: int(ns.Handle)})
	rules := compile(b, choices()["dual stack"])
	for b.Loop() {
		if err := be.Apply(context.Background(), rules); err != nil {
			b.Fatal(err)
		}
		if err := be.Clean(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRead(b *testing.B) {
	ns := testns.New(b)
	be := backend(b, Config{NetNS: int(ns.Handle)})
	if err := be.Apply(context.Background(), compile(b, choices()["dual stack"])); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := be.Read(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
}
