package storage

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apistorage "k8s.io/apiserver/pkg/storage"
)

// corruptError says that what is stored cannot be turned into an object: the transformer rejects it
// (a lost encryption key, flipped bits), or the codec does. Under the feature gate
// AllowUnsafeMalformedObjectDeletion such objects are named in the errors of lists and can be
// deleted unread.
type corruptError struct {
	what     string
	revision int64
	err      error
}

func (e *corruptError) Error() string {
	return fmt.Sprintf("the object stored at revision %d %s: %v", e.revision, e.what, e.err)
}
func (e *corruptError) Unwrap() error { return e.err }

const (
	untransformable = "cannot be decrypted or authenticated"
	undecodable     = "cannot be decoded"
)

// corrupt marks an error as one of the object. A context that ended says nothing about the object.
func corrupt(what string, revision int64, err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return &corruptError{what: what, revision: revision, err: err}
}

// asCorruptObject replaces an error that was caused by a corrupt object by the one that the
// registry recognizes as such.
func asCorruptObject(key string, err error) error {
	var c *corruptError
	if errors.As(err, &c) {
		return apistorage.NewCorruptObjError(key, c)
	}
	return err
}

// maxCorrupt is how many corrupt objects a list names before it gives up.
const maxCorrupt = 100

// listErrors collects what is wrong with the objects of a list. Unless corrupt objects are
// tolerated, the first error ends the list.
type listErrors struct {
	resource schema.GroupResource
	tolerate bool
	corrupt  []*apistorage.StorageError
	fatal    error
	tooMany  bool
}

// tolerated returns an object's error if it does not end the list by itself, and else nil.
func (l *listErrors) tolerated(err error) *corruptError {
	var c *corruptError
	if !l.tolerate || !errors.As(err, &c) {
		return nil
	}
	return c
}

// room is how many more corrupt objects end the list.
func (l *listErrors) room() int { return maxCorrupt - len(l.corrupt) }

// add takes an object's error, and returns whether the list is to be ended.
func (l *listErrors) add(key string, err error) (stop bool) {
	c := l.tolerated(err)
	if c == nil {
		l.fatal = err
		return true
	}
	l.corrupt = append(l.corrupt, apistorage.NewCorruptObjError(key, c))
	l.tooMany = l.room() <= 0
	return l.tooMany
}

// err returns the list's error: the one that ended it, or a status with a cause for every corrupt
// object.
func (l *listErrors) err() error {
	if len(l.corrupt) == 0 {
		return l.fatal
	}
	status := metav1.Status{
		Status: metav1.StatusFailure,
		Code:   http.StatusInternalServerError,
		Reason: metav1.StatusReasonStoreReadError,
		Details: &metav1.StatusDetails{Group: l.resource.Group, Kind: l.resource.Resource,
			Name: "list"},
		// The first error is in the message, too, since layers in between may drop the causes.
		Message: fmt.Sprintf("%d of the stored %s cannot be read; the first: %v", len(l.corrupt),
			l.resource, l.corrupt[0]),
	}
	cause := func(kind metav1.CauseType, key, message string) {
		status.Details.Causes = append(status.Details.Causes,
			metav1.StatusCause{Type: kind, Field: key, Message: message})
	}
	for _, e := range l.corrupt {
		cause(metav1.CauseTypeUnexpectedServerResponse, e.Key, e.Error())
	}
	switch {
	case l.tooMany:
		cause(metav1.CauseTypeTooMany, "", "too many errors, the list is truncated")
	case l.fatal != nil:
		cause(metav1.CauseTypeUnexpectedServerResponse, "", l.fatal.Error())
	}
	return &apierrors.StatusError{ErrStatus: status}
}

// corruptDeletion is what a watcher is told of the deletion of an object whose last state cannot be
// read, and thus not be sent.
func corruptDeletion(err *corruptError) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    http.StatusInternalServerError,
		Reason:  metav1.StatusReasonStoreReadError,
		Message: fmt.Sprintf("saw a DELETED event, but object data is corrupt: %v", err),
	}}
}
