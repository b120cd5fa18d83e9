package storage

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/database"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// sampled is how many objects of a directory CheckEncryption reads. mostNamespaces is in how many
// directories it looks below a first part of keys without a dot: that is a group or a resource of
// the core group, which may have any number of namespaces.
// mostTries is how many objects of a key are tried: upstream logs each that cannot be decrypted.
const (
	sampled        = 10
	mostTries      = 3
	mostNamespaces = 20
)

// CheckEncryption returns an error if objects below a prefix (default [DefaultPrefix]) are
// encrypted by keys that the transformers lack, nil for no encryption. A server would serve none of
// these objects. It looks at the first ten objects of each resource, in up to twenty namespaces if
// the group has no dot in its name. One damaged object is not the keys' fault: it takes the first
// three of a directory that have one key, or all if there are fewer, and none in another directory
// of the resource that the key decrypts. What a key service encrypted is taken for readable if the
// resource is encrypted at all, since the service may be away for a moment.
//
// Keys are prefix/group/resource/…, or prefix/resource/… for the core group. If the database does
// not answer, no more is checked.
func (s *Store) CheckEncryption(ctx context.Context, prefix string,
	transformers value.ResourceTransformers) error {
	if prefix == "" {
		prefix = DefaultPrefix
	}
	check := &keyCheck{opened: map[opening]bool{}}
	check.transformer = func(r schema.GroupResource) value.Transformer {
		if transformers == nil {
			return identity.NewEncryptCheckTransformer()
		}
		return transformers.TransformerForResource(r)
	}
	for _, history := range database.Engines(s.db) {
		root := database.Root(prefix)
		looked := map[string]int{}
		for next := root; ; {
			page, err := history.Range(ctx, mvcc.RangeOptions{Start: next,
				End: contract.PrefixEnd(root), Limit: sampled})
			if err != nil {
				s.log.Warn("cannot look whether all stored objects can be decrypted", "err", err)
				return check.missing(nil)
			}
			if len(page.KVs) == 0 {
				break
			}
			directory, resources := directoryOf(root, page.KVs[0].Key)
			if err := check.missing(resources); err != nil {
				return err
			}
			check.look(ctx, directory, page.KVs, resources)
			next = contract.PrefixEnd(directory)
			first, _, _ := strings.Cut(string(directory[len(root):]), "/")
			if looked[first]++; !strings.Contains(first, ".") && looked[first] >= mostNamespaces {
				next = contract.PrefixEnd(root + contract.Key(first) + "/")
			}
		}
	}
	return check.missing(nil)
}

// directoryOf is where the objects beside a key are, and the resources that they may be of: what is
// a group by its place may be a resource of the core group, and a resource a namespace. Groups of
// definitions have a dot in their names, and resources have none.
func directoryOf(root, key contract.Key) (directory contract.Key, resources []schema.GroupResource) {
	parts := strings.SplitN(string(key[len(root):]), "/", 3)
	core := schema.GroupResource{Resource: parts[0]}
	if len(parts) < 3 {
		return root + contract.Key(parts[0]) + "/", []schema.GroupResource{core}
	}
	directory = root + contract.Key(parts[0]+"/"+parts[1]+"/")
	resources = []schema.GroupResource{{Group: parts[0], Resource: parts[1]}}
	if !strings.Contains(parts[0], ".") {
		resources = append(resources, core)
	}
	return directory, resources
}

// sealing is how an object is encrypted, and opening a resource of which one was decrypted.
type (
	sealing struct{ provider, key string }
	opening struct {
		sealing
		resource schema.GroupResource
	}
)

// keyCheck tells which key is missing for stored objects, if one is.
type keyCheck struct {
	transformer func(schema.GroupResource) value.Transformer
	opened      map[opening]bool
	failed      []undecryptable
}

// undecryptable is that objects of a directory could not be decrypted, which may be of any of the
// resources.
type undecryptable struct {
	sealing
	directory contract.Key
	resources []schema.GroupResource
	err       error
}

// look tries to decrypt objects of a directory.
func (c *keyCheck) look(ctx context.Context, directory contract.Key, kvs []mvcc.KeyValue,
	resources []schema.GroupResource) {
	failed, tries := map[sealing]error{}, map[sealing]int{}
	var order []sealing
	for _, kv := range kvs {
		provider, key, encrypted := sealedBy(kv.Value)
		if !encrypted || !strings.HasPrefix(string(kv.Key), string(directory)) {
			continue
		}
		by := sealing{provider, key}
		if tries[by]++; tries[by] > mostTries {
			continue
		}
		for _, r := range resources {
			t := c.transformer(r)
			if provider == "kms" && t != identity.NewEncryptCheckTransformer() {
				c.opened[opening{by, r}] = true
				break
			}
			_, _, err := t.TransformFromStorage(ctx, kv.Value, keyContext(kv.Key))
			if err == nil {
				c.opened[opening{by, r}] = true
				break
			}
			if failed[by] == nil {
				order = append(order, by)
			}
			// Of two readings of a key, the one whose resource is encrypted says what is wrong.
			if failed[by] == nil || t != identity.NewEncryptCheckTransformer() {
				failed[by] = err
			}
		}
	}
	for _, by := range order {
		c.failed = append(c.failed, undecryptable{by, directory, resources, failed[by]})
	}
}

// missing says for which objects there is no key. An object that may belong to one of the resources
// that are looked at next is left for later: another directory may have one that the key decrypts.
func (c *keyCheck) missing(next []schema.GroupResource) error {
	for _, f := range c.failed {
		if !slices.ContainsFunc(f.resources, func(r schema.GroupResource) bool {
			return c.opened[opening{f.sealing, r}] || slices.Contains(next, r)
		}) {
			return fmt.Errorf("the objects below %s are encrypted by %s with the key %q: %w",
				strings.TrimSuffix(string(f.directory), "/"), f.provider, f.key, f.err)
		}
	}
	return nil
}

// sealedBy tells how a stored value is encrypted: upstream's transformers begin it with
// k8s:enc:PROVIDER:VERSION:KEY:.
func sealedBy(stored []byte) (provider, key string, encrypted bool) {
	rest, encrypted := bytes.CutPrefix(stored, []byte("k8s:enc:"))
	if !encrypted {
		return "", "", false
	}
	parts := strings.SplitN(string(rest[:min(len(rest), 400)]), ":", 4)
	if len(parts) < 4 {
		return "an unknown provider", "", true
	}
	return parts[0], parts[2], true
}
