package database

import (
	"path"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// DefaultPrefix begins all keys of objects unless another prefix is given.
const DefaultPrefix = "/registry"

// Root is the directory of all objects of a prefix. It begins and ends in '/'.
func Root(prefix string) contract.Key {
	if prefix = path.Join("/", prefix); prefix != "/" {
		prefix += "/"
	}
	return contract.Key(prefix)
}

// Directory is that of the objects of a resource, which is named group/resource.
func Directory(prefix, resource string) contract.Key {
	return Root(prefix) + contract.Key(resource) + "/"
}

// After is the smallest key after the key.
func After(key contract.Key) contract.Key { return key + "\x00" }
