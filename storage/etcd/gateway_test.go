package etcd_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3election/v3electionpb"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3lock/v3lockpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/rowkeeper/rowkeeper/storage/etcd"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
)

// gateway is a server that is served by HTTP and by gRPC.
type gateway struct {
	t   *testing.T
	url string
	c   *clientv3.Client
}

func serveGateway(t *testing.T, d dbtest.DB, cfg etcd.ServerConfig) *gateway {
	t.Helper()
	s := etcd.New(etcd.Opened(openStore(t, d)), cfg)
	c := serveServer(t, s)
	pages := httptest.NewServer(s.Gateway())
	t.Cleanup(func() {
		pages.CloseClientConnections()
		pages.Close()
	})
	return &gateway{t, pages.URL, c}
}

// post makes a call, and returns the status and the body of its answer.
func (g *gateway) post(path, body string, header ...string) (int, string) {
	g.t.Helper()
	answer := g.open(g.t.Context(), path, body, header...)
	defer answer.Body.Close()
	content, err := io.ReadAll(answer.Body)
	if err != nil {
		g.t.Fatal(err)
	}
	return answer.StatusCode, string(content)
}

func (g *gateway) open(ctx context.Context, path, body string, header ...string) *http.Response {
	g.t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, g.url+path, strings.NewReader(body))
	if err != nil {
		g.t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		g.t.Fatal(err)
	}
	return answer
}

// call makes a call that is answered.
func (g *gateway) call(path, body string) string {
	g.t.Helper()
	code, answer := g.post(path, body)
	var compact bytes.Buffer // what makes JSON puts spaces into it at random
	if err := json.Compact(&compact, []byte(answer)); code != http.StatusOK || err != nil {
		g.t.Fatalf("%s %.200s: %d %s %v", path, body, code, answer, err)
	}
	return compact.String()
}

func b64(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }

// TestGateway: calls as JSON are answered as etcd answers them, by the same server as those of
// gRPC.
func TestGateway(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		g := serveGateway(t, d, etcd.ServerConfig{ClientURLs: []string{"http://a.example:2379"}})
		// As in etcd, numbers of 64 bits are strings, and fields have the names of its protocol.
		put := g.call("/v3/kv/put", `{"key":"`+b64("k")+`","value":"`+b64("v")+`"}`)
		if !strings.Contains(put, `"revision":"2"`) || !strings.Contains(put, `"cluster_id":"`) {
			t.Error(put)
		}
		for _, path := range []string{"/v3/kv/range", "/v3beta/kv/range"} {
			if got := g.call(path, `{"key":"`+b64("k")+`","unknown":1}`); !strings.Contains(got,
				`"kvs":[{"key":"aw==","create_revision":"2","mod_revision":"2","version":"1",`+
					`"value":"dg=="}],"count":"1"`) {
				t.Errorf("%s: %s", path, got)
			}
		}
		if got := must[*clientv3.GetResponse](t)(g.c.Get(t.Context(), "k")); got.Count != 1 {
			t.Errorf("gRPC reads %v", got)
		}
		if got := g.call("/v3/kv/txn", `{"compare":[{"target":"VERSION","key":"aw==","version":"1"}],
			"success":[{"request_put":{"key":"aw==","value":"dw=="}}]}`); !strings.Contains(got,
			`"succeeded":true`) {
			t.Error(got)
		}
		if got := g.call("/v3/cluster/member/list", `{}`); !strings.Contains(got,
			`"clientURLs":["http://a.example:2379"]`) {
			t.Error(got)
		}
		grant := g.call("/v3/lease/grant", `{"TTL":60}`)
		var lease struct{ ID string }
		if err := json.Unmarshal([]byte(grant), &lease); err != nil || lease.ID == "" {
			t.Errorf("%s: %v", grant, err)
		}
		for _, path := range []string{"/v3/lease/timetolive", "/v3/kv/lease/timetolive"} {
			if got := g.call(path, `{"ID":"`+lease.ID+`"}`); !strings.Contains(got,
				`"grantedTTL":"60"`) {
				t.Errorf("%s: %s", path, got)
			}
		}
		if got := g.call("/v3/lease/keepalive", `{"ID":"`+lease.ID+`"}`); !strings.Contains(got,
			`"result":{`) || !strings.Contains(got, `"TTL":"60"`) {
			t.Error(got)
		}
		for _, refused := range []struct {
			path, body string
			code       int
			says       string
		}{
			{"/v3/kv/range", `{"key":"k"}`, http.StatusBadRequest, "invalid value"},
			{"/v3/kv/range", `{"key":"aw==","revision":"99"}`, http.StatusBadRequest,
				"etcdserver: mvcc: required revision is a future revision"},
			{"/v3/auth/authenticate", `{"name":"a","password":"b"}`, http.StatusBadRequest,
				"etcdserver: authentication is not enabled"},
			{"/v3/auth/user/add", `{"name":"a"}`, http.StatusNotImplemented, "certificates"},
			{"/v3/nothing", `{}`, http.StatusNotFound, "Not Found"},
		} {
			if code, got := g.post(refused.path, refused.body); code != refused.code ||
				!strings.Contains(got, refused.says) {
				t.Errorf("%s %s: %d %s", refused.path, refused.body, code, got)
			}
		}
	})
}

// TestGatewayWatch: a watch goes on after its request has ended, for as long as its client is
// there.
func TestGatewayWatch(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		g := serveGateway(t, d, etcd.ServerConfig{MaxWatchers: 1})
		for round := range 3 { // so the one watch that there may be has ended each time
			ctx, cancel := context.WithCancel(t.Context())
			var events *bufio.Scanner
			for created := false; !created; {
				answer := g.open(ctx, "/v3/watch", `{"create_request":{"key":"aw=="}}`)
				events = bufio.NewScanner(answer.Body)
				if !events.Scan() {
					t.Fatal(events.Err())
				}
				created = !strings.Contains(events.Text(), `"canceled":true`)
				if !created {
					answer.Body.Close()
				}
			}
			for i := range 3 {
				value := fmt.Sprint(round, i)
				put(t, g.c, "k", value)
				if !events.Scan() || !strings.Contains(events.Text(), `"value":"`+b64(value)+`"`) {
					t.Fatalf("%s: %s %v", value, events.Text(), events.Err())
				}
			}
			cancel()
		}
	})
}

// TestGatewayRefuses: what is too large is refused before it is read or decoded, and pages of
// browsers are not answered.
func TestGatewayRefuses(t *testing.T) {
	d, _ := inMemory(t, nil)
	g := serveGateway(t, d, etcd.ServerConfig{MaxRequestBytes: 1 << 20, MaxTxnOps: 8})
	value := func(bytes int) string {
		return `{"key":"aw==","value":"` + b64(strings.Repeat("v", bytes)) + `"}`
	}
	g.call("/v3/kv/put", value(1<<20-100))
	op := `{"request_put":{"key":"aw==","value":"dg=="}}`
	for _, refused := range []struct {
		path, body, says string
	}{
		{"/v3/kv/put", value(2 << 20), "etcdserver: request is too large"},
		{"/v3/kv/range", value(100 << 10), "etcdserver: request is too large"},
		{"/v3/watch", value(20 << 10), "etcdserver: request is too large"},
		{"/v3/kv/txn", `{"success":[` + op + strings.Repeat(","+op, 8) + `]}`,
			"etcdserver: too many operations"},
		{"/v3/kv/txn", `{"compare":[{}` + strings.Repeat(",{}", 100_000) + `]}`,
			"etcdserver: too many operations"},
	} {
		if code, got := g.post(refused.path, refused.body); code != http.StatusBadRequest &&
			code != http.StatusTooManyRequests || !strings.Contains(got, refused.says) {
			t.Errorf("%s %.60s: %d %s", refused.path, refused.body, code, got)
		}
	}
	code, got := g.post("/v3/kv/range", `{"key":"aw=="}`, "Origin", "http://a.example")
	if code != http.StatusForbidden || !strings.Contains(got, "browsers") {
		t.Errorf("a page of a browser: %d %s", code, got)
	}
	// This body does not tell its length.
	answer, err := http.Post(g.url+"/v3/kv/range", "", io.MultiReader(strings.NewReader(
		value(100<<10))))
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusBadRequest {
		t.Errorf("a body without a length: %s", answer.Status)
	}
}

// TestGatewaySlowReaders: answers that are not read count, until their time is over. So further
// ones are refused, and then there is room again.
func TestGatewaySlowReaders(t *testing.T) {
	d, _ := inMemory(t, nil)
	g := serveGateway(t, d, etcd.ServerConfig{MaxAnswerBytes: 64 << 20, SendTimeout: 3 * time.Second})
	large := strings.Repeat("v", 1<<20)
	for i := range 6 {
		put(t, g.c, fmt.Sprint("k", i), large)
	}
	all := `{"key":"aw==","range_end":"bA=="}`
	request := fmt.Sprintf("POST /v3/kv/range HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s",
		len(all), all)
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	refused := 0
	for range 8 {
		c, err := net.Dial("tcp", strings.TrimPrefix(g.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
		if _, err := io.WriteString(c, request); err != nil {
			t.Fatal(err)
		}
		status := make([]byte, len("HTTP/1.1 503"))
		if _, err := io.ReadFull(c, status); err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(string(status), "503") {
			refused++
		}
	}
	if refused == 0 {
		t.Error("all answers were made, and none was read")
	}
	for end := time.Now().Add(time.Minute); ; {
		code, got := g.post("/v3/kv/range", all)
		if code == http.StatusOK {
			break
		}
		if code != http.StatusServiceUnavailable || time.Now().After(end) {
			t.Fatalf("%d %.200s", code, got)
		}
	}
}

// TestGatewaySlowBodies: a request that does not come is given up when others wait.
func TestGatewaySlowBodies(t *testing.T) {
	d, _ := inMemory(t, nil)
	g := serveGateway(t, d, etcd.ServerConfig{RequestTimeout: 100 * time.Millisecond,
		Memory: 64 << 20})
	for range 20 {
		c, err := net.Dial("tcp", strings.TrimPrefix(g.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := io.WriteString(c,
			"POST /v3/kv/put HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n{"); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	answer := g.open(ctx, "/v3/kv/put", `{"key":"aw==","value":"dg=="}`)
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		t.Error(answer.Status)
	}
}

// TestServerClose: the calls of the gateway and the calls that wait end with the server.
func TestServerClose(t *testing.T) {
	d, _ := inMemory(t, nil)
	s := etcd.New(etcd.Opened(openStore(t, d)), etcd.ServerConfig{})
	c := serveServer(t, s)
	pages := httptest.NewServer(s.Gateway())
	defer pages.Close()
	g := &gateway{t, pages.URL, c}
	watch := g.open(t.Context(), "/v3/watch", `{"create_request":{"key":"aw=="}}`)
	defer watch.Body.Close()
	lines := bufio.NewScanner(watch.Body)
	if !lines.Scan() {
		t.Fatal(lines.Err())
	}
	locks := v3lockpb.NewLockClient(c.ActiveConnection())
	held := must[*v3lockpb.LockResponse](t)(locks.Lock(t.Context(),
		&v3lockpb.LockRequest{Name: []byte("l")}))
	waiting := make(chan error, 1)
	go func() {
		_, err := locks.Lock(t.Context(), &v3lockpb.LockRequest{Name: []byte("l")})
		waiting <- err
	}()
	awaitKeys(t, c, "l/", 2)
	s.Close()
	if err := <-waiting; err == nil {
		t.Error("a lock was given that is held")
	}
	for lines.Scan() {
	}
	if code, got := g.post("/v3/kv/range", `{"key":"aw=="}`); code != http.StatusServiceUnavailable {
		t.Errorf("%s: %d %s", held.Key, code, got)
	}
}

// awaitKeys waits until there are so many keys.
func awaitKeys(t *testing.T, c *clientv3.Client, prefix string, n int64) {
	t.Helper()
	for ctx := t.Context(); ; {
		res := must[*clientv3.GetResponse](t)(c.Get(ctx, prefix, clientv3.WithPrefix()))
		if res.Count == n {
			return
		}
		for range c.Watch(ctx, prefix, clientv3.WithPrefix(),
			clientv3.WithRev(res.Header.Revision+1)) {
			break
		}
	}
}

// TestLockService: locks that the server makes exclude each other, and locks that a client makes.
func TestLockService(t *testing.T) {
	each(t, func(t *testing.T, c *clientv3.Client) {
		locks := v3lockpb.NewLockClient(c.ActiveConnection())
		session, err := concurrency.NewSession(c)
		if err != nil {
			t.Fatal(err)
		}
		own := concurrency.NewMutex(session, "l")
		if err := own.Lock(t.Context()); err != nil {
			t.Fatal(err)
		}
		locked := make(chan *v3lockpb.LockResponse, 1)
		go func() {
			res, err := locks.Lock(t.Context(), &v3lockpb.LockRequest{Name: []byte("l")})
			if err != nil {
				t.Error(err)
			}
			locked <- res
		}()
		awaitKeys(t, c, "l/", 2)
		select {
		case <-locked:
			t.Error("both have the lock")
		default:
		}
		if err := own.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
		res := <-locked
		if !strings.HasPrefix(string(res.GetKey()), "l/") || res.GetHeader().GetRevision() == 0 {
			t.Fatalf("%v", res)
		}
		if err := own.TryLock(t.Context()); !errors.Is(err, concurrency.ErrLocked) {
			t.Error(err)
		}
		must[*v3lockpb.UnlockResponse](t)(locks.Unlock(t.Context(),
			&v3lockpb.UnlockRequest{Key: res.Key}))
		if err := own.Lock(t.Context()); err != nil {
			t.Error(err)
		}
		_, err = locks.Lock(t.Context(), &v3lockpb.LockRequest{Name: make([]byte, 20<<10)})
		if status.Code(err) != codes.InvalidArgument {
			t.Error(err)
		}
		session.Close()
	})
}

// TestWaitsAreGivenUp: a wait for a lock or for an election that is given up leaves nothing that
// others would wait for.
func TestWaitsAreGivenUp(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		s := etcd.New(etcd.Opened(openStore(t, d)), etcd.ServerConfig{})
		c := serveServer(t, s)
		for prefix, wait := range map[string]func(context.Context) error{
			"l/": func(ctx context.Context) error {
				_, err := v3lockpb.NewLockClient(c.ActiveConnection()).Lock(ctx,
					&v3lockpb.LockRequest{Name: []byte("l")})
				return err
			},
			"e/": func(ctx context.Context) error {
				_, err := v3electionpb.NewElectionClient(c.ActiveConnection()).Campaign(ctx,
					&v3electionpb.CampaignRequest{Name: []byte("e"), Value: []byte("v")})
				return err
			},
		} {
			if err := wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- wait(ctx) }()
			for etcd.Watching(s) == 0 { // it waits, by a watch of its own
				must[*clientv3.GetResponse](t)(c.Get(t.Context(), prefix))
			}
			cancel()
			if err := <-ended; status.Code(err) != codes.Canceled {
				t.Error(err)
			}
			for n := int64(2); n != 1 || etcd.Watching(s) > 0; {
				n = must[*clientv3.GetResponse](t)(c.Get(t.Context(), prefix,
					clientv3.WithPrefix())).Count
			}
		}
	})
}

// TestElectionService: who campaigns leads when nobody else does, and observers hear of it.
func TestElectionService(t *testing.T) {
	each(t, func(t *testing.T, c *clientv3.Client) {
		elections := v3electionpb.NewElectionClient(c.ActiveConnection())
		name := []byte("e")
		if _, err := elections.Leader(t.Context(), &v3electionpb.LeaderRequest{
			Name: name}); err == nil {
			t.Error("there is a leader")
		}
		campaign := func(value string) (*v3electionpb.CampaignResponse, error) {
			lease := must[*clientv3.LeaseGrantResponse](t)(c.Grant(t.Context(), 60))
			return elections.Campaign(t.Context(), &v3electionpb.CampaignRequest{Name: name,
				Value: []byte(value), Lease: int64(lease.ID)})
		}
		first := must[*v3electionpb.CampaignResponse](t)(campaign("first"))
		observer, err := elections.Observe(t.Context(), &v3electionpb.LeaderRequest{Name: name})
		if err != nil {
			t.Fatal(err)
		}
		leads := func(want string) {
			t.Helper()
			res := must[*v3electionpb.LeaderResponse](t)(observer.Recv())
			if string(res.Kv.Value) != want {
				t.Errorf("%q leads, not %q", res.Kv.Value, want)
			}
		}
		leads("first")
		second := make(chan *v3electionpb.CampaignResponse, 1)
		go func() {
			res, err := campaign("second")
			if err != nil {
				t.Error(err)
			}
			second <- res
		}()
		awaitKeys(t, c, "e/", 2)
		must[*v3electionpb.ProclaimResponse](t)(elections.Proclaim(t.Context(),
			&v3electionpb.ProclaimRequest{Leader: first.Leader, Value: []byte("again")}))
		leads("again")
		must[*v3electionpb.ResignResponse](t)(elections.Resign(t.Context(),
			&v3electionpb.ResignRequest{Leader: first.Leader}))
		leads("second")
		if res := <-second; res.GetLeader().GetRev() <= first.Leader.Rev {
			t.Errorf("%v", res)
		}
	})
}

// TestGatewayLocks: calls that wait are answered by the gateway, too.
func TestGatewayLocks(t *testing.T) {
	d, _ := inMemory(t, nil)
	g := serveGateway(t, d, etcd.ServerConfig{})
	var first, second pb.PutRequest // which has a key
	if err := json.Unmarshal([]byte(g.call("/v3/lock/lock", `{"name":"bA=="}`)), &first); err != nil {
		t.Fatal(err)
	}
	locked := make(chan string, 1)
	go func() { locked <- g.call("/v3/lock/lock", `{"name":"bA=="}`) }()
	awaitKeys(t, g.c, "l/", 2)
	g.call("/v3/lock/unlock", `{"key":"`+b64(string(first.Key))+`"}`)
	if err := json.Unmarshal([]byte(<-locked), &second); err != nil ||
		string(first.Key) == string(second.Key) {
		t.Errorf("%q %q: %v", first.Key, second.Key, err)
	}
}

// TestGatewayClientsLeave: a call that lasts ends when its client has left, also if that has sent
// something behind its request; and it goes on if the client has not left.
func TestGatewayClientsLeave(t *testing.T) {
	d, _ := inMemory(t, nil)
	s := etcd.New(etcd.Opened(openStore(t, d)), etcd.ServerConfig{})
	c := serveServer(t, s)
	pages := httptest.NewServer(s.Gateway())
	defer pages.Close()
	ask := func(version, path, body string) (net.Conn, *bufio.Scanner) {
		t.Helper()
		conn, err := net.Dial("tcp", strings.TrimPrefix(pages.URL, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Fprintf(conn, "POST %s %s\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s", path,
			version, len(body), body); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(path, "lock") {
			return conn, nil // nothing comes
		}
		//nolint:bodyclose // it ends with its connection
		answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || answer.StatusCode != http.StatusOK {
			t.Fatalf("%v, %v", answer, err)
		}
		return conn, bufio.NewScanner(answer.Body)
	}
	watching := func(n int64) {
		t.Helper()
		for etcd.Watching(s) != n {
			must[*clientv3.GetResponse](t)(c.Get(t.Context(), "k"))
		}
	}
	watch := `{"create_request":{"key":"aw=="}}`
	for _, version := range []string{"HTTP/1.1", "HTTP/1.0"} {
		for _, behind := range []string{"", "\r\n", "GET / HTTP/1.1\r\n\r\n"} {
			conn, lines := ask(version, "/v3/watch", watch)
			if !lines.Scan() || !strings.Contains(lines.Text(), `"created":true`) {
				t.Fatalf("%s: %v", lines.Text(), lines.Err())
			}
			if _, err := io.WriteString(conn, behind); err != nil {
				t.Fatal(err)
			}
			put(t, c, "k", version+behind)
			if !lines.Scan() || !strings.Contains(lines.Text(), b64(version+behind)) {
				t.Fatalf("%s: %v", lines.Text(), lines.Err())
			}
			watching(1)
			conn.Close()
			watching(0)
		}
	}
	// Who sends on and on is no client.
	conn, _ := ask("HTTP/1.1", "/v3/watch", watch)
	if _, err := conn.Write(make([]byte, 64<<10)); err != nil {
		t.Fatal(err)
	}
	watching(0)
	conn.Close()

	locks := v3lockpb.NewLockClient(c.ActiveConnection())
	must[*v3lockpb.LockResponse](t)(locks.Lock(t.Context(), &v3lockpb.LockRequest{Name: []byte("l")}))
	conn, _ = ask("HTTP/1.1", "/v3/lock/lock", `{"name":"`+b64("l")+`"}`)
	if _, err := io.WriteString(conn, "\n"); err != nil {
		t.Fatal(err)
	}
	watching(1)
	conn.Close()
	awaitKeys(t, c, "l/", 1)
}

// TestLocksHaveWhatTheyNeed: a call that waits for a lock is refused if there is no room for all
// that it needs, and else gets the lock in the end.
func TestLocksHaveWhatTheyNeed(t *testing.T) {
	d, _ := inMemory(t, nil)
	s := etcd.New(etcd.Opened(openStore(t, d)), etcd.ServerConfig{MaxStreams: 7})
	c := serveServer(t, s)
	locks := v3lockpb.NewLockClient(c.ActiveConnection())
	held := must[*v3lockpb.LockResponse](t)(locks.Lock(t.Context(),
		&v3lockpb.LockRequest{Name: []byte("l")}))
	type answer struct {
		res *v3lockpb.LockResponse
		err error
	}
	const waiting = 6
	answers := make(chan answer, waiting)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for range waiting {
		go func() {
			res, err := locks.Lock(ctx, &v3lockpb.LockRequest{Name: []byte("l")})
			answers <- answer{res, err}
		}()
	}
	for range waiting - 2 {
		if a := <-answers; status.Code(a.err) != codes.Unavailable {
			t.Fatalf("%v, %v", a.res, a.err)
		}
	}
	for range 2 {
		must[*v3lockpb.UnlockResponse](t)(locks.Unlock(ctx, &v3lockpb.UnlockRequest{Key: held.Key}))
		a := <-answers
		if held = a.res; a.err != nil {
			t.Fatal(a.err)
		}
	}
}

// TestLocksAreGivenUp: a call that waits for a lock is given up when the server cannot watch the
// lock for long, and until then it does not try all the time.
func TestLocksAreGivenUp(t *testing.T) {
	d, _ := inMemory(t, nil)
	store := openStore(t, d)
	var opened atomic.Int64
	var closed atomic.Bool
	s := etcd.New(func(context.Context) (*etcd.Store, func(), error) {
		opened.Add(1)
		if closed.Load() {
			return nil, nil, status.Error(codes.Unavailable, "closed")
		}
		return store, func() {}, nil
	}, etcd.ServerConfig{LeaderTimeout: 3 * time.Second, RequestTimeout: 100 * time.Millisecond})
	c := serveServer(t, s)
	locks := v3lockpb.NewLockClient(c.ActiveConnection())
	must[*v3lockpb.LockResponse](t)(locks.Lock(t.Context(), &v3lockpb.LockRequest{Name: []byte("l")}))
	given := make(chan error, 1)
	go func() {
		_, err := locks.Lock(t.Context(), &v3lockpb.LockRequest{Name: []byte("l")})
		given <- err
	}()
	for etcd.Watching(s) == 0 {
		must[*clientv3.GetResponse](t)(c.Get(t.Context(), "l/"))
	}
	closed.Store(true)
	before := opened.Load()
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-given; status.Code(err) != codes.Unavailable {
		t.Error(err)
	}
	if n := opened.Load() - before; n > 20 {
		t.Errorf("within three seconds it was tried %d times", n)
	}
}

// TestAnswerBytes: the gateway takes no more for an answer than it counts.
func TestAnswerBytes(t *testing.T) {
	kv := func(bytes int) *mvccpb.KeyValue {
		return &mvccpb.KeyValue{Key: []byte("/registry/a/key"), Value: manyBytes(bytes),
			CreateRevision: 1 << 40, ModRevision: 1 << 41, Version: 7, Lease: 1 << 50}
	}
	kvs := func(n, bytes int) (list []*mvccpb.KeyValue) {
		for range n {
			list = append(list, kv(bytes))
		}
		return list
	}
	events := func(n, bytes int) (list []*mvccpb.Event) {
		for range n {
			list = append(list, &mvccpb.Event{Type: mvccpb.Event_PUT, Kv: kv(bytes), PrevKv: kv(bytes)})
		}
		return list
	}
	leases := func(n int) (list []*pb.LeaseStatus) {
		for i := range n {
			list = append(list, &pb.LeaseStatus{ID: 1<<60 + int64(i)})
		}
		return list
	}
	responses := func(n int) (list []*pb.ResponseOp) {
		for range n {
			list = append(list, &pb.ResponseOp{Response: &pb.ResponseOp_ResponseRange{
				ResponseRange: &pb.RangeResponse{Header: &pb.ResponseHeader{Revision: 7}, Kvs: kvs(3, 0)}}})
		}
		return list
	}
	for name, m := range map[string]proto.Message{
		"many keys":     &pb.RangeResponse{Kvs: kvs(20_000, 0)},
		"keys":          &pb.RangeResponse{Kvs: kvs(5_000, 1000)},
		"large values":  &pb.RangeResponse{Kvs: kvs(10, 1<<20)},
		"many events":   &pb.WatchResponse{Events: events(10_000, 0)},
		"large events":  &pb.WatchResponse{Events: events(5, 1<<20)},
		"leases":        &pb.LeaseLeasesResponse{Leases: leases(20_000)},
		"keys of lease": &pb.LeaseTimeToLiveResponse{Keys: bytes.SplitAfter(manyBytes(20_000), []byte{'v'})},
		"deleted":       &pb.DeleteRangeResponse{PrevKvs: kvs(20_000, 0)},
		"transaction":   &pb.TxnResponse{Responses: responses(5_000)},
	} {
		held, counted, err := etcd.Holds(m)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %d of %d bytes", name, held, counted)
		if held > counted || counted > 20*held {
			t.Errorf("%s: it takes %d bytes, and %d are counted", name, held, counted)
		}
	}
}

func manyBytes(n int) []byte { return bytes.Repeat([]byte{'v'}, n) }
