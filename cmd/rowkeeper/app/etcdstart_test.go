package app

import (
	"bytes"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// TestEtcdWaitsForStart: a PostgreSQL server that says that it is starting up is asked again.
// Another fault ends the process.
func TestEtcdWaitsForStart(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	asked := make(chan int, 1)
	go func() {
		n := 0
		defer func() { asked <- n }()
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			b := pgproto3.NewBackend(conn, conn)
			if _, err := b.ReceiveStartupMessage(); err == nil {
				if n++; n < 3 {
					b.Send(&pgproto3.ErrorResponse{Severity: "FATAL", Code: "57P03",
						Message: "the database system is starting up"})
				} else {
					b.Send(&pgproto3.ErrorResponse{Severity: "FATAL", Code: "28P01",
						Message: "password authentication failed"})
				}
				_ = b.Flush() // the process says what it has got
			}
			conn.Close()
		}
	}()
	var stdout, stderr bytes.Buffer
	code := Run(t.Context(), []string{"etcd", "--database",
		"postgres://a:b@" + l.Addr().String() + "/c?sslmode=disable", "--listen-client-urls",
		"http://" + freeAddress(t)}, &stdout, &stderr)
	l.Close()
	if n := <-asked; n < 3 || code == 0 || !strings.Contains(stderr.String(), "refuses the login") {
		t.Errorf("asked %d times, exit code %d: %s", n, code, stderr.String())
	}
	if said := stdout.String(); strings.Count(said, "waits for the database: ") != 1 ||
		!strings.Contains(said, "is starting up") {
		t.Error(said)
	}
}

// TestEtcdProgressInterval: a watch that asks for it hears how far it is as often as the flag says.
func TestEtcdProgressInterval(t *testing.T) {
	for _, flag := range []string{"watch-progress-notify-interval",
		"experimental-watch-progress-notify-interval"} {
		n, address := newTenants(t), freeAddress(t)
		n.start("--listen-client-urls", "http://"+address, "--"+flag, "20ms")
		n.await("http://"+address+"/readyz", nil, "200 ok")
		c, err := clientv3.New(clientv3.Config{Endpoints: []string{"http://" + address},
			Logger: zap.NewNop()})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		watch := c.Watch(t.Context(), "k", clientv3.WithProgressNotify())
		for range 3 {
			if _, err := c.Put(t.Context(), "other", ""); err != nil { // or there is no progress
				t.Fatal(err)
			}
			select {
			case res := <-watch:
				if !res.IsProgressNotify() {
					t.Errorf("%+v", res)
				}
			case <-time.After(15 * time.Second):
				t.Fatal("no progress")
			}
		}
	}
}
