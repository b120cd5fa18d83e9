package workload

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/rowkeeper/rowkeeper/hack/bench/internal/target"
)

const (
	// deletedTogether is how many keys one request deletes, endedTogether how many leases lapse at
	// the same time, and grantedTogether how many are granted.
	deletedTogether = 20_000
	endedTogether   = 5_000
	grantedTogether = 2_000
	// together is how long a lease lasts, in seconds: longer than it takes to grant all.
	together = 60
)

func groupLines() []Line {
	return []Line{{Name: "groups", Work: "etcd's API: 20,000 keys of 1 KB deleted by prefix, 5,000 " +
		"leases with a key each that lapse together, 2,000 leases granted by 128 clients",
		Only: speaksEtcd, Run: groups, Measures: []Measure{
			{Key: "deleted", Title: "until the keys are deleted", Unit: "s", Lower: true},
			{Key: "ended", Title: "until the last lease's key is deleted, after its time", Unit: "s",
				Lower: true, Aim: limit(5, 5)},
			{Key: "granted", Title: "until the leases are granted", Unit: "s", Lower: true},
		}}}
}

// speaksEtcd says whether a target has all of etcd's API.
func speaksEtcd(t target.Target) bool {
	return t.Product == "etcd" || t.Product == "rowkeeper-etcd"
}

// groups measures what etcd's API does to many keys and leases at once.
func groups(ctx context.Context, b *Bench) (_ Metrics, err error) {
	c, err := target.EtcdClient(b.Server.Address())
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	m := Metrics{}
	if m["deleted"], err = deleteTogether(ctx, b, c); err != nil {
		return nil, fmt.Errorf("delete keys: %w", err)
	}
	granted, err := b.each(ctx, "granting leases", loaders, b.Size(grantedTogether),
		func(ctx context.Context, _, _ int) error {
			_, err := c.Grant(ctx, 3600)
			return err
		})
	if err != nil {
		return nil, err
	}
	m["granted"] = granted.Elapsed.Seconds()
	if m["ended"], err = endTogether(ctx, b, c); err != nil {
		return nil, fmt.Errorf("let leases lapse: %w", err)
	}
	return m, nil
}

func deleteTogether(ctx context.Context, b *Bench, c *clientv3.Client) (seconds float64, err error) {
	n, value := b.Size(deletedTogether), strings.Repeat("v", 1024)
	if _, err := b.each(ctx, "writing keys", loaders, n, func(ctx context.Context, _, i int) error {
		_, err := c.Put(ctx, fmt.Sprintf("/deleted/%06d", i), value)
		return err
	}); err != nil {
		return 0, err
	}
	began := time.Now()
	r, err := c.Delete(ctx, "/deleted/", clientv3.WithPrefix())
	if err == nil && r.Deleted != int64(n) {
		err = fmt.Errorf("%d keys of %d were deleted", r.Deleted, n)
	}
	return time.Since(began).Seconds(), err
}

// endTogether grants leases, each with a key, renews all of them as fast as it can, and returns how
// long after the time of the last one its watch has seen the last key deleted.
func endTogether(ctx context.Context, b *Bench, c *clientv3.Client) (seconds float64, err error) {
	n := b.Size(endedTogether)
	leases := make([]clientv3.LeaseID, n)
	if _, err := b.each(ctx, "granting leases with keys", loaders, n,
		func(ctx context.Context, _, i int) error {
			r, err := c.Grant(ctx, together)
			if err != nil {
				return err
			}
			leases[i] = r.ID
			_, err = c.Put(ctx, fmt.Sprintf("/leased/%06d", i), "v", clientv3.WithLease(r.ID))
			return err
		}); err != nil {
		return 0, err
	}
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	deletions := c.Watch(watching, "/leased/", clientv3.WithPrefix(), clientv3.WithFilterPut(),
		clientv3.WithCreatedNotify())
	if created := <-deletions; created.Err() != nil {
		return 0, created.Err()
	}
	if _, err := b.each(ctx, "renewing leases", loaders, n,
		func(ctx context.Context, _, i int) error {
			_, err := c.KeepAliveOnce(ctx, leases[i])
			return err
		}); err != nil {
		return 0, err
	}
	over := time.Now().Add(together * time.Second)
	for left := n; left > 0; {
		b.Progress("letting leases lapse: %d of %d are left", left, n)
		w, ok := <-deletions
		if err := w.Err(); err != nil || !ok {
			return 0, errors.Join(err, ctx.Err(), errors.New("the watch has ended"))
		}
		left -= len(w.Events)
	}
	return max(time.Since(over), 0).Seconds(), nil
}
