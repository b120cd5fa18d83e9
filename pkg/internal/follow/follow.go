// Package follow reads a file of settings again when it changes, while the server runs: for
// packages authz and signin. A change takes effect as a whole. A wrong file is logged, and the
// settings of before stay in effect.
package follow

import (
	"bytes"
	"context"
	"os"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
)

// lookEvery is how often Run looks whether the file has changed.
const lookEvery = 10 * time.Second

// File is a file with settings. Its methods are called one at a time.
type File struct {
	name string
	// content is what is in effect.
	content []byte
}

// Open reads a file, of which nothing is in effect yet.
func Open(name string) (*File, []byte, error) {
	content, err := os.ReadFile(name)
	if err != nil {
		return nil, nil, err
	}
	return &File{name: name, content: content}, content, nil
}

// Name is the name of the file.
func (f *File) Name() string { return f.name }

// Look calls use with the content of the file, if that is not in effect. Afterwards it is, unless
// use returns an error.
func (f *File) Look(ctx context.Context, use func(context.Context, []byte) error) (changed bool,
	err error) {
	content, err := os.ReadFile(f.name)
	if err != nil || bytes.Equal(content, f.content) {
		return false, err
	}
	if err := use(ctx, content); err != nil {
		return false, err
	}
	f.content = content
	return true, nil
}

// Run looks again and again until the context ends. An error is logged. what names the settings in
// the log.
func (f *File) Run(ctx context.Context, what string, use func(context.Context, []byte) error) {
	log := klog.FromContext(ctx)
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		changed, err := f.Look(ctx, use)
		switch {
		case ctx.Err() != nil:
		case err != nil:
			log.Error(err, "The "+what+" before the change stays in effect")
		case changed:
			log.V(1).Info("Using a changed "+what, "file", f.name)
		}
	}, lookEvery)
}
