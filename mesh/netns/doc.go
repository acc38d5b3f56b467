// Package netns makes network namespaces that belong to nobody but this process: no name in the file system stands for
// one, so that the kernel takes each back, with all links in it, when this process and those it started there have ended,
// however they ended.
package netns
