// Package object makes the objects that the bench writes: pods of the example API in
// k8s.io/apiserver. They have 1,024 bytes of JSON, or what [Use] says.
package object

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/apis/example/install"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	"k8s.io/apiserver/pkg/storage"
)

// Shape is how objects are stored.
type Shape struct {
	// Bytes is the size of an object as JSON. Up to 4,096, all have exactly this size, and most of
	// it is text that does not compress. Larger ones have nearly this size, and what the objects of
	// a cluster have: see document.go.
	Bytes int
	// Protobuf is how kube-apiserver stores its own kinds. Others are stored as JSON.
	Protobuf bool
	// Compressed values went through zstd in the client's process.
	Compressed bool
}

func (s Shape) String() string {
	form := "JSON"
	if s.Protobuf {
		form = "protobuf"
	}
	if s.Compressed {
		form += ", compressed by zstd"
	}
	return fmt.Sprintf("objects of %d bytes of JSON, stored as %s", s.Bytes, form)
}

// Usual is the shape of objects unless something else is asked for.
var Usual = Shape{Bytes: 1024}

// used is the shape that counts.
var used = Usual

// Use has objects of a shape made from now on. It is called before anything else.
func Use(s Shape) error {
	if s.Bytes < 512 || s.Bytes > 1<<20 {
		return fmt.Errorf("objects of %d bytes cannot be made: name 512 to %d", s.Bytes, 1<<20)
	}
	used = s
	if used.Bytes > paddedUpTo {
		made() // so that nobody waits for them when it is measured
	}
	return nil
}

// Bytes is how large objects are.
func Bytes() int { return used.Bytes }

// paddedUpTo is the size of the largest objects that are filled up with text without meaning.
const paddedUpTo = 4096

const (
	namespace = "bench"
	// Prefix begins the keys of all objects, unless a line asks for another one.
	Prefix = "/pods"

	padding = "bench.example.com/padding"
	count   = "bench.example.com/count"
)

// Resource names the objects in errors and metrics.
var Resource = schema.GroupResource{Group: example.GroupName, Resource: "pods"}

var scheme = func() *runtime.Scheme {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	return scheme
}()

// asJSON stores the objects as JSON of version v1.
var asJSON = serializer.NewCodecFactory(scheme).LegacyCodec(examplev1.SchemeGroupVersion)

// Codec stores the objects in version v1.
func Codec() runtime.Codec {
	if !used.Protobuf {
		return asJSON
	}
	s := protobuf.NewSerializer(scheme, scheme)
	return serializer.NewCodecFactory(scheme).CodecForVersions(s, s, examplev1.SchemeGroupVersion,
		runtime.InternalGroupVersioner)
}

// New makes an object. Names have up to 24 characters.
func New(name string) *example.Pod {
	if used.Bytes > paddedUpTo {
		return document(name)
	}
	return padded(name, pad(name))
}

func padded(name, text string) *example.Pod {
	return &example.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:   namespace,
			Name:        name,
			Annotations: map[string]string{count: number(0), padding: text},
		},
		Spec: example.PodSpec{NodeName: "node-0"},
	}
}

// Empty and EmptyList make what objects are read into.
func Empty() runtime.Object     { return &example.Pod{} }
func EmptyList() runtime.Object { return &example.PodList{} }

// Key is where an object of this name is stored, below a prefix.
func Key(prefix, name string) string { return prefix + "/" + namespace + "/" + name }

// Name is the i-th name of a group of objects.
func Name(group string, i int) string { return fmt.Sprintf("%s-%09d", group, i) }

// Touch returns the change that the lines make to an object: its count, of which the size stays the
// same.
func Touch(i int) storage.UpdateFunc {
	return storage.SimpleUpdate(func(current runtime.Object) (runtime.Object, error) {
		pod := current.(*example.Pod)
		if pod.Annotations == nil {
			return nil, fmt.Errorf("object %q has no annotations", pod.Name)
		}
		pod.Annotations[count] = number(i)
		return pod, nil
	})
}

// Revision is the resourceVersion of an object that was read or written.
func Revision(o runtime.Object) (int64, error) {
	return strconv.ParseInt(o.(*example.Pod).ResourceVersion, 10, 64)
}

// KeyFunc and Attributes are what a watch cache needs.
func KeyFunc(o runtime.Object) (string, error) {
	return Key(Prefix, o.(*example.Pod).Name), nil
}

// Attributes are an object's labels and fields.
func Attributes(o runtime.Object) (labels.Set, fields.Set, error) {
	pod := o.(*example.Pod)
	return pod.Labels, fields.Set{"metadata.name": pod.Name, "metadata.namespace": pod.Namespace},
		nil
}

func number(i int) string { return fmt.Sprintf("%012d", i) }

// noise is text that does not compress, longer than two objects.
var noise = sync.OnceValue(func() string {
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	r := rand.New(rand.NewPCG(1, 2))
	b := make([]byte, 1<<16)
	for i := range b {
		b[i] = letters[r.IntN(len(letters))]
	}
	return string(b)
})

// overhead is the size of an object without a name and padding.
var overhead = sync.OnceValue(func() int {
	const name = "n" // an empty one would be left out
	data, err := runtime.Encode(asJSON, padded(name, ""))
	utilruntime.Must(err)
	return len(data) - len(name)
})

// pad returns the text that fills up an object of this name; objects with different names mostly
// have different ones.
func pad(name string) string {
	length := used.Bytes - overhead() - len(name)
	var sum uint32
	for i := range len(name) {
		sum = sum*31 + uint32(name[i])
	}
	from := int(sum) % (len(noise()) - used.Bytes)
	return noise()[from : from+length]
}
