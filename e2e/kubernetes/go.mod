module github.com/pilotfish-mesh/pilotfish/e2e/kubernetes

go 1.26.0

toolchain go1.26.8

replace github.com/pilotfish-mesh/pilotfish => ../..

require github.com/pilotfish-mesh/pilotfish v0.0.0

require golang.org/x/sys v0.49.0 // indirect
