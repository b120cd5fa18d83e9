package node

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Image is a container image.
type Image struct {
	// files are what is in it, by their paths in the image.
	files []imageFile
	// root is the directory on this machine where the regular ones are.
	root       string
	entrypoint []string
	workingDir string
	user       int
}

type imageFile struct {
	path string
	dir  bool
}

// LoadImage unpacks an image from a file as "docker save" writes it, which must be on the same file
// system as the pods' directories.
func LoadImage(file, into string) (*Image, error) {
	image := &Image{root: into}
	if err := os.MkdirAll(into, 0o755); err != nil {
		return nil, err
	}
	entries, err := readTar(file)
	if err != nil {
		return nil, err
	}
	var manifests []struct {
		Config string
		Layers []string
	}
	err = json.Unmarshal(entries["manifest.json"], &manifests)
	if err != nil || len(manifests) != 1 {
		return nil, fmt.Errorf("%s has no manifest of one image: %w", file, err)
	}
	var config struct {
		Config struct {
			Entrypoint []string
			WorkingDir string
			User       string
		}
	}
	if err := json.Unmarshal(entries[manifests[0].Config], &config); err != nil {
		return nil, fmt.Errorf("%s has no configuration: %w", file, err)
	}
	image.entrypoint, image.workingDir = config.Config.Entrypoint, config.Config.WorkingDir
	user, _, _ := strings.Cut(config.Config.User, ":")
	if image.user, err = strconv.Atoi(user); err != nil {
		return nil, fmt.Errorf("%s has the user %q, which is not a number: %w", file,
			config.Config.User, err)
	}
	for _, layer := range manifests[0].Layers {
		if err := image.unpack(entries[layer]); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
	}
	return image, nil
}

// readTar reads all files of a tar file.
func readTar(file string) (map[string][]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	entries := map[string][]byte{}
	for r := tar.NewReader(f); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return entries, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		if entries[header.Name], err = io.ReadAll(r); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
	}
}

// unpack takes the files of a layer.
func (i *Image) unpack(layer []byte) error {
	var r io.Reader = strings.NewReader(string(layer))
	if strings.HasPrefix(string(layer), "\x1f\x8b") {
		var err error
		if r, err = gzip.NewReader(r); err != nil {
			return err
		}
	}
	for files := tar.NewReader(r); ; {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		f := imageFile{path: filepath.Clean("/" + header.Name), dir: header.Typeflag == tar.TypeDir}
		i.files = append(i.files, f)
		if f.dir {
			continue
		}
		if header.Typeflag != tar.TypeReg {
			return fmt.Errorf("%s is neither a file nor a directory", header.Name)
		}
		name := filepath.Join(i.root, f.path)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		content, err := io.ReadAll(files)
		if err != nil {
			return err
		}
		if err := os.WriteFile(name, content, header.FileInfo().Mode().Perm()); err != nil {
			return err
		}
	}
}

// install makes the image's files in a container's root directory, as a file system that may only
// be read.
func (i *Image) install(root string) error {
	for _, f := range i.files {
		name := filepath.Join(root, f.path)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		var err error
		if f.dir {
			err = os.MkdirAll(name, 0o555)
		} else {
			err = os.Link(filepath.Join(i.root, f.path), name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
