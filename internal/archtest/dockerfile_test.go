package archtest

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// unpinnedImage is the only base image that may lack a digest. docs/container.md explains how to pin it.
const unpinnedImage = "${ENVOY_IMAGE}"

// writableFolders are the directories that the user of the sidecar image may own.
var writableFolders = []string{"/etc/istio/proxy/", "/etc/istio/config/", "/var/lib/istio/data/", "/var/run/secrets/workload-spiffe-uds/"}

var pinnedImage = regexp.MustCompile(`@sha256:[0-9a-f]{64}$`)

// stage is one FROM instruction of a Dockerfile with the instructions that follow it.
type stage struct {
	image, name string
	copies      [][]string // words of each COPY and ADD instruction
}

// parseStages reads the stages of a Dockerfile.
func parseStages(text string) []stage {
	var stages []stage
	for line := range strings.Lines(strings.ReplaceAll(text, "\\\n", " ")) {
		words := strings.Fields(line)
		if len(words) < 2 {
			continue
		}
		switch strings.ToUpper(words[0]) {
		case "FROM":
			s := stage{image: words[1]}
			if len(words) == 4 {
				s.name = words[3]
			}
			stages = append(stages, s)
		case "COPY", "ADD":
			if len(stages) > 0 {
				stages[len(stages)-1].copies = append(stages[len(stages)-1].copies, words)
			}
		}
	}
	return stages
}

// findDockerfileProblems returns base images without a digest, and files of the images that the runtime user can
// change.
func findDockerfileProblems(text string) []string {
	var problems []string
	stages := parseStages(text)
	for _, s := range stages {
		if s.image != "scratch" && s.image != unpinnedImage && !pinnedImage.MatchString(s.image) {
			problems = append(problems, fmt.Sprintf("FROM %s has no digest: append @sha256:…", s.image))
		}
		if strings.Contains(text, "--from="+s.name+" ") && s.name != "" {
			continue // a build stage, whose layers are not in an image
		}
		for _, words := range s.copies {
			if problem := checkCopy(words); problem != "" {
				problems = append(problems, strings.Join(words, " ")+": "+problem)
			}
		}
	}
	return problems
}

func checkCopy(words []string) string {
	owner := "--chown=0:0"
	if target := words[len(words)-1]; slices.Contains(writableFolders, target) && words[len(words)-2] == "/empty/" {
		owner = "--chown=1337:1337"
	}
	for _, flag := range []string{owner, "--chmod=0755"} {
		if !slices.Contains(words, flag) {
			return "it lacks " + flag
		}
	}
	return ""
}

func readRepositoryFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(testenv.Root(), name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestImagesArePinnedAndTheirFilesBelongToRoot(t *testing.T) {
	text := readRepositoryFile(t, "Dockerfile")
	if stages := parseStages(text); len(stages) != 3 {
		t.Errorf("%d stages were read, want 3", len(stages))
	}
	for _, problem := range findDockerfileProblems(text) {
		t.Error(problem)
	}
	if !strings.Contains(readRepositoryFile(t, "docs/container.md"), "--build-arg ENVOY_IMAGE=envoyproxy/envoy:distroless-v1.40.0@sha256:DIGEST") {
		t.Error("docs/container.md does not explain how to pin ENVOY_IMAGE")
	}
}

func TestGoImageHasTheToolchainOfGoMod(t *testing.T) {
	_, rest, _ := strings.Cut(readRepositoryFile(t, "go.mod"), "\ntoolchain go")
	release, _, _ := strings.Cut(rest, "\n")
	if image := "FROM golang:" + release + "@sha256:"; release == "" || !strings.Contains(readRepositoryFile(t, "Dockerfile"), image) {
		t.Errorf("the Dockerfile lacks %q, the toolchain of go.mod", image)
	}
}

func TestDockerfileProblemsAreFound(t *testing.T) {
	digest := "@sha256:" + strings.Repeat("0", 64)
	for name, c := range map[string]struct{ text, want string }{
		"image without a digest":      {"FROM golang:1.26 AS build\n", "golang:1.26 has no digest"},
		"file of the build's user":    {"FROM a" + digest + "\nCOPY --from=x --chmod=0755 /out/a /bin/a\n", "lacks --chown=0:0"},
		"file of the runtime user":    {"FROM scratch\nCOPY --chown=1337:1337 --chmod=0755 /out/a \\\n  /bin/a\n", "lacks --chown=0:0"},
		"file with an unknown mode":   {"FROM ${ENVOY_IMAGE}\nADD --chown=0:0 a /bin/a\n", "lacks --chmod=0755"},
		"whole tree of the user":      {"FROM scratch\nCOPY --chown=1337:1337 --chmod=0755 /rootfs/ /\n", "lacks --chown=0:0"},
		"programs in a user's folder": {"FROM scratch\nCOPY --chown=1337:1337 --chmod=0755 /out/ /etc/istio/proxy/\n", "lacks --chown=0:0"},
	} {
		problems := findDockerfileProblems(c.text)
		if len(problems) != 1 || !strings.Contains(problems[0], c.want) {
			t.Errorf("%s: %q, want one with %q", name, problems, c.want)
		}
	}
}
