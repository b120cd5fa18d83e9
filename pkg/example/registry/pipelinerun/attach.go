package pipelinerun

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/remotecommand"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/klog/v2"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"github.com/rowkeeper/rowkeeper/pkg/example/apis/ci"
)

// AttachREST is the subresource pipelineruns/attach: a connection, upgraded to WebSocket, on which
// the lines that the run writes arrive as they are written. It speaks the protocol of "kubectl
// attach", so that client-go's remotecommand executors can be used: lines on the channel of stdout,
// and at the end a Status on that of errors.
type AttachREST struct {
	*follower
}

var _ rest.Connecter = &AttachREST{}

// New returns an empty run, to which the connection is made.
func (*AttachREST) New() runtime.Object { return &ci.PipelineRun{} }

// Destroy does nothing: what there is to release belongs to the resources.
func (*AttachREST) Destroy() {}

// ConnectMethods are those with which a connection can be upgraded.
func (*AttachREST) ConnectMethods() []string { return []string{http.MethodGet} }

// NewConnectOptions returns empty parameters.
func (*AttachREST) NewConnectOptions() (runtime.Object, bool, string) {
	return &ci.PipelineRunLogOptions{}, false, ""
}

// Connect returns the handler of the connection. Unless the client asks for lines that were written
// before, it gets the lines that are written from now on.
func (r *AttachREST) Connect(ctx context.Context, name string, options runtime.Object,
	responder rest.Responder) (http.Handler, error) {
	o, ok := options.(*ci.PipelineRunLogOptions)
	if !ok {
		return nil, fmt.Errorf("%T are not the parameters of pipelineruns/attach", options)
	}
	run, err := r.get(ctx, name, o)
	if err != nil {
		return nil, err
	}
	live := *o
	live.Follow = true
	if live.TailLines == nil && live.SkipLines == 0 {
		live.TailLines = new(int64(0))
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if !wsstream.IsWebSocketRequest(req) {
			responder.Error(apierrors.NewBadRequest("attaching to a run needs a connection that " +
				"is upgraded to WebSocket"))
			return
		}
		if err := r.serve(ctx, w, req, run, &live); err != nil {
			klog.FromContext(ctx).V(4).Info("An attached connection ended", "run", klog.KObj(run),
				"err", err)
		}
	}), nil
}

// writeTimeout is how long a client may take to read a message. One that does not is cut off.
const writeTimeout = 30 * time.Second

// serve upgrades the connection and sends lines until the run has ended, or the client has gone.
func (r *AttachREST) serve(ctx context.Context, w http.ResponseWriter, req *http.Request,
	run *ci.PipelineRun, o *ci.PipelineRunLogOptions) error {
	channels := []wsstream.ChannelType{
		remotecommand.StreamStdIn:  wsstream.IgnoreChannel,
		remotecommand.StreamStdOut: wsstream.WriteChannel,
		remotecommand.StreamStdErr: wsstream.IgnoreChannel,
		remotecommand.StreamErr:    wsstream.WriteChannel,
		remotecommand.StreamResize: wsstream.ReadChannel,
	}
	conn := wsstream.NewConn(map[string]wsstream.ChannelProtocolConfig{
		remotecommand.StreamProtocolV5Name: {Binary: true, Channels: channels},
		remotecommand.StreamProtocolV4Name: {Binary: true, Channels: channels},
		"":                                 {Binary: true, Channels: channels},
	})
	_, streams, err := conn.Open(w, req)
	if err != nil {
		return err
	}
	defer conn.Close()

	// All that the client sends is ignored, but its going away is not. It may close its input, and
	// go on, so that this is seen by the channel of resizing.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		defer cancel()
		// however it ends, it has ended
		_, _ = io.Copy(io.Discard, streams[remotecommand.StreamResize])
	}()

	write := func(stream int, text []byte) error {
		conn.SetWriteDeadline(writeTimeout)
		_, err := streams[stream].Write(text)
		return err
	}
	err = r.lines(ctx, run, o, func(lines []string) error {
		return write(remotecommand.StreamStdOut, []byte(strings.Join(lines, "\n")+"\n"))
	})
	status := metav1.Status{Status: metav1.StatusSuccess}
	if err != nil {
		status = apierrors.NewInternalError(err).ErrStatus
	}
	text, encodeErr := json.Marshal(status)
	return errors.Join(err, encodeErr, write(remotecommand.StreamErr, text))
}
