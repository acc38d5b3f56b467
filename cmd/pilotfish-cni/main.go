// Command pilotfish-cni will be the CNI plugin that redirects pods' traffic into their proxies. It is not done yet: it
// tells so, in the way that container runtimes understand, and changes nothing.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
)

// The versions of the CNI specification that the plugin will speak.
var versions = []string{"0.4.0", "1.0.0", "1.1.0"}

// notDone is in the range of codes that the specification leaves to plugins (100 and over).
const notDone = 100

func main() { os.Exit(run(os.Getenv("CNI_COMMAND"), os.Stdin, os.Stdout, os.Stderr)) }

// run answers one CNI command on out and gives the exit code.
func run(command string, in io.Reader, out, errOut io.Writer) int {
	version := requestedVersion(in, command)
	switch command {
	case "VERSION":
		return answer(out, 0, map[string]any{"cniVersion": version, "supportedVersions": versions})
	case "":
		fmt.Fprintln(errOut, "pilotfish-cni is a CNI plugin: a container runtime runs it with CNI_COMMAND set. "+
			"It is not done yet, and answers every command but VERSION with an error.")
		return 1
	}
	return answer(out, 1, map[string]any{
		"cniVersion": version,
		"code":       notDone,
		"msg":        "pilotfish-cni is not done yet",
		"details":    fmt.Sprintf("%s did nothing; take pilotfish-cni out of the node's CNI configuration", command),
	})
}

// requestedVersion is the version that the runtime speaks, in which it has to be answered.
func requestedVersion(in io.Reader, command string) string {
	latest := versions[len(versions)-1]
	if command == "" {
		return latest
	}
	var config struct {
		Version string `json:"cniVersion"`
	}
	if json.NewDecoder(io.LimitReader(in, 1<<20)).Decode(&config) != nil || config.Version == "" {
		return latest
	}
	return config.Version
}

func answer(out io.Writer, code int, message map[string]any) int {
	if err := json.NewEncoder(out).Encode(message); err != nil {
		return 1
	}
	return code
}
