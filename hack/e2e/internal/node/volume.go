package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// volumes are what a pod's container has mounted.
type volumes struct {
	pod *pod
	// contents are the directories whose files come from the API server.
	contents []*content
	// claims are the directories that are only lent to this pod, by where they lie in it.
	claims map[string]string
}

// content is a directory with files from Secrets, ConfigMaps and tokens.
type content struct {
	dir    string
	source corev1.VolumeSource
	files  map[string]file
	token  time.Time // when the token in it is to be replaced
}

type file struct {
	data []byte
	mode os.FileMode
}

// mount makes the container's root directory, and everything in it but the program.
func (p *pod) mount(ctx context.Context) (*volumes, error) {
	v := &volumes{pod: p, claims: map[string]string{}}
	if err := p.image.install(p.root); err != nil {
		return nil, fmt.Errorf("the image: %w", err)
	}
	if err := os.MkdirAll(filepath.Join(p.root, "etc"), 0o755); err != nil {
		return nil, err
	}
	// Every container has this file from its kubelet.
	if err := os.WriteFile(filepath.Join(p.root, "etc", "hosts"),
		[]byte("127.0.0.1 localhost\n"+p.ip+" "+p.object.Name+"\n"), 0o644); err != nil {
		return nil, err
	}
	sources := map[string]corev1.VolumeSource{}
	for _, volume := range p.object.Spec.Volumes {
		sources[volume.Name] = volume.VolumeSource
	}
	for _, m := range p.object.Spec.Containers[0].VolumeMounts {
		if m.SubPath != "" {
			return nil, fmt.Errorf("%s: subPath is not supported here", m.Name)
		}
		dir := filepath.Join(p.root, m.MountPath)
		if err := v.mountOne(ctx, dir, sources[m.Name]); err != nil {
			return nil, fmt.Errorf("%s: %w", m.Name, err)
		}
	}
	return v, nil
}

func (v *volumes) mountOne(ctx context.Context, dir string, source corev1.VolumeSource) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	switch {
	case source.Secret != nil, source.ConfigMap != nil, source.Projected != nil:
		c := &content{dir: dir, source: source}
		v.contents = append(v.contents, c)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		return v.write(ctx, c)
	case source.EmptyDir != nil:
		if err := os.MkdirAll(dir, 0o770); err != nil {
			return err
		}
		return v.pod.own(dir, 0o770)
	case source.PersistentVolumeClaim != nil:
		claim := v.pod.node.claim(v.pod.object.Namespace, source.PersistentVolumeClaim.ClaimName)
		if err := os.MkdirAll(claim, 0o770); err != nil {
			return err
		}
		if err := v.pod.own(claim, 0o770); err != nil {
			return err
		}
		// It takes the place of the image's directory, if that has one, and is one pod's at a time,
		// as with the access mode ReadWriteOncePod.
		if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		v.claims[dir] = claim
		return os.Rename(claim, dir)
	}
	return errors.New("this kind of volume is not supported here")
}

// unmount gives the claims back.
func (v *volumes) unmount() {
	for dir, claim := range v.claims {
		// Nothing can be done about an error; the next pod finds an empty volume, and its test
		// fails.
		_ = os.Rename(dir, claim)
	}
}

// refresh writes contents that have changed until ctx ends.
func (v *volumes) refresh(ctx context.Context) {
	tick := time.NewTicker(refreshPeriod)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, c := range v.contents {
			// The API server may be away for a while: then the files stay as they are.
			_ = v.write(ctx, c)
		}
	}
}

// write makes the directory hold what the source has now. All files change at once, by one symbolic
// link, as with a kubelet.
func (v *volumes) write(ctx context.Context, c *content) error {
	files, err := v.read(ctx, c)
	if err != nil {
		return err
	}
	same := func(a, b file) bool { return bytes.Equal(a.data, b.data) && a.mode == b.mode }
	if c.files != nil && maps.EqualFunc(files, c.files, same) {
		return nil
	}
	const data = "..data"
	fresh, err := os.MkdirTemp(c.dir, "..")
	if err != nil {
		return err
	}
	if err := os.Chmod(fresh, 0o755); err != nil {
		return err
	}
	for name, f := range files {
		path := filepath.Join(fresh, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, f.data, f.mode); err != nil {
			return err
		}
		if err := v.pod.own(path, f.mode); err != nil {
			return err
		}
	}
	old, _ := os.Readlink(filepath.Join(c.dir, data))
	temp := filepath.Join(c.dir, "..data_tmp")
	if err := os.Symlink(filepath.Base(fresh), temp); err != nil {
		return err
	}
	if err := os.Rename(temp, filepath.Join(c.dir, data)); err != nil {
		return err
	}
	for _, top := range topNames(files) {
		link := filepath.Join(c.dir, top)
		if _, err := os.Lstat(link); err == nil {
			continue
		}
		if err := os.Symlink(filepath.Join(data, top), link); err != nil {
			return err
		}
	}
	c.files = files
	if old != "" {
		return os.RemoveAll(filepath.Join(c.dir, old))
	}
	return nil
}

func topNames(files map[string]file) []string {
	tops := map[string]bool{}
	for name := range files {
		top, _, _ := strings.Cut(name, "/")
		tops[top] = true
	}
	return slices.Sorted(maps.Keys(tops))
}

// own gives a file to root and the pod's group for files, so that the container may read it; in a
// directory it may also write.
func (p *pod) own(path string, mode os.FileMode) error {
	if os.Geteuid() != 0 {
		return os.Chmod(path, mode)
	}
	gid := -1
	if s := p.object.Spec.SecurityContext; s != nil && s.FSGroup != nil {
		gid = int(*s.FSGroup)
		mode |= 0o440
	}
	return errors.Join(os.Chown(path, -1, gid), os.Chmod(path, mode))
}

// read asks the API server for the files of a source.
func (v *volumes) read(ctx context.Context, c *content) (map[string]file, error) {
	files := map[string]file{}
	s := c.source
	switch {
	case s.Secret != nil:
		return files, v.readSecret(ctx, files, s.Secret.SecretName, s.Secret.Items,
			mode(s.Secret.DefaultMode), optional(s.Secret.Optional))
	case s.ConfigMap != nil:
		return files, v.readConfigMap(ctx, files, s.ConfigMap.Name, s.ConfigMap.Items,
			mode(s.ConfigMap.DefaultMode), optional(s.ConfigMap.Optional))
	}
	for _, part := range s.Projected.Sources {
		var err error
		switch {
		case part.Secret != nil:
			err = v.readSecret(ctx, files, part.Secret.Name, part.Secret.Items,
				mode(s.Projected.DefaultMode), optional(part.Secret.Optional))
		case part.ConfigMap != nil:
			err = v.readConfigMap(ctx, files, part.ConfigMap.Name, part.ConfigMap.Items,
				mode(s.Projected.DefaultMode), optional(part.ConfigMap.Optional))
		case part.ServiceAccountToken != nil:
			err = v.readToken(ctx, c, files, part.ServiceAccountToken,
				mode(s.Projected.DefaultMode))
		case part.DownwardAPI != nil:
			for _, item := range part.DownwardAPI.Items {
				var value string
				if value, err = v.pod.field(item.FieldRef.FieldPath); err == nil {
					files[item.Path] = file{[]byte(value), mode(s.Projected.DefaultMode)}
				}
			}
		default:
			err = errors.New("this source of a projected volume is not supported here")
		}
		if err != nil {
			return nil, err
		}
	}
	return files, nil
}

func mode(m *int32) os.FileMode {
	if m == nil {
		return 0o644
	}
	return os.FileMode(*m)
}

func optional(b *bool) bool { return b != nil && *b }

func (v *volumes) readSecret(ctx context.Context, files map[string]file, name string,
	items []corev1.KeyToPath, m os.FileMode, optional bool) error {
	secret, err := v.pod.node.Client.CoreV1().Secrets(v.pod.object.Namespace).Get(ctx, name,
		metav1.GetOptions{})
	if apierrors.IsNotFound(err) && optional {
		return nil
	}
	if err != nil {
		return err
	}
	return choose(files, secret.Data, items, m)
}

func (v *volumes) readConfigMap(ctx context.Context, files map[string]file, name string,
	items []corev1.KeyToPath, m os.FileMode, optional bool) error {
	config, err := v.pod.node.Client.CoreV1().ConfigMaps(v.pod.object.Namespace).Get(ctx, name,
		metav1.GetOptions{})
	if apierrors.IsNotFound(err) && optional {
		return nil
	}
	if err != nil {
		return err
	}
	data := maps.Clone(config.BinaryData)
	if data == nil {
		data = map[string][]byte{}
	}
	for key, value := range config.Data {
		data[key] = []byte(value)
	}
	return choose(files, data, items, m)
}

// choose takes the items of an object's data, or all of it if none are named.
func choose(files map[string]file, data map[string][]byte, items []corev1.KeyToPath,
	m os.FileMode) error {
	if items == nil {
		for key, value := range data {
			files[key] = file{value, m}
		}
	}
	for _, item := range items {
		value, ok := data[item.Key]
		if !ok {
			return fmt.Errorf("there is no key %q", item.Key)
		}
		files[item.Path] = file{value, m}
		if item.Mode != nil {
			files[item.Path] = file{value, os.FileMode(*item.Mode)}
		}
	}
	return nil
}

// readToken asks for a token that is bound to the pod, and keeps it for four fifths of its life.
func (v *volumes) readToken(ctx context.Context, c *content, files map[string]file,
	source *corev1.ServiceAccountTokenProjection, m os.FileMode) error {
	if old, ok := c.files[source.Path]; ok && time.Now().Before(c.token) {
		files[source.Path] = old
		return nil
	}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: source.ExpirationSeconds,
		BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod",
			Name: v.pod.object.Name, UID: v.pod.object.UID},
	}}
	if source.Audience != "" {
		request.Spec.Audiences = []string{source.Audience}
	}
	token,
		err := v.pod.node.Client.CoreV1().ServiceAccounts(v.pod.object.Namespace).CreateToken(ctx,
		v.pod.object.Spec.ServiceAccountName, request, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	now := time.Now()
	c.token = now.Add(token.Status.ExpirationTimestamp.Sub(now) * 4 / 5)
	files[source.Path] = file{[]byte(token.Status.Token), m}
	return nil
}
