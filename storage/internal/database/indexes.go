package database

import (
	"context"
	"fmt"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// Indexes reads the declarations of indexes of the store that Config.Store names.
func Indexes(ctx context.Context, c Config) (all []contract.Index, err error) {
	err = c.withBackend(ctx, func(b contract.Backend) error {
		x, st, err := b.Indexes(ctx)
		if err == nil && st.Dropped() {
			return contract.NoStore(c.Store)
		}
		if err == nil {
			all = x.All
		}
		return err
	})
	return all, err
}

// AddIndex declares an index of a resource below a prefix. Whoever serves the resource builds it.
func AddIndex(ctx context.Context, c Config, prefix, resource, name string) error {
	return c.changeIndexes(ctx, prefix, resource, func(x *contract.Indexes, d contract.Directory) error {
		return x.Add(d, name)
	})
}

// DropIndex ends an index, and removes what there is of it, as far as ctx lets it. A server that
// serves the resource removes the rest.
func DropIndex(ctx context.Context, c Config, prefix, resource, name string) error {
	if err := c.changeIndexes(ctx, prefix, resource, func(x *contract.Indexes, d contract.Directory) error {
		if !x.Drop(d.Path, name) {
			return noIndex(resource, name)
		}
		return nil
	}); err != nil {
		return err
	}
	return c.withBackend(ctx, func(b contract.Backend) error {
		for more := true; more; {
			began := time.Now()
			var err error
			if more, _, err = contract.ForgetEntries(ctx, b, forgottenEntries); err != nil {
				return err
			}
			contract.Wait(ctx, 3*time.Since(began)) // others write meanwhile
		}
		return ctx.Err()
	})
}

// forgottenEntries is how many rows of an index are removed at a time.
const forgottenEntries = 1000

// RebuildIndex has an index built anew, in the place of the one that there is.
func RebuildIndex(ctx context.Context, c Config, prefix, resource, name string) error {
	return c.changeIndexes(ctx, prefix, resource, func(x *contract.Indexes, d contract.Directory) error {
		if !x.Drop(d.Path, name) {
			return noIndex(resource, name)
		}
		return x.Add(d, name)
	})
}

func noIndex(resource, name string) error {
	return fmt.Errorf("%s has no index %s: list the indexes to see which there are", resource, name)
}

// changeIndexes changes the declarations of a resource, whose objects are below the prefix.
func (c Config) changeIndexes(ctx context.Context, prefix, resource string,
	f func(*contract.Indexes, contract.Directory) error) error {
	group, plain, err := SplitResource(resource)
	if err != nil {
		return err
	}
	return c.withBackend(ctx, func(b contract.Backend) error {
		return contract.ChangeIndexesOf(ctx, b, Root(prefix), group, plain, f)
	})
}
