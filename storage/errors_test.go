package storage

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/apis/example"
	apistorage "k8s.io/apiserver/pkg/storage"
	storeerrors "k8s.io/apiserver/pkg/storage/errors"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
)

var somePods = schema.GroupResource{Group: "example.com", Resource: "pods"}

// TestErrors: clients get a status that says what to do, and a Retry-After only if repeating a
// write is harmless. They are not told where the database is.
func TestErrors(t *testing.T) {
	over, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	const where = "db.example.com:5432"
	away := contract.Errorf(contract.Unavailable, "nothing answers at "+where)
	for name, test := range map[string]struct {
		ctx     context.Context
		err     error
		code    int32
		reason  metav1.StatusReason
		retry   int32
		message string
	}{
		"away": {nil, away, 503, metav1.StatusReasonServiceUnavailable, 1,
			"it does not answer. The server's log"},
		"away, wrapped": {nil, fmt.Errorf("read: %w", away), 503,
			metav1.StatusReasonServiceUnavailable, 1, "it does not answer"},
		"read-only": {nil, contract.Errorf(contract.ReadOnly, "a standby"), 503,
			metav1.StatusReasonServiceUnavailable, 1, "it is read-only"},
		"denied": {nil, contract.Errorf(contract.Denied, "the password is wrong"), 503,
			metav1.StatusReasonServiceUnavailable, 1, "it refuses this server"},
		"closed": {nil, contract.ErrClosed, 503, metav1.StatusReasonServiceUnavailable, 0,
			"shutting down"},
		"full": {nil, contract.Errorf(contract.Full, "the disk of "+where+" is full"), 507,
			"InsufficientStorage", 0, "no room left"},
		"invalid": {nil, contract.Errorf(contract.Invalid, "cannot connect to "+where+" as me"), 500,
			metav1.StatusReasonInternalError, 0, "not as this server needs it"},
		"unknown": {nil, contract.ErrUnknownOutcome, 504, metav1.StatusReasonTimeout, 0,
			"may or may not have been committed"},
		"unknown, with its cause": {nil, fmt.Errorf("%w: %w", contract.ErrUnknownOutcome, away), 504,
			metav1.StatusReasonTimeout, 0, "may or may not have been committed"},
		"unknown, in time": {over, fmt.Errorf("%w (%w)", contract.ErrUnknownOutcome, over.Err()), 504,
			metav1.StatusReasonTimeout, 0, "may or may not have been committed"},
		"too late": {over, over.Err(), 504, metav1.StatusReasonTimeout, 1,
			"nothing was written"},
		"value": {nil, &contract.LimitError{What: "value", Bytes: 9, Limit: 8}, 413,
			metav1.StatusReasonRequestEntityTooLarge, 0, "at most 8"},
		"key": {nil, &contract.LimitError{What: "key", Bytes: 9, Limit: 8}, 422,
			metav1.StatusReasonInvalid, 0, "at most 8"},
		"data": {nil, contract.Errorf(contract.Data, "a value is rejected"), 500,
			metav1.StatusReasonInternalError, 0, "a value is rejected"},
	} {
		t.Run(name, func(t *testing.T) {
			if test.ctx == nil {
				test.ctx = t.Context()
			}
			err := storeerrors.InterpretUpdateError(apiError(test.ctx, somePods, test.err),
				somePods, "a")
			var status apierrors.APIStatus
			if !errors.As(err, &status) {
				t.Fatalf("%T: %v", err, err)
			}
			s := status.Status()
			retry := int32(0)
			if s.Details != nil {
				retry = s.Details.RetryAfterSeconds
			}
			if s.Code != test.code || s.Reason != test.reason || retry != test.retry ||
				!strings.Contains(s.Message, test.message) || strings.Contains(s.Message, where) {
				t.Errorf("got %d %s, retry after %d: %s", s.Code, s.Reason, retry, s.Message)
			}
		})
	}
	t.Run("cancelled", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		err := apiError(ctx, somePods, ctx.Err())
		// Upstream asks the error itself for its status, and logs an error that has none.
		if status, ok := err.(apierrors.APIStatus); !errors.Is(err, context.Canceled) || !ok ||
			status.Status().Code != http.StatusGatewayTimeout {
			t.Errorf("%T: %v", err, err)
		}
	})
}

// TestLimits: objects and names that the database cannot hold are refused with the limit in the
// sentence, and cost others nothing.
func TestLimits(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, d dbtest.DB) {
		r := pods(t, openDatabase(t, d, mvcc.Config{}))
		limits := r.mvcc.Limits()
		code := func(err error) int32 {
			t.Helper()
			var status apierrors.APIStatus
			if !errors.As(err, &status) {
				t.Fatalf("%T: %v", err, err)
			}
			return status.Status().Code
		}
		long := strings.Repeat("n", limits.KeyBytes)
		err := r.Create(t.Context(), podKey(long), pod("a"), nil, 0)
		if code(err) != http.StatusUnprocessableEntity ||
			!strings.Contains(err.Error(), fmt.Sprint(limits.KeyBytes)) {
			t.Error(err)
		}
		large := pod("a")
		large.Annotations = map[string]string{"large": strings.Repeat("x", limits.ValueBytes)}
		err = r.Create(t.Context(), podKey("a"), large, nil, 0)
		if code(err) != http.StatusRequestEntityTooLarge ||
			!strings.Contains(err.Error(), fmt.Sprint(limits.ValueBytes)) {
			t.Error(err)
		}
		large.Annotations["large"] = strings.Repeat("x", limits.ValueBytes-1000)
		create(t, r, large)
		whole := podKey(strings.Repeat("n", limits.KeyBytes-len(DefaultPrefix)-len(podKey(""))))
		if err := r.Create(t.Context(), whole, pod("b"), nil, 0); err != nil {
			t.Error(err)
		}
		if err := r.Get(t.Context(), whole, apistorage.GetOptions{}, &example.Pod{}); err != nil {
			t.Error(err)
		}
	})
}

func TestClosedDatabase(t *testing.T) {
	store := memory(t)
	r := pods(t, store)
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"get":    r.Get(t.Context(), podKey("a"), apistorage.GetOptions{}, &example.Pod{}),
		"create": r.Create(t.Context(), podKey("a"), pod("a"), nil, 0),
		"list": func() error {
			_, err := tryList(t.Context(), r, apistorage.ListOptions{})
			return err
		}(),
		"head": func() error { _, err := r.GetCurrentResourceVersion(t.Context()); return err }(),
	} {
		if !apierrors.IsServiceUnavailable(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if r.ReadinessCheck() == nil || store.Ready(t.Context()) == nil {
		t.Error("a closed database is ready")
	}
}

// Clients are told neither where the database is nor who logs in there. The log is, once a minute
// for each class.
func TestUntold(t *testing.T) {
	var log strings.Builder
	r := &objectStore{name: somePods, store: &Store{log: slog.New(slog.NewTextHandler(&log, nil))}}
	for _, class := range []contract.Class{contract.Unavailable, contract.Transient, contract.ReadOnly,
		contract.Fenced, contract.Invalid, contract.Unknown, contract.Denied, contract.Denied} {
		cause := error(contract.Errorf(class, "at db.example.com:5432: refused for %s", "alice"))
		if class == contract.Unknown {
			cause = fmt.Errorf("%w: %w", contract.ErrUnknownOutcome, cause)
		}
		err := r.apiError(t.Context(), cause)
		if strings.Contains(err.Error(), "example") || strings.Contains(err.Error(), "alice") {
			t.Errorf("class %v: %v", class, err)
		}
	}
	if n := strings.Count(log.String(), "db.example.com:5432"); n != 7 {
		t.Errorf("the log has %d lines, want one for each class:\n%s", n, log.String())
	}
}
