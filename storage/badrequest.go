package storage

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	apistorage "k8s.io/apiserver/pkg/storage"
)

// badRequests answers by 400 what would be answered by 500 otherwise, though it is the client who
// is wrong: a resourceVersion that is no number, where upstream's watch cache returns a plain
// error; and a namespace such as "..", which upstream's registry does not look at when it makes the
// key of a list.
type badRequests struct {
	apistorage.Interface
	resourcePrefix string
}

// Get implements [apistorage.Interface].
func (b badRequests) Get(ctx context.Context, key string, opts apistorage.GetOptions,
	out runtime.Object) error {
	if err := b.check(key, false); err != nil {
		return err
	}
	return badRequest(b.Interface.Get(ctx, key, opts, out))
}

// GetList implements [apistorage.Interface].
func (b badRequests) GetList(ctx context.Context, key string, opts apistorage.ListOptions,
	out runtime.Object) error {
	if err := b.check(key, opts.Recursive); err != nil {
		return err
	}
	return badRequest(b.Interface.GetList(ctx, key, opts, out))
}

// Watch implements [apistorage.Interface].
func (b badRequests) Watch(ctx context.Context, key string,
	opts apistorage.ListOptions) (watch.Interface, error) {
	if err := b.check(key, opts.Recursive); err != nil {
		return nil, err
	}
	w, err := b.Interface.Watch(ctx, key, opts)
	return w, badRequest(err)
}

func (b badRequests) check(key string, recursive bool) error {
	if _, err := apistorage.PrepareKey(b.resourcePrefix, key, recursive); err != nil {
		return apierrors.NewBadRequest(fmt.Sprintf("there can be no namespace and no name as in %q",
			key))
	}
	return nil
}

func badRequest(err error) error {
	var invalid apistorage.InvalidError
	if errors.As(err, &invalid) {
		return apierrors.NewBadRequest(invalid.Error())
	}
	return err
}
