package object

import (
	"bytes"
	"compress/gzip"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
)

func TestSize(t *testing.T) {
	for _, name := range []string{"a", Name("group", 123456)} {
		pod := New(name)
		for i := range 3 {
			data, err := runtime.Encode(Codec(), pod)
			if err != nil {
				t.Fatal(err)
			}
			if len(data) != Bytes() {
				t.Errorf("object %q is %d bytes long after %d updates, want %d", name, len(data), i,
					Bytes())
			}
			if _, _, err := Touch(i*1000+1)(pod, storage.ResponseMeta{}); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestDocuments: large objects have nearly the size that is asked for, and compress, but are not
// one text again and again. Those of two names share nothing that is changed.
func TestDocuments(t *testing.T) {
	defer func() { used = Usual }()
	for _, shape := range []Shape{{Bytes: 20 << 10}, {Bytes: 20 << 10, Protobuf: true}} {
		if err := Use(shape); err != nil {
			t.Fatal(err)
		}
		one, other := New(Name("group", 1)), New(Name("group", 2))
		if _, _, err := Touch(7)(one, storage.ResponseMeta{}); err != nil {
			t.Fatal(err)
		}
		if other.Annotations[count] != number(0) || one.UID == other.UID {
			t.Error("two objects are one")
		}
		data, err := runtime.Encode(Codec(), one)
		if err != nil {
			t.Fatal(err)
		}
		if n := len(data); n > shape.Bytes || n < shape.Bytes*7/10 {
			t.Errorf("%+v: an object has %d bytes", shape, n)
		}
		var packed bytes.Buffer
		z := gzip.NewWriter(&packed)
		if _, err := z.Write(data); err != nil {
			t.Fatal(err)
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		t.Logf("%+v: %d bytes, %d compressed", shape, len(data), packed.Len())
		if by := len(data) / packed.Len(); by < 3 || by > 12 {
			t.Errorf("%+v: an object compresses by %d", shape, by)
		}
		read, err := runtime.Decode(Codec(), data)
		if err != nil || read.(*example.Pod).Annotations[count] != number(7) {
			t.Errorf("%+v: it is read as %v, %v", shape, read, err)
		}
	}
}
