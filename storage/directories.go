package storage

import (
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// directories are the directories that stores of this database use, each with the codec that writes
// there. Stores that share a directory, such as one for each served version, have the same codec.
// With two codecs, they would write over one another's objects in forms that the other may not
// know.
type directories struct {
	mu  sync.Mutex
	use map[contract.Key]*directoryUse
}

type directoryUse struct {
	codec  runtime.Identifier
	stores int
}

// take adds a store, and returns what gives it back.
func (d *directories) take(directory contract.Key, codec runtime.Identifier) (release func(),
	err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	use := d.use[directory]
	switch {
	case use == nil:
		if d.use == nil {
			d.use = map[contract.Key]*directoryUse{}
		}
		use = &directoryUse{codec: codec}
		d.use[directory] = use
	case use.codec != codec:
		return nil, fmt.Errorf("the objects below %s are stored with another codec already: give "+
			"each server a Prefix of its own, or the stores the same codec", directory)
	}
	use.stores++
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if use.stores--; use.stores == 0 {
			delete(d.use, directory)
		}
	}, nil
}
