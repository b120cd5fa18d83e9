package contract

import (
	"cmp"
	"context"
	"slices"
	"strings"
)

// Directory says which resource has its objects below a prefix of keys. It is recorded for people
// who read the database by SQL: nothing here decides by it.
type Directory struct {
	// Path is how all keys of the directory begin. It ends in '/'.
	Path Key
	// Group and Resource name the resource. The core group is "".
	Group, Resource string
	// Scope is [Namespaced], [ClusterScoped], or "" if it is not known.
	Scope string
}

// The scopes of resources.
const (
	Namespaced    = "Namespaced"
	ClusterScoped = "Cluster"
)

// Beyond is the smallest key after all keys of the directory: '0' is the successor of '/'.
func (d *Directory) Beyond() Key { return d.Path[:len(d.Path)-1] + "0" }

// directoryBytes is how long a path may be that is recorded, and nameBytes how long the name of a
// group or of a resource. Kubernetes has shorter ones.
const (
	directoryBytes = 512
	nameBytes      = 253
)

// recordable tells whether a directory can be recorded. All databases compare ASCII alike, and show
// each character of it as one.
func (d *Directory) recordable() bool {
	for _, s := range []string{string(d.Path), d.Group, d.Resource} {
		if strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' || r == '\\' }) {
			return false
		}
	}
	return len(d.Path) <= directoryBytes && len(d.Group) <= nameBytes && len(d.Resource) <= nameBytes &&
		len(d.Path) > 1 && strings.HasSuffix(string(d.Path), "/")
}

// unrecorded decides which of the directories that are served have to be written, where others are
// recorded already: those that are not there, or say something else. What is served now is right,
// but for a scope: whoever does not know it takes it away from nobody. A directory within another
// one, or around it, is left out. Each key belongs to one directory at most then, and the one that
// was there first may have objects.
func unrecorded(recorded, served []Directory) (write []Directory) {
	for _, d := range served {
		if !d.recordable() {
			continue
		}
		all := slices.Concat(recorded, write)
		if slices.ContainsFunc(all, func(o Directory) bool {
			return o.Path != d.Path && (strings.HasPrefix(string(o.Path), string(d.Path)) ||
				strings.HasPrefix(string(d.Path), string(o.Path)))
		}) {
			continue
		}
		if i := slices.IndexFunc(all, func(o Directory) bool { return o.Path == d.Path }); i >= 0 {
			o := all[i]
			if o.Group == d.Group && o.Resource == d.Resource {
				d.Scope = cmp.Or(d.Scope, o.Scope)
			}
			if d == o {
				continue
			}
			write = slices.DeleteFunc(write, func(o Directory) bool { return o.Path == d.Path })
		}
		write = append(write, d)
	}
	return write
}

// RecordDirectories records the directories of what a process serves, as far as they are not there
// already, and returns the state before it. In another epoch than that of the process nothing is
// written: the process has to find out first whose history this is.
func RecordDirectories(ctx context.Context, b Backend, epoch Epoch,
	served []Directory) (st State, err error) {
	err = repeatable(ctx, b, LockOptions{}, func(tx Tx) error {
		if st = tx.State(); st.Head.Epoch != epoch {
			return nil
		}
		recorded, err := tx.Directories()
		if err != nil {
			return err
		}
		if write := unrecorded(recorded, served); len(write) > 0 {
			return tx.PutDirectories(write)
		}
		return nil
	})
	return st, err
}

// PrefixEnd is the smallest key after all keys that begin with the directory: '0' is the successor
// of '/'.
func PrefixEnd(directory Key) Key { return directory[:len(directory)-1] + "0" }
