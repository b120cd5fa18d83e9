package target

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apistorage "k8s.io/apiserver/pkg/storage"

	"github.com/rowkeeper/rowkeeper/hack/bench/internal/object"
	"github.com/rowkeeper/rowkeeper/storage"
	"github.com/rowkeeper/rowkeeper/storage/drivers"
)

// rowkeeperDialed is a process that has opened a database.
type rowkeeperDialed struct {
	store  *storage.Store
	config storage.Config
	// pool has the stores beside it, nil until there are any.
	pool *storage.StorePool
}

// dialRowkeeper opens a database with the defaults of the library.
func dialRowkeeper(ctx context.Context, address string, o DialOptions) (Client, error) {
	config := storage.Config{
		URL:        address,
		Drivers:    drivers.All(),
		Store:      o.Store,
		Migrate:    true,
		Compaction: storage.CompactionPolicy{Window: o.Window},
	}
	if o.KeepHistory {
		config.Compaction.Window = 1000 * time.Hour // only Client.Compact gives anything up
	}
	store, err := storage.Open(ctx, config)
	if err != nil {
		return nil, err
	}
	return &rowkeeperDialed{store: store, config: config}, nil
}

func (c *rowkeeperDialed) Beside(ctx context.Context, store string) (_ Client, err error) {
	if c.pool == nil {
		if c.pool, err = storage.OpenStores(ctx, c.config); err != nil {
			return nil, err
		}
	}
	db, release, err := c.pool.Use(ctx, store)
	return &pooled{&rowkeeperDialed{store: db, config: c.config}, release}, err
}

// pooled is a store of a pool.
type pooled struct {
	*rowkeeperDialed
	release func()
}

func (c *pooled) Close() error {
	c.release()
	return nil
}

func (c *rowkeeperDialed) Close() error {
	err := c.store.Close()
	if c.pool != nil {
		err = errors.Join(err, c.pool.Close())
	}
	return err
}

// Backup implements Archiver.
func (c *rowkeeperDialed) Backup(ctx context.Context, file string) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	_, err = c.store.WriteBackup(ctx, f, nil)
	return errors.Join(err, f.Sync(), f.Close())
}

// Restore implements Archiver.
func (c *rowkeeperDialed) Restore(ctx context.Context, file string) (err error) {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	config := c.config
	config.Store = "restored"
	if _, err := storage.CreateStore(ctx, config); err != nil {
		return err
	}
	store, err := storage.Open(ctx, config)
	if err != nil {
		return err
	}
	_, _, err = store.RestoreBackup(ctx, f, storage.RestoreOptions{})
	return errors.Join(err, store.Close())
}

func (c *rowkeeperDialed) Store(prefix string) (apistorage.Interface, func(), error) {
	return c.store.Resource(storage.ResourceConfig{
		Codec:          object.Codec(),
		NewFunc:        object.Empty,
		ResourcePrefix: prefix,
		GroupResource:  object.Resource,
		Transformer:    object.Transformer(),
	})
}

func (c *rowkeeperDialed) Compact(ctx context.Context, revision int64) error {
	if err := c.store.Compact(ctx, revision); err != nil {
		return err
	}
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for {
		swept, err := c.gauge("rowkeeper_swept_revision")
		if err != nil {
			return err
		}
		if int64(swept) >= revision {
			return nil
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return fmt.Errorf("the sweep has reached revision %.0f of %d: %w", swept,
				revision, ctx.Err())
		}
	}
}

// gauge reads one of the database's metrics.
func (c *rowkeeperDialed) gauge(name string) (float64, error) {
	registry := prometheus.NewRegistry()
	if err := registry.Register(c.store.Collector()); err != nil {
		return 0, err
	}
	families, err := registry.Gather()
	if err != nil {
		return 0, err
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetGauge().GetValue(), nil
		}
	}
	return 0, fmt.Errorf("there is no metric %s", name)
}
