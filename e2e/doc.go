// Package e2e tests the project as a user has it: the built binaries, real Envoys, the commands that the documents show.
package e2e
