package envoy

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

func TestSearchOrderIsFlagEnvironmentProxyConfigCachePath(t *testing.T) {
	dir := t.TempDir()
	all := FindOptions{
		Path:           fakeEnvoy(t, dir, "flag/envoy", "1.41.0"),
		EnvPath:        fakeEnvoy(t, dir, "env/envoy", "1.42.0"),
		ConfiguredPath: fakeEnvoy(t, dir, "configured/envoy", "1.43.0"),
		CacheDir:       filepath.Join(dir, "cache"),
		PathEnv:        filepath.Join(dir, "empty") + ":" + filepath.Join(dir, "path"),
	}
	fakeEnvoy(t, dir, "cache/1.9.0/envoy", "1.9.0")
	fakeEnvoy(t, dir, "cache/1.38.0/envoy", "1.38.0")
	newest := fakeEnvoy(t, dir, "cache/1.40.1/envoy", "1.40.1")
	onPath := fakeEnvoy(t, dir, "path/envoy", "1.39.0")
	for _, c := range []struct {
		drop   func(*FindOptions)
		path   string
		source Source
		want   Version
	}{
		{func(*FindOptions) {}, all.Path, FromFlag, Version{Major: 1, Minor: 41}},
		{func(o *FindOptions) { o.Path = "" }, all.EnvPath, FromEnvironment, Version{Major: 1, Minor: 42}},
		{func(o *FindOptions) { o.EnvPath = "" }, all.ConfiguredPath, FromProxyConfig, Version{Major: 1, Minor: 43}},
		{func(o *FindOptions) { o.ConfiguredPath = "" }, newest, FromCache, Version{Major: 1, Minor: 40, Patch: 1}},
		{func(o *FindOptions) { o.CacheDir = "" }, onPath, FromPath, Version{Major: 1, Minor: 39}},
	} {
		c.drop(&all)
		got, err := Find(context.Background(), all)
		if err != nil || got != (Binary{Path: c.path, Version: c.want, Source: c.source}) {
			t.Errorf("Find = %+v, %v; want %s from %s", got, err, c.path, c.source)
		}
	}
}

func TestRealEnvoyVersionsAreFound(t *testing.T) {
	for _, v := range []string{testenv.EnvoyVersion, testenv.OldEnvoyVersion} {
		got, err := Find(context.Background(), FindOptions{Path: testenv.EnvoyOf(t, v)})
		if err != nil || got.Version.String() != v {
			t.Errorf("Find = %+v, %v; want version %s", got, err, v)
		}
	}
}

func TestUnsuitableConfiguredEnvoyEndsTheSearch(t *testing.T) {
	dir := t.TempDir()
	fit := filepath.Dir(fakeEnvoy(t, dir, "path/envoy", "1.40.0"))
	folder, plain := filepath.Join(dir, "folder"), filepath.Join(dir, "plain")
	if err := errors.Join(os.Mkdir(folder, 0o755), os.WriteFile(plain, nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, path string
		as         any
		output     []string
	}{
		{"missing", filepath.Join(dir, "none"), new(*NotFoundError), []string{"no such file"}},
		{"folder", folder, new(*NotFoundError), []string{"is a directory"}},
		{"not executable", plain, new(*NotFoundError), []string{"is not executable"}},
		{"too old", fakeEnvoy(t, dir, "old", "1.35.9"), new(*TooOldError), []string{"1.35.9", "1.36.0"}},
		{"another program", script(t, dir, "other", "echo Laravel Envoy 2.10"), new(*NotEnvoyError), []string{"Laravel Envoy 2.10"}},
		{"fails", script(t, dir, "fails", "echo no libc >&2; exit 127"), new(*NotEnvoyError), []string{"exit status 127", "no libc"}},
		{"endless", script(t, dir, "endless", "sleep 600"), new(*NotEnvoyError), []string{"within 100ms"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Find(context.Background(), FindOptions{EnvPath: c.path, PathEnv: fit, Timeout: 100 * time.Millisecond})
			if c.name != "endless" {
				_, err = Find(context.Background(), FindOptions{EnvPath: c.path, PathEnv: fit})
			}
			if err == nil || !errors.As(err, c.as) {
				t.Fatalf("Find = %v, want a %T", err, c.as)
			}
			for _, want := range append(c.output, c.path, "ENVOY_PATH", "make envoy") {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not contain %q", err, want)
				}
			}
		})
	}
}

func TestSearchSkipsAndReportsUnsuitableEnvoys(t *testing.T) {
	dir := t.TempDir()
	script(t, dir, "a/envoy", "echo I am a task runner")
	o := FindOptions{CacheDir: filepath.Join(dir, "cache"), PathEnv: filepath.Join(dir, "a") + "::" + filepath.Join(dir, "b")}
	_, err := Find(context.Background(), o)
	var missing *NotFoundError
	if !errors.As(err, &missing) {
		t.Fatalf("Find = %v, want a NotFoundError", err)
	}
	for _, want := range []string{o.CacheDir, "in PATH", "is not that of Envoy", "make envoy"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not contain %q", err, want)
		}
	}
	fakeEnvoy(t, dir, "cache/1.30.0/envoy", "1.30.0")
	var old *TooOldError
	if _, err = Find(context.Background(), o); !errors.As(err, &old) {
		t.Errorf("with only an old Envoy, Find = %v, want a TooOldError", err)
	}
	fakeEnvoy(t, dir, "b/envoy", "1.41.0-dev")
	if b, err := Find(context.Background(), o); err != nil || b.Version.Pre != "dev" {
		t.Errorf("with a suitable Envoy last, Find = %+v, %v", b, err)
	}
}

func TestVersionIsQueriedAgainOnlyAfterChange(t *testing.T) {
	dir := t.TempDir()
	cache, log := filepath.Join(dir, "cache"), filepath.Join(dir, "log")
	body := func(v string) string {
		return "echo x >>" + log + `; echo "envoy  version: 0/` + v + `/Clean/RELEASE/BoringSSL"`
	}
	path := script(t, dir, "cache/1.40.0/envoy", body("1.40.0"))
	times := func() int {
		data, _ := os.ReadFile(log)
		return strings.Count(string(data), "x")
	}
	find := func(want string) {
		t.Helper()
		if b, err := Find(context.Background(), FindOptions{CacheDir: cache, Path: path}); err != nil || b.Version.String() != want {
			t.Fatalf("Find = %+v, %v; want %s", b, err, want)
		}
	}
	find("1.40.0")
	find("1.40.0")
	if times() != 1 {
		t.Errorf("queried %d times, want once", times())
	}
	script(t, dir, "cache/1.40.0/envoy", body("1.40.12"))
	find("1.40.12")
	if times() != 2 {
		t.Errorf("queried %d times, want again after the change", times())
	}
	if err := os.WriteFile(filepath.Join(cache, "versions.json"), []byte("{torn"), 0o600); err != nil {
		t.Fatal(err)
	}
	find("1.40.12")
}

func TestSearchEndsWithItsContext(t *testing.T) {
	if _, err := Find(expiredContext(), FindOptions{Path: script(t, t.TempDir(), "slow", "sleep 600")}); !errors.Is(err, context.Canceled) {
		t.Errorf("Find = %v, want context.Canceled", err)
	}
}

func FuzzParseVersionOutput(f *testing.F) {
	f.Add("\n/usr/bin/envoy  version: 9e5580933739775e8bce696a57a2e1bc99368f23/1.40.0/Clean/RELEASE/BoringSSL\n")
	f.Add("envoy  version: 0/1.41.0-dev/Modified/DEBUG/BoringSSL-FIPS")
	f.Add("version: /1.2.3/a/b/")
	f.Fuzz(func(t *testing.T, out string) {
		v, err := parseVersionOutput(out)
		if err != nil {
			return
		}
		if again, err := ParseVersion(v.String()); err != nil || again != v {
			t.Errorf("%q is parsed as %v, whose text is parsed as %v, %v", out, v, again, err)
		}
	})
}

func TestDeferredVersionIsNotQueriedForTheOnlyCandidate(t *testing.T) {
	dir := t.TempDir()
	log, cache := filepath.Join(dir, "log"), filepath.Join(dir, "home", "pilotfish", "envoy")
	if err := os.Mkdir(filepath.Join(dir, "home"), 0o755); err != nil {
		t.Fatal(err)
	}
	body := "echo x >>" + log + `; echo "envoy  version: 0/1.40.0/Clean/RELEASE/BoringSSL"`
	one, other := script(t, dir, "one/envoy", body), script(t, dir, "other/envoy", body)
	find := func(o FindOptions, want Binary) {
		t.Helper()
		o.DeferVersion = true
		if got, err := Find(context.Background(), o); err != nil || got != want {
			t.Errorf("Find = %+v, %v; want %+v", got, err, want)
		}
	}
	find(FindOptions{Path: one}, Binary{Path: one, Source: FromFlag, Unconfirmed: true})
	find(FindOptions{PathEnv: filepath.Dir(one)}, Binary{Path: one, Source: FromPath, Unconfirmed: true})
	for _, text := range []string{"1.38.3\n", "\n/x/envoy  version: 0/1.38.3/Clean/RELEASE/BoringSSL\n"} {
		if err := os.WriteFile(one+".version", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		find(FindOptions{Path: one}, Binary{Path: one, Source: FromFlag, Unconfirmed: true, Version: Version{Major: 1, Minor: 38, Patch: 3}})
	}
	if _, err := os.Stat(log); err == nil {
		t.Error("Find executed the only candidate")
	}
	current := Version{Major: 1, Minor: 40}
	find(FindOptions{PathEnv: filepath.Dir(one) + ":" + filepath.Dir(other)}, Binary{Path: one, Source: FromPath, Version: current})
	// A running Envoy reported its version, which is cached in a new directory.
	confirmed, err := FindOptions{CacheDir: cache}.ConfirmVersion(Binary{Path: other, Source: FromFlag, Unconfirmed: true}, current)
	if err != nil || confirmed.Unconfirmed {
		t.Errorf("ConfirmVersion = %+v, %v", confirmed, err)
	}
	find(FindOptions{Path: other, CacheDir: cache}, confirmed)
	var old *TooOldError
	if _, err := (FindOptions{}).ConfirmVersion(Binary{Path: other}, Version{Major: 1, Minor: 35}); !errors.As(err, &old) {
		t.Errorf("ConfirmVersion of an old version = %v, want a TooOldError", err)
	}
}
