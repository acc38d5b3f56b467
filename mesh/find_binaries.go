package mesh

import (
	"os"
	"os/exec"
	"path/filepath"

	"github.com/pilotfish-mesh/pilotfish/envoy"
)

// agentName is the name of the smaller binary that contains only the agent.
const agentName = "pilotfish-agent"

// findAgent returns the command that starts the agent. This is pilotfish-agent in the directory of self or in PATH. If
// there is none, it is self, which contains all commands of the agent.
func findAgent(self, pathEnv string) []string {
	dirs := append([]string{filepath.Dir(self)}, filepath.SplitList(pathEnv)...)
	for _, dir := range dirs {
		if !filepath.IsAbs(dir) {
			continue
		}
		if path, err := exec.LookPath(filepath.Join(dir, agentName)); err == nil {
			return []string{path}
		}
	}
	return []string{self}
}

// envoyOptions returns the options for the search for Envoy, based on the mesh's environment.
func (c Config) envoyOptions() envoy.FindOptions {
	o := envoy.FindOptions{Path: c.EnvoyPath, EnvPath: lookupEnv(c.Environ, "ENVOY_PATH"), PathEnv: lookupEnv(c.Environ, "PATH")}
	cache := lookupEnv(c.Environ, "XDG_CACHE_HOME")
	if cache == "" {
		if home := lookupEnv(c.Environ, "HOME"); home != "" {
			cache = filepath.Join(home, ".cache")
		}
	}
	if cache != "" {
		o.CacheDir = filepath.Join(cache, "pilotfish", "envoy")
	}
	return o
}

// ownExecutable returns the path of the running executable.
func ownExecutable() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(self)
}
