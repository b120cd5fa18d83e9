package storage

import (
	"context"
	"reflect"
	goruntime "runtime"
	"sync"
	"sync/atomic"
	"weak"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// eventDecoder decodes events once for all watches of the stores of a process that decode in the
// same way. The first watch that needs an event's object decodes it. The others copy it, which
// costs a tenth: every watch gets a copy, as its reader may change it. Events hold their object
// weakly, so that the garbage collector takes it when the watches have passed by. As long as there
// is one watch only, nothing is kept or copied.
type eventDecoder struct {
	*objectCodec
	stores   int
	watchers atomic.Int64
}

// eventDecoders are those of one database.
type eventDecoders struct {
	mu     sync.Mutex
	byWays map[decoding]*eventDecoder
}

// decoding is what makes two stores decode alike.
type decoding struct {
	codec, transformer, versioner any
	resource                      any
	markCorrupt                   bool
}

func (d *eventDecoders) of(c *objectCodec) *eventDecoder {
	way := decoding{c.codec, c.transformer, c.versioner, c.resource, c.markCorrupt}
	if !reflect.ValueOf(way).Comparable() {
		return &eventDecoder{objectCodec: c}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.byWays == nil {
		d.byWays = map[decoding]*eventDecoder{}
	}
	shared := d.byWays[way]
	if shared == nil {
		shared = &eventDecoder{objectCodec: c}
		d.byWays[way] = shared
	}
	shared.stores++
	return shared
}

func (d *eventDecoders) release(shared *eventDecoder) {
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
	decoder  *eventDecoder
	previous bool
}

// decodedObject is never changed.
type decodedObject struct{ runtime.Object }

func (d *eventDecoder) current(ctx context.Context, e *mvcc.Event) (runtime.Object, error) {
	return d.once(ctx, e, e.Value, false)
}

// previous decodes the value before the event, with the event's revision.
func (d *eventDecoder) previous(ctx context.Context, e *mvcc.Event,
	value []byte) (runtime.Object, error) {
	return d.once(ctx, e, value, true)
}

func (d *eventDecoder) once(ctx context.Context, e *mvcc.Event, value []byte,
	previous bool) (runtime.Object, error) {
	if d.watchers.Load() > 1 {
		var fresh *decodedObject
		kept, err := e.Memo(memo{decoder: d, previous: previous}, func() (any, error) {
			obj, err := d.openNew(ctx, e.Key, value, e.Revision)
			fresh = &decodedObject{obj}
			return weak.Make(fresh), err
		})
		if err == nil {
			if shared := kept.(weak.Pointer[decodedObject]).Value(); shared != nil {
				return shared.DeepCopyObject(), nil
			}
		}
		// It is collected already. Or it failed, perhaps since the context of the watch that tried
		// ended. This one tries for itself.
		goruntime.KeepAlive(fresh)
	}
	return d.openNew(ctx, e.Key, value, e.Revision)
}

// openNew decrypts and decodes.
func (c *objectCodec) openNew(ctx context.Context, key contract.Key, stored []byte,
	revision contract.Revision) (runtime.Object, error) {
	data, _, err := c.open(ctx, key, revision, stored)
	if err != nil {
		return nil, err
	}
	return c.decodeNew(data, revision)
}
