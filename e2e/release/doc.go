// Package release builds the files of a release for this machine's processor, compares two builds, installs from the files,
// and runs the example mesh with nothing but the installed programs.
package release
