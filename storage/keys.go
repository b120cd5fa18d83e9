package storage

import (
	"fmt"
	"strings"

	apistorage "k8s.io/apiserver/pkg/storage"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/database"
)

// keySpace turns the keys of storage.Interface, such as /pods/default/web, into those of the
// database, such as /registry/pods/default/web. RESTOptions and Encodings choose the prefixes. The
// whole database key is also what the transformer
// authenticates a value with.
type keySpace struct {
	prefix   string // begins and ends in '/'
	resource string // begins with '/'
}

func newKeySpace(prefix, resourcePrefix string) (keySpace, error) {
	if resourcePrefix == "" || resourcePrefix == "/" || resourcePrefix[0] != '/' {
		return keySpace{}, fmt.Errorf("the resource prefix %q is unusable: it has to begin with "+
			"'/' and name a directory, such as /pods", resourcePrefix)
	}
	return keySpace{prefix: string(database.Root(prefix)), resource: resourcePrefix}, nil
}

// object returns the database key of one object.
func (k keySpace) object(key string) (contract.Key, error) { return k.prepare(key, false) }

// directory returns the prefix, ending in '/', that the database keys below a key have.
func (k keySpace) directory(key string) (contract.Key, error) { return k.prepare(key, true) }

// all is the directory of the resource.
func (k keySpace) all() contract.Key {
	key, err := k.directory(k.resource)
	if err != nil {
		panic(err) // newKeySpace has checked it
	}
	return key
}

func (k keySpace) prepare(key string, recursive bool) (contract.Key, error) {
	key, err := apistorage.PrepareKey(k.resource, key, recursive)
	if err != nil {
		return "", err
	}
	return contract.Key(k.prefix + strings.TrimPrefix(key, "/")), nil
}

// named returns the namespace, "" if there is none, and the name that a key of the database has.
func (k keySpace) named(key contract.Key) (namespace, name string) {
	rest := strings.TrimPrefix(string(key), string(k.all()))
	if namespace, name, found := strings.Cut(rest, "/"); found {
		return namespace, name
	}
	return "", rest
}
