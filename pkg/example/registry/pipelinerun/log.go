package pipelinerun

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/rowkeeper/rowkeeper/pkg/example/apis/ci"
)

// LogREST is the subresource pipelineruns/log: the lines that the run has written, as a stream of
// text.
type LogREST struct {
	*follower
}

var (
	_ rest.GetterWithOptions = &LogREST{}
	_ rest.StorageMetadata   = &LogREST{}
)

// ProducesMIMETypes says that the answer is text.
func (*LogREST) ProducesMIMETypes(string) []string { return []string{"text/plain"} }

// ProducesObject says that it is no object.
func (*LogREST) ProducesObject(string) any { return "" }

// New returns an empty run, of which the log is.
func (*LogREST) New() runtime.Object { return &ci.PipelineRun{} }

// Destroy does nothing: what there is to release belongs to the resources.
func (*LogREST) Destroy() {}

// NewGetOptions returns empty parameters.
func (*LogREST) NewGetOptions() (runtime.Object, bool, string) {
	return &ci.PipelineRunLogOptions{}, false, ""
}

// Get returns the stream of the run's lines.
func (r *LogREST) Get(ctx context.Context, name string,
	options runtime.Object) (runtime.Object, error) {
	o, ok := options.(*ci.PipelineRunLogOptions)
	if !ok {
		return nil, fmt.Errorf("%T are not the parameters of pipelineruns/log", options)
	}
	run, err := r.get(ctx, name, o)
	if err != nil {
		return nil, err
	}
	return &logStream{follower: r.follower, run: run, options: o}, nil
}

// logStream is what Get answers with: an object only in that it can be streamed.
type logStream struct {
	*follower
	run     *ci.PipelineRun
	options *ci.PipelineRunLogOptions
}

var _ rest.ResourceStreamer = &logStream{}

func (*logStream) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }
func (*logStream) DeepCopyObject() runtime.Object {
	panic("the stream of a log cannot be copied")
}

// InputStream begins to read. It ends with the request, or when the server stops: the connection is
// then cut, so that nobody takes the log for complete.
func (s *logStream) InputStream(ctx context.Context, _,
	_ string) (stream io.ReadCloser, flush bool, mimeType string, err error) {
	ctx, cancel := context.WithCancel(ctx)
	out, in := io.Pipe()
	go func() {
		defer cancel()
		in.CloseWithError(s.lines(ctx, s.run, s.options, func(lines []string) error {
			_, err := io.WriteString(in, strings.Join(lines, "\n")+"\n")
			return err
		}))
	}()
	return reader{out, cancel}, s.options.Follow, "text/plain", nil
}

// reader ends what writes into it when it is closed.
type reader struct {
	*io.PipeReader
	cancel context.CancelFunc
}

// Read cuts the connection if the log cannot be read to its end, as whoever copies it takes every
// error for the end.
func (r reader) Read(p []byte) (int, error) {
	n, err := r.PipeReader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		panic(http.ErrAbortHandler)
	}
	return n, err
}

func (r reader) Close() error {
	r.cancel()
	return r.PipeReader.Close()
}
