package main

import (
	"archive/tar"
	"errors"
	"io"
	"io/fs"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// build makes images of two programs that contain the names of their architectures, and returns the
// directory.
func build(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	var programs []string
	for _, arch := range []string{"amd64", "arm64"} {
		program := filepath.Join(dir, "linux-"+arch, "rowkeeper")
		if err := errors.Join(os.Mkdir(filepath.Dir(program), 0o755),
			os.WriteFile(program, []byte(arch), 0o755)); err != nil {
			t.Fatal(err)
		}
		programs = append(programs, program)
	}
	if err := run(dir, "ghcr.io/rowkeeper/rowkeeper", "v1.2.3+4", "abc", "2026-01-02T03:04:05Z",
		programs); err != nil {
		t.Fatal(err)
	}
	return dir
}

// index is what the layout in a directory has under the tag.
func index(t *testing.T, dir string) v1.ImageIndex {
	t.Helper()
	root, err := layout.ImageIndexFromPath(filepath.Join(dir, "oci"))
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := root.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if n := len(manifest.Manifests); n != 1 ||
		manifest.Manifests[0].Annotations["org.opencontainers.image.ref.name"] != "v1.2.3-4" {
		t.Fatalf("the layout has %+v, want one image with the tag v1.2.3-4", manifest.Manifests)
	}
	index, err := root.ImageIndex(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	return index
}

// TestRegistry pushes the images, and pulls that of each platform.
func TestRegistry(t *testing.T) {
	dir := build(t)
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	tag, err := name.NewTag(strings.TrimPrefix(server.URL, "http://") + "/rowkeeper:v1.2.3-4")
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.WriteIndex(tag, index(t, dir)); err != nil {
		t.Fatal(err)
	}
	pushed, err := remote.Head(tag)
	if err != nil {
		t.Fatal(err)
	}
	if digest, err := os.ReadFile(filepath.Join(dir, "digest")); err != nil ||
		string(digest) != pushed.Digest.String()+"\n" {
		t.Errorf("the digest is said to be %s, %v, and is %s", digest, err, pushed.Digest)
	}
	for _, arch := range []string{"amd64", "arm64"} {
		pulled, err := remote.Image(tag,
			remote.WithPlatform(v1.Platform{OS: "linux", Architecture: arch}))
		if err != nil {
			t.Fatalf("%s: %v", arch, err)
		}
		check(t, pulled, arch)
		// A Docker engine loads the same from a file.
		loaded, err := tarball.ImageFromPath(filepath.Join(dir, "rowkeeper-linux-"+arch+".tar"),
			nil)
		if err != nil {
			t.Fatalf("%s: %v", arch, err)
		}
		check(t, loaded, arch)
	}
}

// check looks what is in an image.
func check(t *testing.T, image v1.Image, arch string) {
	t.Helper()
	file, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if file.OS != "linux" || file.Architecture != arch || file.Config.User != "65532:65532" ||
		len(file.Config.Entrypoint) != 1 || file.Config.Entrypoint[0] != "/rowkeeper" {
		t.Errorf("the image for %s is %+v", arch, file)
	}
	for label, want := range map[string]string{"version": "v1.2.3+4", "revision": "abc",
		"created": "2026-01-02T03:04:05Z", "licenses": "Apache-2.0"} {
		if got := file.Config.Labels["org.opencontainers.image."+label]; got != want {
			t.Errorf("the image for %s has the %s %q, want %q", arch, label, got, want)
		}
	}
	layers, err := image.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("the image for %s has %d layers, %v, want one", arch, len(layers), err)
	}
	content, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	type entry struct {
		mode     fs.FileMode
		uid      int
		contents string
	}
	got := map[string]entry{}
	for r := tar.NewReader(content); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		got[header.Name] = entry{header.FileInfo().Mode().Perm(), header.Uid, string(text)}
	}
	want := map[string]entry{
		"rowkeeper": {0o755, 0, arch}, "tmp/": {0o777, 0, ""}, "var/": {0o755, 0, ""},
		"var/lib/": {0o755, 0, ""}, "var/lib/rowkeeper/": {0o700, user, ""},
	}
	for name, e := range want {
		if got[name] != e {
			t.Errorf("the image for %s has %s as %+v, want %+v", arch, name, got[name], e)
		}
	}
	if len(got) != len(want) {
		t.Errorf("the image for %s has %d files, want %d: %v", arch, len(got), len(want), got)
	}
}

// TestSameImage makes the images twice from the same programs.
func TestSameImage(t *testing.T) {
	first, err := index(t, build(t)).Digest()
	if err != nil {
		t.Fatal(err)
	}
	second, err := index(t, build(t)).Digest()
	if err != nil {
		t.Fatal(err)
	}
	if first != second {
		t.Errorf("the same programs make the images %s and %s", first, second)
	}
}

func TestRefuses(t *testing.T) {
	dir := t.TempDir()
	for _, test := range []struct {
		created  string
		programs []string
		want     string
	}{
		{"", nil, "no program was named"},
		{"yesterday", []string{"linux-amd64/rowkeeper"}, "-created: "},
		{"", []string{"/a/b/linux-riscv64/rowkeeper"}, "no such file or directory"},
		{"", []string{"/linux/rowkeeper"}, "the directory does not name a platform"},
	} {
		if err := run(dir, "ghcr.io/rowkeeper/rowkeeper", "devel", "", test.created,
			test.programs); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("created %q, programs %q: %v, want an error with %q", test.created,
				test.programs, err, test.want)
		}
	}
}
