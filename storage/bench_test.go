package storage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	goruntime "runtime"
	"runtime/metrics"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	apistorage "k8s.io/apiserver/pkg/storage"

	"github.com/rowkeeper/rowkeeper/storage/internal/archive"
	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
)

// The benchmarks run on SQLite with its default, full durability, or on the kinds of databases that
// ROWKEEPER_BENCH names (a list with commas). An operation is one call of storage.Interface with an
// object of 1 KB. Besides the time per operation they print operations per second and the latency's
// percentiles in microseconds.

func eachDatabase(b *testing.B, run func(b *testing.B, store *Store)) {
	eachKind(b, func(b *testing.B, d dbtest.DB) { run(b, openDatabase(b, d, mvcc.Config{})) })
}

// eachKind is eachDatabase for a benchmark that opens the database itself.
func eachKind(b *testing.B, run func(b *testing.B, d dbtest.DB)) {
	kinds := []dbtest.Kind{dbtest.SQLite}
	if names := os.Getenv("ROWKEEPER_BENCH"); names != "" {
		kinds = nil
		for _, name := range strings.Split(names, ",") {
			kinds = append(kinds, dbtest.Kind(name))
		}
	}
	dbtest.Each(b, run, kinds...)
}

// large is a pod that is serialized to about 1 KB.
func large(name string) *example.Pod {
	p := pod(name)
	p.Annotations = map[string]string{"example.com/description": strings.Repeat("a sentence or two ", 40)}
	p.Labels = map[string]string{"app.kubernetes.io/name": name,
		"app.kubernetes.io/part-of": "benchmark"}
	p.Spec.NodeName = "node-" + name
	return p
}

// latencies collects how long operations take.
type latencies struct {
	mu  sync.Mutex
	all []time.Duration
}

func (l *latencies) add(some ...time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, some...)
}

func (l *latencies) report(b *testing.B) {
	slices.Sort(l.all)
	for name, at := range map[string]float64{"p50-µs": 0.5, "p99-µs": 0.99} {
		b.ReportMetric(float64(l.all[int(at*float64(len(l.all)-1))].Nanoseconds())/1e3, name)
	}
}

// concurrently spreads b.N operations over clients and reports.
func concurrently(b *testing.B, clients int, operation func(ctx context.Context, client,
	i int) error) {
	b.Helper()
	var (
		next  atomic.Int64
		took  latencies
		group sync.WaitGroup
	)
	b.ReportAllocs()
	b.ResetTimer()
	used := processorTime()
	usedByDatabase, _ := dbtest.Usage()
	for client := range clients {
		group.Go(func() {
			var own []time.Duration
			for {
				i := int(next.Add(1)) - 1
				if i >= b.N {
					break
				}
				began := time.Now()
				if err := operation(b.Context(), client, i); err != nil {
					b.Error(err)
					return
				}
				own = append(own, time.Since(began))
			}
			took.add(own...)
		})
	}
	group.Wait()
	b.StopTimer()
	if b.Failed() {
		return
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "ops/s")
	b.ReportMetric(float64((processorTime()-used).Nanoseconds())/1e3/float64(b.N), "cpu-µs/op")
	if now, _ := dbtest.Usage(); now > usedByDatabase {
		b.ReportMetric(float64((now-usedByDatabase).Nanoseconds())/1e3/float64(b.N), "database-cpu-µs/op")
	}
	took.report(b)
}

func eachClients(b *testing.B, who string, run func(b *testing.B, clients int)) {
	for _, clients := range []int{1, 64, 256} {
		b.Run(fmt.Sprintf("%s=%d", who, clients), func(b *testing.B) { run(b, clients) })
	}
}

// runs numbers the runs of a benchmark, which all use one database.
var runs atomic.Int64

func BenchmarkCreate(b *testing.B) {
	eachDatabase(b, func(b *testing.B, store *Store) {
		r := pods(b, store)
		eachClients(b, "writers", func(b *testing.B, writers int) {
			run := runs.Add(1)
			concurrently(b, writers, func(ctx context.Context, _, i int) error {
				name := fmt.Sprintf("%d-%d", run, i)
				return r.Create(ctx, podKey(name), large(name), &example.Pod{}, 0)
			})
		})
	})
}

// populateLarge creates objects of 1 KB in a directory and returns them.
func populateLarge(b *testing.B, s apistorage.Interface, directory string, n int) []*example.Pod {
	b.Helper()
	objects := make([]*example.Pod, n)
	var group sync.WaitGroup
	var next atomic.Int64
	for range 64 {
		group.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				objects[i] = &example.Pod{}
				if err := s.Create(b.Context(), directory+numbered(i), large(numbered(i)),
					objects[i], 0); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	group.Wait()
	if b.Failed() {
		b.FailNow()
	}
	return objects
}

func touch(value string) apistorage.UpdateFunc {
	return changing(func(p *example.Pod) error {
		p.Labels["value"] = value
		return nil
	})
}

// BenchmarkUpdate changes objects of its own for each writer: with nothing at hand, or with the
// current object, as the watch cache has it.
func BenchmarkUpdate(b *testing.B) {
	eachDatabase(b, func(b *testing.B, store *Store) {
		r := pods(b, store)
		current := populateLarge(b, r, podKey(""), 1024)
		for _, suggested := range []bool{false, true} {
			b.Run(fmt.Sprintf("suggestion=%v", suggested), func(b *testing.B) {
				eachClients(b, "writers", func(b *testing.B, writers int) {
					run := runs.Add(1)
					each := len(current) / writers
					turn := make([]int, writers)
					concurrently(b, writers, func(ctx context.Context, client, i int) error {
						n := client*each + turn[client]%each
						turn[client]++
						var suggestion runtime.Object
						if suggested {
							suggestion = current[n].DeepCopy()
						}
						out := &example.Pod{}
						err := r.GuaranteedUpdate(ctx, podKey(numbered(n)), out, false, nil,
							touch(fmt.Sprintf("%d-%d", run, i)), suggestion)
						current[n] = out
						return err
					})
				})
			})
		}
	})
}

// BenchmarkHotKey lets all writers change one object.
func BenchmarkHotKey(b *testing.B) {
	eachDatabase(b, func(b *testing.B, store *Store) {
		r := pods(b, store)
		populateLarge(b, r, podKey(""), 1)
		for _, writers := range []int{1, 16} {
			b.Run(fmt.Sprintf("writers=%d", writers), func(b *testing.B) {
				run := runs.Add(1)
				concurrently(b, writers, func(ctx context.Context, _, i int) error {
					return r.GuaranteedUpdate(ctx, podKey(numbered(0)), &example.Pod{}, false, nil,
						touch(fmt.Sprintf("%d-%d", run, i)), nil)
				})
			})
		}
	})
}

func BenchmarkGet(b *testing.B) {
	eachDatabase(b, func(b *testing.B, store *Store) {
		r := pods(b, store)
		populateLarge(b, r, podKey(""), 1024)
		for _, readers := range []int{1, 64} {
			b.Run(fmt.Sprintf("readers=%d", readers), func(b *testing.B) {
				concurrently(b, readers, func(ctx context.Context, _, i int) error {
					return r.Get(ctx, podKey(numbered(i%1024)), apistorage.GetOptions{},
						&example.Pod{})
				})
			})
		}
	})
}

// BenchmarkList lists 10,000 objects: whole, a first page, all pages, from the database, and whole
// and consistently from the watch cache.
func BenchmarkList(b *testing.B) {
	const objects = 10_000
	eachDatabase(b, func(b *testing.B, store *Store) {
		r := pods(b, store)
		populateLarge(b, r, podKey(""), objects)
		lists := func(name string, list func(ctx context.Context) (int, error), want int) {
			b.Run(name, func(b *testing.B) {
				concurrently(b, 1, func(ctx context.Context, _, _ int) error {
					n, err := list(ctx)
					if err == nil && n != want {
						err = fmt.Errorf("%d objects, want %d", n, want)
					}
					return err
				})
			})
		}
		lists("whole", func(ctx context.Context) (int, error) {
			l, err := tryList(ctx, r, apistorage.ListOptions{})
			return len(l.Items), err
		}, objects)
		lists("first-page=500", func(ctx context.Context) (int, error) {
			l, err := tryList(ctx, r, page(500, ""))
			return len(l.Items), err
		}, 500)
		lists("pages=500", func(ctx context.Context) (n int, err error) {
			for token := ""; ; {
				l, err := tryList(ctx, r, page(500, token))
				if n += len(l.Items); err != nil || l.Continue == "" {
					return n, err
				}
				token = l.Continue
			}
		}, objects)

		cached := cachedPods(b, getter(b, store, RESTOptions{}),
			schema.GroupResource{Group: "cached.example.com", Resource: "pods"})
		populateLarge(b, cached, "/cached.example.com/pods/ns/", objects)
		for name, revision := range map[string]string{"cached-consistent": "", "cached-any": "0"} {
			lists(name, func(ctx context.Context) (int, error) {
				l := &example.PodList{}
				err := cached.GetList(ctx, "/cached.example.com/pods", everything(revision), l)
				return len(l.Items), err
			}, objects)
		}
	})
}

// BenchmarkWatchLatency measures the time from the acknowledgement of a write to its arrival at the
// slowest of all watchers, in the same process. An event that arrives before the acknowledgement
// counts as 0.
func BenchmarkWatchLatency(b *testing.B) {
	eachDatabase(b, func(b *testing.B, store *Store) {
		for _, load := range []struct{ watchers, writers int }{{1, 1}, {1, 16}, {100, 16}, {1000, 1}} {
			b.Run(fmt.Sprintf("watchers=%d/writers=%d", load.watchers, load.writers),
				func(b *testing.B) {
					r := pods(b, store)
					head, err := r.GetCurrentResourceVersion(b.Context())
					if err != nil {
						b.Fatal(err)
					}
					arrived := make([]time.Time, b.N)
					var mu sync.Mutex
					var readers sync.WaitGroup
					for range load.watchers {
						w := startWatch(b, r, apistorage.ListOptions{ResourceVersion: itoa(head)})
						readers.Go(func() {
							for i := range b.N {
								e := <-w.ResultChan()
								if e.Type != watch.Added {
									b.Errorf("got %s", e.Type)
									return
								}
								now := time.Now()
								mu.Lock()
								if now.After(arrived[i]) {
									arrived[i] = now
								}
								mu.Unlock()
							}
						})
					}
					acknowledged := make([]time.Time, b.N)
					run := runs.Add(1)
					concurrently(b, load.writers, func(ctx context.Context, _, i int) error {
						out := &example.Pod{}
						name := fmt.Sprintf("%d-%d", run, i)
						if err := r.Create(ctx, podKey(name), large(name), out, 0); err != nil {
							return err
						}
						acknowledged[revisionOf(b, out)-head-1] = time.Now()
						return nil
					})
					readers.Wait()
					var lag latencies
					for i := range arrived {
						lag.add(max(0, arrived[i].Sub(acknowledged[i])))
					}
					lag.report(b)
				})
		}
	})
}

// BenchmarkBackup and BenchmarkRestore: an operation is an object of 1 KB, so -benchtime=1000000x
// is a database of a million. heap-MB is the most memory that was in use.
func BenchmarkBackup(b *testing.B) {
	eachDatabase(b, func(b *testing.B, store *Store) {
		restore(b, store, synthetic(b, b.N), RestoreOptions{})
		heap := watchHeap(b)
		b.ResetTimer()
		out, err := store.WriteBackup(b.Context(), io.Discard, nil)
		b.StopTimer()
		heap()
		if err != nil || out.Objects != int64(b.N) {
			b.Fatal(out, err)
		}
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "objects/s")
	})
}

func BenchmarkRestore(b *testing.B) {
	eachDatabase(b, func(b *testing.B, store *Store) {
		file := synthetic(b, b.N)
		heap := watchHeap(b)
		b.ResetTimer()
		restore(b, store, file, RestoreOptions{})
		b.StopTimer()
		heap()
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "objects/s")
	})
}

// synthetic is a backup of so many objects.
func synthetic(b *testing.B, n int) []byte {
	b.Helper()
	var file bytes.Buffer
	w, err := archive.NewWriter(&file,
		archive.Header{Store: "synthetic", Revision: contract.Revision(n) + 1, Keys: int64(n)}, nil)
	if err != nil {
		b.Fatal(err)
	}
	value := bytes.Repeat([]byte("a sentence or two "), 56)
	for i := range n {
		r := contract.Revision(i + 2)
		if err := w.Write(&contract.Record{Key: contract.Key(fmt.Sprintf("/registry/%016x",
			uint64(i)*0x9e3779b97f4a7c15)), Revision: r, Create: r, Version: 1,
			Value: value}); err != nil {
			b.Fatal(err)
		}
	}
	if _, err := w.Close(); err != nil {
		b.Fatal(err)
	}
	return file.Bytes()
}

// watchHeap reports, when the returned function is called, by how much memory has grown meanwhile
// at most.
func watchHeap(b *testing.B) (report func()) {
	b.Helper()
	inUse := func() uint64 {
		sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
		metrics.Read(sample)
		return sample[0].Value.Uint64()
	}
	goruntime.GC()
	before, most := inUse(), uint64(0)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				most = max(most, inUse())
			case <-stop:
				return
			}
		}
	}()
	return func() {
		close(stop)
		<-stopped
		b.ReportMetric(float64(max(most, before)-before)/(1<<20), "heap-MB")
	}
}

// BenchmarkListByLabel lists 100 objects of many by a label: of 20,000, or of as many as
// ROWKEEPER_BENCH_OBJECTS says. It tells how long the index takes to build, too. Of more than
// 2,000,000, the objects are small, and there is no watch cache, so disk and memory of a usual
// machine suffice.
func BenchmarkListByLabel(b *testing.B) {
	const matching = 100
	objects := 20_000
	if n, err := strconv.Atoi(os.Getenv("ROWKEEPER_BENCH_OBJECTS")); err == nil {
		objects = n
	}
	many := objects > 2_000_000
	eachDatabase(b, func(b *testing.B, store *Store) {
		r := open(b, store, ResourceConfig{Codec: codec, NewFunc: podConfig().NewFunc,
			ResourcePrefix: cachedPrefix, GroupResource: cachedResource})
		ms := make([]contract.Mutation, 0, 10_000)
		for i := range objects {
			p := large(numbered(i))
			if many {
				p.Annotations = nil
			}
			p.Labels["app"] = "other"
			if i%(objects/matching) == 0 {
				p.Labels["app"] = "few"
			}
			data, err := r.objects.serialize(p)
			if err != nil {
				b.Fatal(err)
			}
			ms = append(ms, contract.Mutation{Key: r.keys.all() + contract.Key("ns/"+p.Name), Value: data})
			if len(ms) == cap(ms) || i == objects-1 {
				if _, errs := r.mvcc.ApplyAll(b.Context(), ms); errors.Join(errs...) != nil {
					b.Fatal(errors.Join(errs...))
				}
				ms = ms[:0]
			}
		}
		opts := selecting(b, "app=few", "")
		measure := func(name string, s apistorage.Interface) {
			b.Run(name, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					out := &example.PodList{}
					if err := s.GetList(b.Context(), cachedPrefix, opts, out); err != nil ||
						len(out.Items) != matching {
						b.Fatalf("%d objects, %v", len(out.Items), err)
					}
				}
			})
		}
		var cached apistorage.Interface
		measure("without", r)
		if !many {
			cached = cachedPods(b, getter(b, store, RESTOptions{}), cachedResource)
			measure("cached", cached)
		}
		began := time.Now()
		declare(b, r, "label:app")
		built(b, r)
		b.Logf("the index of %d objects was built in %s", objects, time.Since(began))
		measure("index", r)
		if !many {
			measure("cached, index", cached)
		}
	})
}

// BenchmarkIndexedWrite creates objects, and updates them so that half of the indexed values
// change.
func BenchmarkIndexedWrite(b *testing.B) {
	for _, indexes := range []int{0, 1, 2, 5} {
		b.Run(fmt.Sprintf("indexes=%d", indexes), func(b *testing.B) {
			eachDatabase(b, func(b *testing.B, store *Store) {
				r := pods(b, store)
				for i := range indexes {
					declare(b, r, fmt.Sprint("label:l", i))
				}
				built(b, r)
				labelled := func(name string, n int) *example.Pod {
					p := large(name)
					for i := range 5 {
						p.Labels[fmt.Sprint("l", i)] = fmt.Sprint((n + i%2) % 50)
					}
					return p
				}
				b.Run("create", func(b *testing.B) {
					run := runs.Add(1)
					concurrently(b, 64, func(ctx context.Context, _, i int) error {
						name := fmt.Sprintf("%d-%d", run, i)
						return r.Create(ctx, podKey(name), labelled(name, i), &example.Pod{}, 0)
					})
				})
				run := runs.Add(1)
				for i := range 64 {
					create(b, r, labelled(fmt.Sprintf("%d-%d", run, i), 0))
				}
				for _, changes := range []int{0, 1} {
					b.Run(fmt.Sprintf("update, changes=%d", changes), func(b *testing.B) {
						concurrently(b, 64, func(ctx context.Context, client, i int) error {
							name := fmt.Sprintf("%d-%d", run, client)
							return r.GuaranteedUpdate(ctx, podKey(name), &example.Pod{}, false, nil,
								changing(func(p *example.Pod) error {
									p.Generation++
									for l := range 5 * changes {
										if l%2 == 0 {
											p.Labels[fmt.Sprint("l", l)] = fmt.Sprint(i % 50)
										}
									}
									return nil
								}), nil)
						})
					})
				}
			})
		})
	}
}
