package move

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/etcdreader"
)

// etcdStill is how long the revision of an etcd has to stand still before the last pass. The
// components of Kubernetes renew their leases each ten seconds at least.
const etcdStill = 15 * time.Second

type etcd struct {
	client *clientv3.Client
	still  time.Duration
}

// Etcd is an etcd as a source. The client is closed with it. The etcd's revision has to stand still
// for a time before the last pass, 0 for the default.
func Etcd(client *clientv3.Client, still time.Duration) *Source {
	return &Source{&etcd{client, cmp.Or(still, etcdStill)}}
}

func (e *etcd) Close() error { return e.client.Close() }

func (e *etcd) header(ctx context.Context) (*clientv3.GetResponse, error) {
	res, err := e.client.Get(ctx, "\x00", clientv3.WithFromKey(), clientv3.WithCountOnly())
	if err != nil {
		return nil, fmt.Errorf("cannot read the etcd: %w", err)
	}
	return res, nil
}

func (e *etcd) identity(ctx context.Context) (string, error) {
	res, err := e.header(ctx)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("the etcd %016x", res.Header.ClusterId), nil
}

func (e *etcd) fenced(context.Context) (bool, error)  { return false, nil }
func (e *etcd) unfence(context.Context) (bool, error) { return false, nil }

func (e *etcd) count(ctx context.Context) (int64, error) {
	res, err := e.header(ctx)
	if err != nil {
		return 0, err
	}
	return res.Count, nil
}

func (e *etcd) newest(ctx context.Context) (contract.Revision, error) {
	res, err := e.header(ctx)
	if err != nil {
		return 0, err
	}
	return contract.Revision(res.Header.Revision), nil
}

// fence waits until the revision has stood still for a while.
func (e *etcd) fence(ctx context.Context) error {
	before, err := e.newest(ctx)
	if err != nil {
		return err
	}
	if !wait(ctx, e.still) {
		return ctx.Err()
	}
	after, err := e.newest(ctx)
	if err == nil && after != before {
		err = fmt.Errorf("the etcd is still written (revision %d, and %s later %d): stop "+
			"kube-apiserver, and all else that writes to it, and run `rowkeeper move --finish` again",
			before, e.still, after)
	}
	return err
}

func (e *etcd) all(ctx context.Context, c clock,
	each func(*contract.Record) error) (w whole, err error) {
	r := &etcdreader.Reader{Client: e.client, Clock: c}
	defer r.Close()
	if err := r.Read(ctx); errors.Is(err, etcdreader.ErrCompacted) {
		return w, errPassed
	} else if err != nil {
		return w, fmt.Errorf("cannot read the etcd: %w", err)
	}
	if !r.Parts() {
		return w, fmt.Errorf("a transaction of the etcd has left more than %d keys, and a store has "+
			"no room for them at one revision: stop the etcd's clients, and use `rowkeeper etcd "+
			"import`, which gives the keys other revisions", contract.MaxParts+1)
	}
	w.at.Revision, w.leases = contract.Revision(r.At), r.Leases
	return w, r.Records(each)
}

func (e *etcd) follow(ctx context.Context, after position, _ clock,
	each func([]change, position, contract.Revision) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watch := e.client.Watch(clientv3.WithRequireLeader(ctx), "\x00", clientv3.WithFromKey(),
		clientv3.WithRev(int64(after.Revision)+1), clientv3.WithProgressNotify(),
		clientv3.WithCreatedNotify())
	// What comes while a batch is written is the next batch.
	waiting := make(chan clientv3.WatchResponse, batchRecords)
	go func() {
		defer close(waiting)
		for res := range watch {
			select {
			case waiting <- res:
			case <-ctx.Done():
			}
		}
	}()
	for res := range waiting {
		var events []*clientv3.Event
		var newest int64
		for more := true; more; {
			if res.CompactRevision != 0 {
				return errPassed
			}
			if err := res.Err(); err != nil {
				return fmt.Errorf("cannot watch the etcd: %w", err)
			}
			newest = res.Header.Revision
			if events = append(events, res.Events...); res.IsProgressNotify() {
				after.Revision = contract.Revision(newest)
			}
			if more = len(events) < batchRecords; more {
				select {
				case res, more = <-waiting:
				default:
					more = false
				}
			}
		}
		if n := len(events); n > 0 {
			after.Revision = contract.Revision(events[n-1].Kv.ModRevision)
		}
		if err := each(changesOf(events), after, contract.Revision(newest)); err != nil {
			return err
		}
	}
	if ctx.Err() == nil {
		return errors.New("the etcd has ended the watch: run the command again")
	}
	return nil
}

// changesOf makes changes of events, which have all of a revision. The keys of one transaction are
// parts in the order of their names, as those that [etcdreader.Reader] reads.
func changesOf(events []*clientv3.Event) (changes []change) {
	for len(events) > 0 {
		n := 1
		for n < len(events) && events[n].Kv.ModRevision == events[0].Kv.ModRevision {
			n++
		}
		var put []*mvccpb.KeyValue
		for _, e := range events[:n] {
			if e.Type == clientv3.EventTypeDelete {
				changes = append(changes, change{key: contract.Key(e.Kv.Key)})
			} else {
				put = append(put, e.Kv)
			}
		}
		slices.SortFunc(put, func(a, b *mvccpb.KeyValue) int {
			return slices.Compare(a.Key, b.Key)
		})
		for i, kv := range put {
			part := i + 1
			if part == len(put) {
				part = 0
			}
			changes = append(changes, change{contract.Key(kv.Key), etcdreader.RecordOf(kv, part)})
		}
		events = events[n:]
	}
	return changes
}
