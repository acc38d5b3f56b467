package wasm

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
)

func TestModuleIsUnpackedFromEachFormat(t *testing.T) {
	archive := tarOf("README", "no module", "dir/plugin.wasm", string(tiny), "second.wasm", string(other))
	for name, c := range map[string]struct {
		content []byte
		member  string
	}{
		"plain":                     {tiny, ""},
		"gzip":                      {zipped(tiny), ""},
		"tar":                       {archive, ""},
		"tar in gzip":               {zipped(archive), ""},
		"member of a name":          {zipped(archive), "plugin.wasm"},
		"plain though named":        {tiny, "plugin.wasm"},
		"gzip in tar in gzip? no: ": {zipped(zipped(tiny)), ""},
	} {
		var out bytes.Buffer
		if err := unpack(&out, bytes.NewReader(c.content), c.member, 1<<20); err != nil || !bytes.Equal(out.Bytes(), tiny) {
			t.Errorf("%s: %v, %d bytes", name, err, out.Len())
		}
	}
}

func TestInvalidModuleIsRefusedWithAReason(t *testing.T) {
	bomb := zipped(append(bytes.Clone(moduleMagic), make([]byte, 8<<20)...))
	archive := tarOf("plugin.wasm", string(moduleMagic)+strings.Repeat("x", 2<<20))
	for name, c := range map[string]struct {
		content []byte
		member  string
		says    string
	}{
		"nothing":               {nil, "", "empty"},
		"a page":                {[]byte("<html>sign in</html>"), "", "not a WebAssembly module"},
		"zstd":                  {[]byte("\x28\xb5\x2f\xfd..."), "", "gzip"},
		"half a gzip":           {zipped(tiny)[:20], "", "EOF"},
		"an archive without":    {tarOf("a", "b"), "", "no WebAssembly module"},
		"no member of the name": {tarOf("other.wasm", string(tiny)), "plugin.wasm", "plugin.wasm"},
		"too large unpacked":    {bomb, "", errTooLarge.Error()},
		"too large member":      {archive, "plugin.wasm", errTooLarge.Error()},
		"packed often":          {zipped(zipped(zipped(zipped(zipped(tiny))))), "", "more than three times"},
	} {
		var out bytes.Buffer
		err := unpack(&out, bytes.NewReader(c.content), c.member, 1<<20)
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want a reason with %q", name, err, c.says)
		}
	}
}

// A header may claim any size. Missing content uses no memory and no disk.
func TestClaimedSizeOfArchiveMembersIsNotTrusted(t *testing.T) {
	archive := tarOf("skipped", strings.Repeat("\x00", 3<<20), "plugin.wasm", string(tiny))
	if err := unpack(io.Discard, bytes.NewReader(zipped(archive)), "", 1<<20); !errors.Is(err, errTooLarge) {
		t.Errorf("the size of skipped members must count too: %v", err)
	}
}

func FuzzUnpack(f *testing.F) {
	f.Add(tiny, "")
	f.Add(zipped(tiny), "")
	f.Add(zipped(tarOf("plugin.wasm", string(tiny))), "plugin.wasm")
	f.Add(tarOf("a", "b", "plugin.wasm", string(other)), "plugin.wasm")
	f.Fuzz(func(t *testing.T, content []byte, name string) {
		const max = 64 << 10
		var out bytes.Buffer
		err := unpack(&out, bytes.NewReader(content), name, max)
		if out.Len() > max+1 {
			t.Fatalf("%d bytes were written", out.Len())
		}
		if err == nil && (!bytes.HasPrefix(out.Bytes(), moduleMagic) || out.Len() > max) {
			t.Fatalf("accepted as a module: %q", out.Bytes()[:min(out.Len(), 16)])
		}
	})
}

func FuzzDockerConfig(f *testing.F) {
	f.Add([]byte(`{"auths": {"` + authn.DefaultAuthKey + `": {"auth": "dTpw"}, "r:5000/a": {"username": "u", "password": "p"}}}`))
	f.Fuzz(func(t *testing.T, secret []byte) {
		auths, err := parseDockerConfig(secret)
		if err != nil {
			return
		}
		if got, ok := auths.find("nowhere.example", "x"); !ok && got.Password != "" {
			t.Fatal("returned the credentials of another registry")
		}
	})
}
