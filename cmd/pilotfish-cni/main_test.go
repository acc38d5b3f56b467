package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

func TestEveryCommandButVersionAnswersThatItIsNotDone(t *testing.T) {
	for _, command := range []string{"ADD", "DEL", "CHECK", "GC", "STATUS"} {
		var out, errOut bytes.Buffer
		code := run(command, strings.NewReader(`{"cniVersion":"1.0.0","name":"n","type":"pilotfish-cni"}`), &out, &errOut)
		var answer struct {
			CNIVersion, Msg, Details string
			Code                     int
		}
		if err := json.Unmarshal(out.Bytes(), &answer); err != nil {
			t.Fatalf("%s: %v: %s", command, err, out.String())
		}
		if code != 1 || answer.CNIVersion != "1.0.0" || answer.Code < 100 || !strings.Contains(answer.Msg, "not done yet") {
			t.Errorf("%s: exit code %d, answer %+v", command, code, answer)
		}
	}
}

func TestVersionAnswersTheSupportedVersions(t *testing.T) {
	var out, errOut bytes.Buffer
	if code := run("VERSION", strings.NewReader(""), &out, &errOut); code != 0 {
		t.Errorf("exit code %d", code)
	}
	var answer struct{ SupportedVersions []string }
	if err := json.Unmarshal(out.Bytes(), &answer); err != nil || len(answer.SupportedVersions) == 0 {
		t.Errorf("%v: %s", err, out.String())
	}
}

func TestRunByHandSaysWhatItIs(t *testing.T) {
	var out, errOut bytes.Buffer
	if code := run("", strings.NewReader(""), &out, &errOut); code != 1 || !strings.Contains(errOut.String(), "not done yet") {
		t.Errorf("exit code %d: %s", code, errOut.String())
	}
}
