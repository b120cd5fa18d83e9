package storage

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	apistorage "k8s.io/apiserver/pkg/storage"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// retryAfterSeconds is what a client is asked to wait before it repeats a request that certainly
// changed nothing.
const retryAfterSeconds = 1

// apiError translates an error of the database into one that clients understand. It is the only
// place where this is done for Kubernetes' API; storage/etcd has its own. It keeps to one rule: a
// Retry-After is given only when nothing was written, since clients repeat such a request by
// themselves, whatever its verb.
//
//	503 Service Unavailable        the database is away, read-only or closed; nothing was written
//	504 Gateway Timeout            the request's time is over (nothing was written), or the outcome of a write is unknown
//	507 Insufficient Storage       the database has no space left, or no numbers of transactions
//	403 Forbidden                  the store's quota is used up, as for any other quota
//	413, 422                       the object, or its key, is larger than what the database can hold
//	500 Internal Server Error      a person has to look into it
//
// ErrCompacted, ConflictError and FutureRevisionError mean something to the callers and do not
// arrive here.
func apiError(ctx context.Context, resource schema.GroupResource, err error) error {
	var (
		limit    *contract.LimitError
		quota    *contract.QuotaError
		database *contract.Error
	)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, contract.ErrUnknownOutcome):
		// Without the cause, which may say where the database is.
		return apierrors.NewTimeoutError(contract.ErrUnknownOutcome.Error(), 0)
	case ctx.Err() != nil && errors.Is(err, context.DeadlineExceeded):
		return apierrors.NewTimeoutError("the database did not answer within the request's time, "+
			"and nothing was written", retryAfterSeconds)
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		return leftError{err}
	case errors.Is(err, contract.ErrClosed):
		return apierrors.NewServiceUnavailable("the database is closed: the server is shutting down")
	case errors.As(err, &limit):
		return limitError(resource, limit)
	case errors.As(err, &quota):
		return apierrors.NewForbidden(resource, "", quota)
	case errors.As(err, &database):
		return databaseError(resource, database)
	}
	return err
}

// leftError is for a client that has left. Nobody reads it, but upstream logs each error without a
// status as a fault of the server.
type leftError struct{ error }

func (e leftError) Unwrap() error { return e.error }

func (e leftError) Status() metav1.Status {
	return apierrors.NewTimeoutError("the client has left: "+e.Error(), 0).Status()
}

func limitError(resource schema.GroupResource, err *contract.LimitError) error {
	if err.What == "key" {
		return apierrors.NewInvalid(schema.GroupKind{Group: resource.Group,
			Kind: resource.Resource}, "", field.ErrorList{
			field.Invalid(field.NewPath("metadata", "name"), "", fmt.Sprintf(
				"the path of the object, with its namespace and name, has %d bytes; the database "+
					"takes at most %d", err.Bytes, err.Limit)),
		})
	}
	return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf(
		"the object has %d bytes as it is stored; the database takes at most %d", err.Bytes,
		err.Limit))
}

func databaseError(resource schema.GroupResource, err *contract.Error) error {
	switch err.Class {
	case contract.Data: // it is about the object
		return apistorage.NewInternalError(err)
	case contract.Invalid:
		return apistorage.NewInternalError(errors.New("the database is not as this server needs it: " +
			"the server's log says more"))
	case contract.Full:
		return statusError(resource, http.StatusInsufficientStorage, "InsufficientStorage",
			"the database has no room left, and nothing was written. "+logSaysMore, 0)
	default:
		return statusError(resource, http.StatusServiceUnavailable,
			metav1.StatusReasonServiceUnavailable, "the database is not available: "+
				unavailable(err.Class)+". "+logSaysMore, retryAfterSeconds)
	}
}

// logSaysMore is what clients are told in place of an error that may name the database's address or
// path, or who logs in there. These are for the server's log alone.
const logSaysMore = "The server's log says more."

// unavailable says what clients are told of a database that cannot be used.
func unavailable(c contract.Class) string {
	switch c {
	case contract.Denied:
		return "it refuses this server"
	case contract.ReadOnly:
		return "it is read-only"
	case contract.Transient:
		return "it undid the transaction"
	case contract.Fenced, contract.Aborted:
		return "it is not the one that this server has seen"
	}
	return "it does not answer"
}

func (r *objectStore) apiError(ctx context.Context, err error) error {
	return r.store.apiError(ctx, r.name, err)
}

// apiError is the function apiError, and says in the log what clients are not told.
func (s *Store) apiError(ctx context.Context, resource schema.GroupResource, err error) error {
	var database *contract.Error
	if ctx.Err() == nil && errors.As(err, &database) && s.untold.first(database.Class) {
		s.log.Warn("requests fail: the database is not available", "err", err)
	}
	return apiError(ctx, resource, err)
}

// untold remembers what requests have failed of, so that the log is told once a minute.
type untold struct {
	mu   sync.Mutex
	told map[contract.Class]time.Time
}

func (u *untold) first(c contract.Class) bool {
	if c == contract.Data {
		return false // which the client is told, and which is about one object
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if time.Since(u.told[c]) < time.Minute {
		return false
	}
	if u.told == nil {
		u.told = map[contract.Class]time.Time{}
	}
	u.told[c] = time.Now()
	return true
}

func statusError(resource schema.GroupResource, code int32, reason metav1.StatusReason,
	message string, retryAfter int32) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    code,
		Reason:  reason,
		Message: message,
		Details: &metav1.StatusDetails{Group: resource.Group, Kind: resource.Resource,
			RetryAfterSeconds: retryAfter},
	}}
}

// Clients match the texts of these three, so they are the texts that every API server sends.
const (
	listExpired     = "The resourceVersion for the provided list is too old."
	watchExpired    = "The resourceVersion for the provided watch is too old."
	continueExpired = "The provided continue parameter is too old to display a consistent list " +
		"result. You can start a new list without the continue parameter, or use the continue " +
		"token in this response to retrieve the remainder of the results. Continuing with the " +
		"provided token results in an inconsistent list - objects that were created, modified, " +
		"or deleted between the time the first chunk was returned and now may show up in the list."
)

// compactedError is what a list gets whose revision was compacted. A list that is being continued
// gets a token to go on with, at the newest revision. It leads to where the request began: what the
// request has read already goes to nobody.
func compactedError(continuing bool, from, directory contract.Key) error {
	if !continuing {
		return apierrors.NewResourceExpired(listExpired)
	}
	err := apierrors.NewResourceExpired(continueExpired)
	// A revision of -1 in a token asks for the newest one.
	token, tokenErr := apistorage.EncodeContinue(string(from), string(directory), -1)
	if tokenErr != nil {
		return apierrors.NewResourceExpired(listExpired)
	}
	err.ErrStatus.ListMeta.Continue = token
	return err
}

// tooLargeRevision says that a revision does not fit into the 63 bits that revisions have.
func tooLargeRevision(revision uint64) error {
	return apierrors.NewBadRequest(fmt.Sprintf("invalid resource version: %d is larger than any "+
		"that the database can have", revision))
}
