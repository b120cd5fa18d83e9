package storage

import (
	"context"
	"reflect"
	goruntime "runtime"
	"sync"
	"sync/atomic"
	"weak"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// sharedDecoder decodes the events of all stores of a process that decode in the same way, once for all of their watches: the first one
// that needs an event's object decodes it, the others copy it, which costs a tenth. Every watch gets a copy, as its reader may change it.
// Events hold their object weakly, so that the garbage collector takes it when the watches have passed by. As long as there is one watch
// only, nothing is kept or copied.
type sharedDecoder struct {
	*objectCodec
	stores   int
	watchers atomic.Int64
}

// sharedDecoders are those of one database.
type sharedDecoders struct {
	mu     sync.Mutex
	byWays map[decoding]*sharedDecoder
}

// decoding is what makes two stores decode alike.
type decoding struct {
	codec, transformer, versioner any
	resource                      any
	markCorrupt                   bool
}

func (d *sharedDecoders) of(c *objectCodec) *sharedDecoder {
	way := decoding{c.codec, c.transformer, c.versioner, c.resource, c.markCorrupt}
	if !reflect.ValueOf(way).Comparable() {
		return &sharedDecoder{objectCodec: c}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.byWays == nil {
		d.byWays = map[decoding]*sharedDecoder{}
	}
	shared := d.byWays[way]
	if shared == nil {
		shared = &sharedDecoder{objectCodec: c}
		d.byWays[way] = shared
	}
	shared.stores++
	return shared
}

func (d *sharedDecoders) release(shared *sharedDecoder) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if shared.stores--; shared.stores > 0 {
		return
	}
	for way, s := range d.byWays {
		if s == shared {
			delete(d.byWays, way)
		}
	}
}

// memo names what is kept with an event.
type memo struct {
	decoder  *sharedDecoder
	previous bool
}

// sharedObject is never changed.
type sharedObject struct{ runtime.Object }

func (d *sharedDecoder) current(ctx context.Context, e *mvcc.Event) (runtime.Object, error) {
	return d.once(ctx, e, e.Value, false)
}

// previous decodes the value before the event, with the event's revision.
func (d *sharedDecoder) previous(ctx context.Context, e *mvcc.Event, value []byte) (runtime.Object, error) {
	return d.once(ctx, e, value, true)
}

func (d *sharedDecoder) once(ctx context.Context, e *mvcc.Event, value []byte, previous bool) (runtime.Object, error) {
	if d.watchers.Load() > 1 {
		var fresh *sharedObject
		kept, err := e.Memo(memo{decoder: d, previous: previous}, func() (any, error) {
			obj, err := d.openNew(ctx, e.Key, value, e.Revision)
			fresh = &sharedObject{obj}
			return weak.Make(fresh), err
		})
		if err == nil {
			if shared := kept.(weak.Pointer[sharedObject]).Value(); shared != nil {
				return shared.DeepCopyObject(), nil
			}
		}
		// It is collected already; or it failed, perhaps since the context of the watch that tried ended. This one tries for itself.
		goruntime.KeepAlive(fresh)
	}
	return d.openNew(ctx, e.Key, value, e.Revision)
}

// openNew decrypts and decodes.
func (c *objectCodec) openNew(ctx context.Context, key mvcc.Key, stored []byte, revision mvcc.Revision) (runtime.Object, error) {
	data, _, err := c.open(ctx, key, revision, stored)
	if err != nil {
		return nil, err
	}
	return c.decodeNew(data, revision)
}
