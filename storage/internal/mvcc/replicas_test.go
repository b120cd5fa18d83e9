package mvcc_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
)

// operation is a read or a write of one key, for the linearizability check.
type operation struct {
	key    contract.Key
	write  bool
	delete bool
	expect contract.Revision
}

// answer is what it was told. revision is what a read saw (0: absent), or what a write that was
// done was given.
type answer struct {
	revision contract.Revision
	done     bool
}

// register is the sequential specification: a key has a revision; a write is done if and only if
// its expectation holds.
var register = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byKey := map[contract.Key][]porcupine.Operation{}
		for _, o := range history {
			k := o.Input.(operation).key
			byKey[k] = append(byKey[k], o)
		}
		var parts [][]porcupine.Operation
		for _, p := range byKey {
			parts = append(parts, p)
		}
		return parts
	},
	Init: func() any { return contract.Revision(0) },
	Step: func(state, input, output any) (bool, any) {
		current, in, out := state.(contract.Revision), input.(operation), output.(answer)
		switch {
		case !in.write:
			return out.revision == current, current
		case !out.done:
			return in.expect != current, current
		case in.delete:
			return in.expect == current, contract.Revision(0)
		default:
			return in.expect == current, out.revision
		}
	},
	DescribeOperation: func(input, output any) string {
		return fmt.Sprintf("%+v -> %+v", input, output)
	},
}

// TestReplicas runs three stores over one database, with writers on each and watchers on each: what
// they read and write is linearizable, the revisions are dense, and every watcher's stream is the
// log.
func TestReplicas(t *testing.T) {
	const replicas, writersEach, writesEach = 3, 8, 60
	everywhere(t, func(t *testing.T, db dbtest.DB) {
		stores := make([]*mvcc.Engine, replicas)
		for i := range stores {
			stores[i] = open(t, db, mvcc.Config{Logger: testLogger(t), CacheBytes: i * 1000})
		}
		start := stores[0].Delivered()
		began := time.Now()
		var mu sync.Mutex
		var history []porcupine.Operation
		written := 0
		record := func(client int, in operation, out answer, call, ret time.Duration) {
			mu.Lock()
			defer mu.Unlock()
			history = append(history, porcupine.Operation{ClientId: client, Input: in, Output: out,
				Call: int64(call), Return: int64(ret)})
			if out.done {
				written++
			}
		}
		var writers sync.WaitGroup
		for i := range replicas * writersEach {
			s := stores[i%replicas]
			rng := rand.New(rand.NewPCG(uint64(i), 7))
			writers.Go(func() {
				for range writesEach {
					key := contract.Key(fmt.Sprintf("/k/%d", rng.IntN(10)))
					call := time.Since(began)
					kv, head, err := s.Get(t.Context(), key)
					ret := time.Since(began)
					if err != nil {
						t.Error(err)
						return
					}
					in := operation{key: key}
					if kv != nil {
						in.expect = kv.Revision
						if kv.Revision > head {
							t.Errorf("%s at %d was read in a snapshot at %d", key,
								kv.Revision, head)
						}
					}
					record(i, in, answer{revision: in.expect}, call, ret)
					in.write, in.delete = true, in.expect != 0 && rng.IntN(4) == 0
					call = time.Since(began)
					r, err := s.Commit(t.Context(), contract.Mutation{Key: key, Expect: in.expect,
						Delete: in.delete, Value: []byte("v")})
					ret = time.Since(began)
					var conflict *contract.ConflictError
					if err != nil && !errors.As(err, &conflict) {
						t.Error(err)
						return
					}
					record(i, in, answer{revision: r, done: err == nil}, call, ret)
				}
			})
		}
		streams := make([][]string, 2*replicas)
		var watchers sync.WaitGroup
		done := make(chan contract.Revision)
		for i := range streams {
			w, err := stores[i%replicas].Watch(t.Context(),
				mvcc.WatchOptions{Prefix: "/k/", After: start})
			if err != nil {
				t.Fatal(err)
			}
			watchers.Go(func() {
				defer w.Close()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				go func() {
					if head, ok := <-done; ok {
						w.RequestProgress(head)
					}
				}()
				for {
					b, err := w.Next(ctx)
					if err != nil {
						t.Errorf("watcher %d: %v", i, err)
						return
					}
					for _, e := range b.Events {
						streams[i] = append(streams[i], eventString(e))
					}
					if b.Requested && len(b.Events)+len(streams[i]) > 0 &&
						b.Progress >= contract.Revision(written)+start {
						return
					}
				}
			})
		}
		writers.Wait()
		head, err := stores[0].Head(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for range streams {
			done <- head
		}
		watchers.Wait()
		if got := int(head - start); got != written {
			t.Errorf("%d writes were acknowledged, the head rose by %d", written, got)
		}
		log := readLog(t, stores[1], start, head)
		for i, stream := range streams {
			if len(stream) != len(log) {
				t.Errorf("watcher %d saw %d events, the log has %d", i, len(stream), len(log))
				continue
			}
			for j := range log {
				if stream[j] != log[j] {
					t.Errorf("watcher %d: event %d is %s, in the log it is %s", i, j,
						stream[j], log[j])
					break
				}
			}
		}
		if result := porcupine.CheckOperationsTimeout(register, history,
			time.Minute); result != porcupine.Ok {
			t.Errorf("the history of %d operations is not linearizable: %s", len(history), result)
		}
	})
}

// readLog reads the events from the database.
func readLog(t *testing.T, s *mvcc.Engine, after, upto contract.Revision) []string {
	t.Helper()
	var log []string
	for after < upto {
		tail, err := mvcc.TailOf(t.Context(), s, after+1, 500)
		if err != nil {
			t.Fatal(err)
		}
		for i := range tail.Rows {
			r := &tail.Rows[i]
			if r.Revision != after+1 {
				t.Fatalf("the log has a gap after %d: %d", after, r.Revision)
			}
			after = r.Revision
			log = append(log, entry{revision: r.Revision, key: r.Key, deleted: r.Deleted,
				value: string(r.Value), prev: r.Prev}.String())
		}
	}
	return log
}
