package exposition

import (
	"bytes"
	"strings"
	"testing"
)

// unpackText copies a text as the agent copies Envoy's statistics.
func unpackText(t *testing.T, text string) (string, CopyResult) {
	t.Helper()
	var b bytes.Buffer
	m := NewMerger(&b, Text)
	r, err := m.Copy(strings.NewReader(text), Source{Unpack: true, Once: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String(), r
}

func TestPackedLabelsAreReplaced(t *testing.T) {
	const peer = "pilotfish_peer__source_workload__source_workload_namespace__source_canonical_revision"
	for name, c := range map[string]struct{ packed, want string }{
		"values":                   {`pilotfish__a__b="1;2"`, `a="1",b="2"`},
		"one value":                {`pilotfish__a="1;2"`, `a="1;2"`},
		"last value":               {`pilotfish__a__b="1;2;3"`, `a="1",b="2;3"`},
		"escaped value":            {`pilotfish__a__b="1\"\\;2\n"`, `a="1\"\\",b="2\n"`},
		"empty values":             {`pilotfish__a__b=";"`, `a="",b=""`},
		"too few values":           {`pilotfish__a__b="1"`, `a="1",b="unknown"`},
		"with other labels":        {`x="0",pilotfish__a__b="1;2",le="5"`, `x="0",a="1",b="2",le="5"`},
		"two packed labels":        {`pilotfish__a__b="1;2",pilotfish__c="3"`, `a="1",b="2",c="3"`},
		"HTTP request":             {`pilotfish__request_protocol__grpc_response_status__z=";;1"`, `request_protocol="http",grpc_response_status="",z="1"`},
		"gRPC request":             {`pilotfish__request_protocol__grpc_response_status__z=";14;1"`, `request_protocol="grpc",grpc_response_status="14",z="1"`},
		"declared protocol":        {`pilotfish__request_protocol__grpc_response_status="tcp;14"`, `request_protocol="tcp",grpc_response_status="14"`},
		"constant":                 {`pilotfish__a__0x_2dy_5f_22__b="1"`, `a="x-y_\"",b="1"`},
		"only constants":           {`pilotfish__a__01__b__0="unused"`, `a="1",b=""`},
		"constant protocol":        {`pilotfish__request_protocol__0__grpc_response_status="5"`, `request_protocol="grpc",grpc_response_status="5"`},
		"several in a value":       {`pilotfish__a__1b__1c__d="1,2,3;4"`, `a="1",b="2",c="3",d="4"`},
		"missing value of several": {`pilotfish__a__1b_canonical_revision__c=";4"`, `a="unknown",b_canonical_revision="latest",c="4"`},
		"missing principal":        {`pilotfish__source_principal__b=";4"`, `source_principal="unknown",b="4"`},
		"peer":                     {peer + `="w-1;n.2/3;r_4"`, `source_workload="w-1",source_workload_namespace="n.2/3",source_canonical_revision="r_4"`},
		"unknown peer":             {peer + `=""`, `source_workload="unknown",source_workload_namespace="unknown",source_canonical_revision="latest"`},
		"peer that is unknown":     {peer + `="unknown;unknown;latest"`, `source_workload="invalid:unknown%3Bunknown%3Blatest",source_workload_namespace="unknown",source_canonical_revision="latest"`},
		"peer with more":           {peer + `="a;b;c;d"`, `source_workload="invalid:a%3Bb%3Bc%3Bd",source_workload_namespace="unknown",source_canonical_revision="latest"`},
		"peer with less":           {peer + `="a"`, `source_workload="invalid:a",source_workload_namespace="unknown",source_canonical_revision="latest"`},
		"peer without UTF-8":       {peer + "=\"\xff;b;c\"", `source_workload="invalid:%FF%3Bb%3Bc",source_workload_namespace="unknown",source_canonical_revision="latest"`},
		"peer with an escape":      {peer + `="\";b;c"`, `source_workload="invalid:%5C%22%3Bb%3Bc",source_workload_namespace="unknown",source_canonical_revision="latest"`},
	} {
		t.Run(name, func(t *testing.T) {
			got, r := unpackText(t, "# TYPE m counter\nm{"+c.packed+"} 7\n")
			if want := "# TYPE m counter\nm{" + c.want + "} 7\n"; got != want || r.Invalid != 0 {
				t.Errorf("got %s want %s %+v", got, want, r)
			}
		})
	}
}

func TestLabelsThatAreNotPackedAreUnchanged(t *testing.T) {
	const text = "# TYPE m counter\nm 1\nm{pilotfish=\"a;b\",pilotfish_x__y=\"c;d\"} 7\nm{a=\"b\"} 2\nm{a=\"b\",c=\"d\"} 2\n"
	if got, r := unpackText(t, text); got != text || r.Invalid != 0 {
		t.Errorf("%s %+v", got, r)
	}
}

// TestInvalidUnpackedLabelsAreDropped: the exposition would be invalid with them.
func TestInvalidUnpackedLabelsAreDropped(t *testing.T) {
	for _, line := range []string{`m{a="0",pilotfish__a__b="1;2"} 7`, `m{pilotfish__a__a="1;2"} 7`, `m{pilotfish__="1"} 7`, "m{pilotfish__a=\"\xff\"} 7", "m{a=\"\xff\"} 7"} {
		if got, r := unpackText(t, line+"\nm 1\n"); strings.Contains(got, "7") || r.Invalid != 1 {
			t.Errorf("%s: %s %+v", line, got, r)
		}
	}
}

// TestAdjacentPackedLabelsAreDistinguished: the results of the previous line are reused only for the same label.
func TestAdjacentPackedLabelsAreDistinguished(t *testing.T) {
	got, _ := unpackText(t, "# TYPE m histogram\n"+
		`m_bucket{pilotfish__a="1",pilotfish__b="2",le="1"} 1`+"\n"+`m_bucket{pilotfish__a="1",pilotfish__b="2",le="+Inf"} 1`+"\n"+
		`m_bucket{pilotfish__a="1",pilotfish__b="3",le="1"} 1`+"\n"+`m_bucket{pilotfish__b="2",pilotfish__a="1",le="1"} 1`+"\n")
	for _, want := range []string{`{a="1",b="2",le="1"}`, `{a="1",b="2",le="+Inf"}`, `{a="1",b="3",le="1"}`, `{b="2",a="1",le="1"}`} {
		if !strings.Contains(got, want) {
			t.Errorf("%s is missing:\n%s", want, got)
		}
	}
}

func TestConstantsAreDecodedAsTheyWere(t *testing.T) {
	for _, value := range []string{"", "a", "_", "__", "a_b__c", "-a.b-", "server.default.svc.cluster.local", "100%", "a;b,c", "ü"} {
		if got := decodeConstant(EncodeConstant(value)); got != value {
			t.Errorf("%q becomes %q", value, got)
		}
		if encoded := EncodeConstant(value); strings.Contains("x"+encoded+"x", PackedNameSeparator) {
			t.Errorf("%q contains the separator", encoded)
		}
	}
}
