// Image makes the container image from programs that were built already, one for each platform:
//
//	image -version v1.2.3 -out bin/image bin/image/linux-amd64/rowkeeper bin/image/linux-arm64/rowkeeper
//
// It needs neither a container engine nor a registry, since there is no base image: the image has
// the program, and two directories that it may write to. The names of the programs' directories say
// their platforms. It writes an OCI image layout for all platforms, OUT/oci, which "crane push" and
// "skopeo copy" put into a registry, and for each platform a file for "docker load",
// OUT/rowkeeper-OS-ARCHITECTURE.tar. OUT/digest is what the registry will know the image by. The
// same programs make the same image.
package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

const (
	// user is nobody in particular, and not root.
	user = 65532
	// home is where the program starts, so that it keeps there what it keeps without being told
	// where.
	home = "var/lib/rowkeeper"
)

func main() {
	version := flag.String("version", "devel", "version of the programs, which becomes the "+
		"image's tag")
	revision := flag.String("revision", "", "commit of the programs")
	created := flag.String("created", "", "time of that commit, as in 2006-01-02T15:04:05Z07:00")
	repository := flag.String("repository", "ghcr.io/rowkeeper/rowkeeper",
		"name of the image without the tag")
	out := flag.String("out", "bin/image", "directory to write to")
	flag.Parse()
	if err := run(*out, *repository, *version, *revision, *created, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(out, repository, version, revision, created string, programs []string) error {
	if len(programs) == 0 {
		return errors.New("no program was named")
	}
	at := time.Unix(0, 0)
	if created != "" {
		var err error
		if at, err = time.Parse(time.RFC3339, created); err != nil {
			return fmt.Errorf("-created: %w", err)
		}
	}
	// A plus sign is allowed in versions and not in tags.
	tag, err := name.NewTag(repository + ":" + strings.ReplaceAll(version, "+", "-"))
	if err != nil {
		return err
	}
	labels := map[string]string{
		"org.opencontainers.image.title": "Rowkeeper",
		"org.opencontainers.image.description": "Kubernetes API objects in SQLite, PostgreSQL, " +
			"MySQL and MariaDB",
		"org.opencontainers.image.source":   "https://github.com/rowkeeper/rowkeeper",
		"org.opencontainers.image.licenses": "Apache-2.0",
		"org.opencontainers.image.version":  version,
		"org.opencontainers.image.created":  at.UTC().Format(time.RFC3339),
	}
	if revision != "" {
		labels["org.opencontainers.image.revision"] = revision
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, program := range programs {
		system, architecture, found := strings.Cut(filepath.Base(filepath.Dir(program)), "-")
		if !found {
			return fmt.Errorf("%s: the directory does not name a platform, as linux-amd64 does",
				program)
		}
		platform := v1.Platform{OS: system, Architecture: architecture}
		image, err := newImage(program, platform, labels, at)
		if err != nil {
			return fmt.Errorf("%s: %w", program, err)
		}
		file := filepath.Join(out, fmt.Sprintf("rowkeeper-%s-%s.tar", system, architecture))
		if err := tarball.WriteToFile(file, tag, image); err != nil {
			return err
		}
		digest, err := image.Digest()
		if err != nil {
			return err
		}
		fmt.Printf("%s %s %s %s\n", tag, platform, digest, file)
		index = mutate.AppendManifests(index,
			mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: &platform}})
	}
	dir := filepath.Join(out, "oci")
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	root, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	if err := root.AppendIndex(index, layout.WithAnnotations(map[string]string{
		"org.opencontainers.image.ref.name": tag.TagStr()})); err != nil {
		return err
	}
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(out, "digest"), []byte(digest.String()+"\n"), 0o644)
}

func newImage(program string, platform v1.Platform, labels map[string]string,
	at time.Time) (v1.Image, error) {
	content, err := layer(program, at)
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(content)), nil
	}, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1),
		types.OCIConfigJSON)
	image, err = mutate.Append(image, mutate.Addendum{Layer: layer,
		History: v1.History{Created: v1.Time{Time: at}, CreatedBy: "hack/image"}})
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = platform.OS, platform.Architecture,
		v1.Time{Time: at}
	config.Config = v1.Config{
		User:         fmt.Sprintf("%d:%d", user, user),
		Entrypoint:   []string{"/rowkeeper"},
		Cmd:          []string{"--help"},
		WorkingDir:   "/" + home,
		ExposedPorts: map[string]struct{}{"8443/tcp": {}},
		Labels:       labels,
	}
	return mutate.ConfigFile(image, config)
}

// layer is the one layer, as a tar file.
func layer(program string, at time.Time) ([]byte, error) {
	binary, err := os.ReadFile(program)
	if err != nil {
		return nil, err
	}
	var buffer bytes.Buffer
	w := tar.NewWriter(&buffer)
	for _, header := range []tar.Header{
		{Typeflag: tar.TypeReg, Name: "rowkeeper", Mode: 0o755, Size: int64(len(binary))},
		// SQLite and others put temporary files here.
		{Typeflag: tar.TypeDir, Name: "tmp/", Mode: 0o1777},
		{Typeflag: tar.TypeDir, Name: "var/", Mode: 0o755},
		{Typeflag: tar.TypeDir, Name: "var/lib/", Mode: 0o755},
		// A volume that is mounted here for the first time has this owner.
		{Typeflag: tar.TypeDir, Name: home + "/", Mode: 0o700, Uid: user, Gid: user},
	} {
		header.ModTime, header.Format = at, tar.FormatPAX
		if err := w.WriteHeader(&header); err != nil {
			return nil, err
		}
		if header.Typeflag != tar.TypeReg {
			continue
		}
		if _, err := w.Write(binary); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return buffer.Bytes(), nil
}
