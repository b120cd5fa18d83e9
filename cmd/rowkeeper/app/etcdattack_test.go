package app

import (
	"bytes"
	zip "compress/gzip"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/mem"

	"github.com/rowkeeper/rowkeeper/pkg/support/test/partial"
)

// argsVariable has the arguments of the program that this binary is to be, in place of the tests.
const argsVariable = "ROWKEEPER_TEST_ARGS"

func TestMain(m *testing.M) {
	if args := os.Getenv(argsVariable); args != "" {
		os.Exit(Run(context.Background(), strings.Fields(args), os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// encoded sends requests that are encoded already, so that a client makes them for nothing.
type encoded struct{}

func (encoded) Name() string { return "proto" }

func (encoded) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

func (encoded) Unmarshal(mem.BufferSlice, any) error { return nil }

// field encodes a field of a message that holds bytes.
func field(number byte, content []byte) []byte {
	return append(binary.AppendUvarint([]byte{number<<3 | 2}, uint64(len(content))), content...)
}

// compressed stands for gzip, and sends what was compressed before.
type compressed []byte

func (c compressed) Name() string { return gzip.Name }

func (c compressed) Compress(w io.Writer) (io.WriteCloser, error) {
	_, err := w.Write(c)
	return struct {
		io.Writer
		io.Closer
	}{io.Discard, io.NopCloser(nil)}, err
}

func (c compressed) Decompress(r io.Reader) (io.Reader, error) { return zip.NewReader(r) }

// attacked is a process that serves the stores default and b, and has a GiB of memory.
type attacked struct {
	t      *testing.T
	cmd    *exec.Cmd
	log    bytes.Buffer
	exited chan struct{}
	// addresses are those of the two stores.
	addresses [2]string
}

const attackedBytes = 1 << 30

func startAttacked(t *testing.T) *attacked {
	t.Helper()
	a := &attacked{t: t, exited: make(chan struct{}), addresses: [2]string{freeAddress(t),
		freeAddress(t)}}
	database := "sqlite://" + filepath.Join(t.TempDir(), "state.db")
	if code := Run(t.Context(), []string{"stores", "create", "b", "--database", database}, &a.log,
		&a.log); code != 0 {
		t.Fatal(a.log.String())
	}
	program := os.Getenv("ROWKEEPER_TEST_ATTACKED") // another version, to compare
	if program == "" {
		program = os.Args[0]
	}
	args := []string{"etcd", "--database", database, "--listen-client-urls",
		"http://" + a.addresses[0], "--listen-store", "b=http://" + a.addresses[1]}
	a.cmd = exec.Command(program, args...)
	a.cmd.Env = append(os.Environ(), argsVariable+"="+strings.Join(args, " "), "GOMEMLIMIT=900MiB")
	a.cmd.Stdout, a.cmd.Stderr = &a.log, &a.log
	if err := a.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = a.cmd.Wait() // it is killed
		close(a.exited)
	}()
	t.Cleanup(func() {
		_ = a.cmd.Process.Kill() // it may have ended
		<-a.exited
	})
	return a
}

// peak is the most memory that the process has had, 0 if it has ended.
func (a *attacked) peak() int64 {
	content, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", a.cmd.Process.Pid))
	for line := range strings.Lines(string(content)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "VmHWM:" {
			n, _ := strconv.ParseInt(f[1], 10, 64)
			return n << 10
		}
	}
	return 0
}

// client connects to a store. It takes no more of an answer that nobody reads than it has to.
func (a *attacked) client(store int, o ...grpc.DialOption) *grpc.ClientConn {
	a.t.Helper()
	c, err := grpc.NewClient(a.addresses[store], append(o,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithStaticStreamWindowSize(64<<10), grpc.WithStaticConnWindowSize(64<<10))...)
	if err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() { c.Close() })
	return c
}

// send makes a call of an encoded request, and reads no answer.
func send(ctx context.Context, c *grpc.ClientConn, method string, request []byte,
	o ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := c.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method,
		append(o, grpc.ForceCodecV2(encoded{}))...)
	if err == nil {
		err = s.SendMsg(request)
	}
	return s, err
}

// invoke makes a call of an encoded request, and waits for its end.
func invoke(ctx context.Context, c *grpc.ClientConn, method string, request []byte,
	o ...grpc.CallOption) error {
	return c.Invoke(ctx, method, request, nil, append(o, grpc.ForceCodecV2(encoded{}))...)
}

// post sends a request to the gateway of the first store, and reads no answer.
func (a *attacked) post(ctx context.Context, path, body string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", a.addresses[0])
	if err != nil {
		return nil, err
	}
	a.t.Cleanup(func() { conn.Close() })
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	a.t.Cleanup(func() { stop() })
	_, err = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s", path,
		len(body), body)
	return conn, err
}

// atOnce calls f so many times at a time, as long as the context lasts.
func atOnce(ctx context.Context, n int, f func(i int)) {
	var wg sync.WaitGroup
	for worker := range n {
		wg.Go(func() {
			for i := worker; ctx.Err() == nil; i += n {
				f(i)
			}
		})
	}
	wg.Wait()
}

func p99(took []time.Duration) time.Duration {
	if len(took) == 0 {
		return 0
	}
	slices.Sort(took)
	return took[len(took)*99/100]
}

// tolerated is the longest p99 of one who is attacked: a second, or on a machine where that is
// nothing unusual, twenty times the p99 before the attack.
func tolerated(usual time.Duration) time.Duration { return max(time.Second, 20*usual) }

// TestOneClientTakesAllMemory: a client that asks for as much as it can, in each of these ways, and
// in all of them at once, does not make a process that has a GiB use more. The clients of another
// store are answered meanwhile, and not much later than before.
func TestOneClientTakesAllMemory(t *testing.T) {
	if testing.Short() || runtime.GOOS != "linux" {
		t.Skip("it takes minutes, so -short leaves it out, and it looks at the memory of a process of Linux")
	}
	const lasting = 10 * time.Second
	comparisons := bytes.Repeat([]byte{0x0a, 0}, 1_040_000)
	var packed bytes.Buffer
	z := zip.NewWriter(&packed)
	_, err := z.Write(comparisons)
	if err = errors.Join(err, z.Close()); err != nil {
		t.Fatal(err)
	}
	encoding.RegisterCompressor(compressed(packed.Bytes()))
	value := bytes.Repeat([]byte("v"), 1_400_000)
	long := func(i int) []byte { return append(bytes.Repeat([]byte("z"), 1_900_000), fmt.Sprint(i)...) }
	putOf := func(i int) []byte {
		return append(field(1, fmt.Appendf(nil, "k%03d", i)), field(2, value)...)
	}
	fill := func(ctx context.Context, c *grpc.ClientConn, keys int) error {
		for i := range keys {
			if err := invoke(ctx, c, pb.KV_Put_FullMethodName, putOf(i)); err != nil {
				return err
			}
		}
		return nil
	}
	all := append(field(1, []byte("k")), field(2, []byte("l"))...)
	attacks := map[string]func(ctx context.Context, a *attacked) error{
		"comparisons": func(ctx context.Context, a *attacked) error {
			c := a.client(0)
			atOnce(ctx, 24, func(int) {
				_ = invoke(ctx, c, pb.KV_Txn_FullMethodName, comparisons) // it is refused
			})
			return nil
		},
		"compressed comparisons": func(ctx context.Context, a *attacked) error {
			c := a.client(0)
			atOnce(ctx, 30, func(int) {
				_ = invoke(ctx, c, pb.KV_Txn_FullMethodName, comparisons,
					grpc.UseCompressor(gzip.Name)) // it is refused
			})
			return nil
		},
		"watches of long keys": func(ctx context.Context, a *attacked) error {
			s, err := send(ctx, a.client(0), pb.Watch_Watch_FullMethodName,
				field(1, field(1, long(0))))
			for i := 1; i < 600 && err == nil; i++ {
				err = s.SendMsg(field(1, field(1, long(i))))
			}
			return err
		},
		"ranges with long ends": func(ctx context.Context, a *attacked) error {
			c := a.client(0)
			err := fill(ctx, c, 2)
			for i := 0; i < 600 && err == nil; i++ {
				err = invoke(ctx, c, pb.KV_Range_FullMethodName,
					append(append(field(1, []byte("k")), field(2, long(i))...), 3<<3, 1))
			}
			return err
		},
		"answers that are not read": func(ctx context.Context, a *attacked) error {
			err := fill(ctx, a.client(0), 40)
			for range 40 {
				var s grpc.ClientStream
				if err == nil {
					s, err = send(ctx, a.client(0), pb.KV_Range_FullMethodName, all)
				}
				if err == nil {
					err = s.CloseSend()
				}
			}
			return err
		},
		"watches that are not read": func(ctx context.Context, a *attacked) error {
			c := a.client(0)
			err := fill(ctx, c, 60)
			for range 400 {
				if err == nil {
					_, err = send(ctx, c, pb.Watch_Watch_FullMethodName,
						field(1, append(bytes.Clone(all), 3<<3, 2))) // from revision 2 on
				}
			}
			return err
		},
		"large puts by the gateway": func(ctx context.Context, a *attacked) error {
			put := `{"key":"aw==","value":"` + base64.StdEncoding.EncodeToString(value) + `"}`
			atOnce(ctx, 300, func(int) {
				conn, err := a.post(ctx, "/v3/kv/put", put) // as many as there can be
				if err == nil {
					_, _ = conn.Read(make([]byte, 1))
					conn.Close()
				}
			})
			return nil
		},
		"comparisons by the gateway": func(ctx context.Context, a *attacked) error {
			txn := `{"compare":[{}` + strings.Repeat(",{}", 600_000) + `]}`
			atOnce(ctx, 24, func(int) {
				conn, err := a.post(ctx, "/v3/kv/txn", txn) // it is refused
				if err == nil {
					_, _ = conn.Read(make([]byte, 1))
					conn.Close()
				}
			})
			return nil
		},
		"answers of the gateway that are not read": func(ctx context.Context, a *attacked) error {
			err := fill(ctx, a.client(0), 40)
			for range 40 {
				if err == nil {
					_, err = a.post(ctx, "/v3/kv/range", `{"key":"aw==","range_end":"bA=="}`)
				}
			}
			return err
		},
		"watches of the gateway that are not read": func(ctx context.Context, a *attacked) error {
			err := fill(ctx, a.client(0), 60)
			for range 400 {
				if err == nil {
					_, err = a.post(ctx, "/v3/watch",
						`{"create_request":{"key":"aw==","range_end":"bA==","start_revision":"2"}}`)
				}
			}
			return err
		},
		"parts of requests": func(ctx context.Context, a *attacked) error {
			const streams = 600
			watch := field(1, field(1, long(0)))
			c := a.client(0, grpc.WithContextDialer(
				partial.Dialer("tcp", streams*int64(len(watch))*9/10)))
			var wg sync.WaitGroup
			for range streams {
				wg.Go(func() { _, _ = send(ctx, c, pb.Watch_Watch_FullMethodName, watch) }) // it never is
			}
			wg.Wait()
			return nil
		},
		"large puts": func(ctx context.Context, a *attacked) error {
			c, put := a.client(0), putOf(0)
			atOnce(ctx, 1_000, func(int) {
				_ = invoke(ctx, c, pb.KV_Put_FullMethodName, put) // as many as there can be
			})
			return nil
		},
		"gets of large values": func(ctx context.Context, a *attacked) error {
			const keys = 64
			c := a.client(0)
			err := fill(ctx, c, keys)
			atOnce(ctx, 500, func(i int) {
				get := field(1, fmt.Appendf(nil, "k%03d", i%keys))
				if i/keys%2 > 0 {
					get = append(get, 4<<3, keys) // at that revision, which shares no query
				}
				_ = invoke(ctx, c, pb.KV_Range_FullMethodName, get) // some are refused
			})
			return err
		},
	}
	const combined = "all at once"
	together := slices.Collect(maps.Values(attacks))
	attacks[combined] = func(ctx context.Context, a *attacked) error {
		var each sync.WaitGroup
		for _, attack := range together {
			each.Go(func() { _ = attack(ctx, a) }) // what one needs another may have taken
		}
		each.Wait()
		return nil
	}
	for name, attack := range attacks {
		t.Run(name, func(t *testing.T) {
			a := startAttacked(t)
			tenant := pb.NewKVClient(a.client(1))
			key := &pb.PutRequest{Key: []byte("k"), Value: []byte("v")}
			for _, c := range []pb.KVClient{pb.NewKVClient(a.client(0)), tenant} {
				started, cancel := context.WithTimeout(t.Context(), time.Minute)
				_, err := c.Put(started, key, grpc.WaitForReady(true))
				for err != nil && started.Err() == nil { // a store that is being opened says so
					_, err = c.Put(started, key, grpc.WaitForReady(true))
				}
				cancel()
				if err != nil {
					t.Fatalf("%v\n%s", err, a.log.String())
				}
			}
			// A put and a get of the other store, until the context ends or more says no.
			use := func(ctx context.Context, more func(done int) bool) (took []time.Duration) {
				for ctx.Err() == nil && more(len(took)) {
					began := time.Now()
					_, err := tenant.Put(t.Context(), key)
					if err == nil {
						_, err = tenant.Range(t.Context(), &pb.RangeRequest{Key: key.Key})
					}
					if err != nil {
						t.Errorf("the other store: %v", err)
						break
					}
					took = append(took, time.Since(began))
				}
				return took
			}
			calm := use(t.Context(), func(done int) bool { return done < 100 })
			ctx, cancel := context.WithTimeout(t.Context(), lasting)
			defer cancel()
			var attacker sync.WaitGroup
			attacker.Go(func() {
				err := attack(ctx, a)
				// A stream that the server has ended is one that it has refused.
				if err != nil && !errors.Is(err, io.EOF) && ctx.Err() == nil {
					select {
					case <-a.exited:
					default:
						t.Error(err)
					}
				}
			})
			var highest int64
			took := use(ctx, func(int) bool {
				highest = max(highest, a.peak())
				return highest < attackedBytes
			})
			cancel()
			attacker.Wait()
			select {
			case <-a.exited:
				t.Errorf("the process has ended: %s", a.log.String())
			default:
				highest = max(highest, a.peak())
			}
			if len(took) == 0 {
				t.Fatal("the other store was not used")
			}
			slow, usual := p99(took), p99(calm)
			t.Logf("%d MiB at most; the other store's p99 of %d puts and gets is %s, and %s "+
				"before", highest>>20, len(took), slow.Round(time.Millisecond),
				usual.Round(time.Millisecond))
			if highest >= attackedBytes {
				t.Errorf("the process has %d MiB", highest>>20)
			}
			// All at once they need more of the machine than it has, in the test as well.
			if slow > tolerated(usual) && name != combined {
				t.Errorf("the other store's p99 is %s, and was %s before", slow, usual)
			}
			var refused net.Error
			if conn, err := net.DialTimeout("tcp", a.addresses[0], time.Minute); err == nil {
				conn.Close()
			} else if !errors.As(err, &refused) {
				t.Error(err)
			}
		})
	}
}
