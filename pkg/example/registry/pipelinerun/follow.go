package pipelinerun

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/watch"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"

	"github.com/rowkeeper/rowkeeper/pkg/example/apis/ci"
	v1 "github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/v1"
	"github.com/rowkeeper/rowkeeper/pkg/registry/delegate"
)

// follower puts the pieces of a run's log together. It finds them in the store, whoever has written
// them and whichever server they were written through, so that every replica shows the same log,
// also after a restart.
type follower struct {
	runs, logs *genericregistry.Store
	stop       <-chan struct{}
}

// get returns a run whose log can be shown with these options.
func (f *follower) get(ctx context.Context, name string,
	o *ci.PipelineRunLogOptions) (*ci.PipelineRun, error) {
	if o.SkipLines < 0 || o.TailLines != nil && *o.TailLines < 0 {
		return nil, apierrors.NewBadRequest("skipLines and tailLines must not be negative")
	}
	if o.SkipLines > 0 && o.TailLines != nil {
		return nil, apierrors.NewBadRequest("skipLines and tailLines exclude each other")
	}
	obj, err := f.runs.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return obj.(*ci.PipelineRun), nil
}

// lines calls emit with the lines of the run's log, some at a time, and returns when there are no
// more: when all that is stored was emitted, or if the options say so, when the run has ended or is
// gone. Each line is emitted once. Stored lines are emitted in order, and lines that are written
// meanwhile as they are written: the writer of the log writes one piece after another, with rising
// sequence numbers.
func (f *follower) lines(ctx context.Context, run *ci.PipelineRun, o *ci.PipelineRunLogOptions,
	emit func([]string) error) error {
	emitted := sets.New[types.UID]() // pieces; a sequence number does not tell them apart
	skip := o.SkipLines
	emitPiece := func(l *ci.LogChunk) error {
		if l.Spec.RunUID != run.UID || emitted.Has(l.UID) {
			return nil
		}
		emitted.Insert(l.UID)
		lines := l.Spec.Lines
		if o.Step != "" && l.Spec.Step != o.Step {
			return nil
		}
		if n := min(skip, int64(len(lines))); n > 0 {
			lines, skip = lines[n:], skip-n
		}
		if len(lines) == 0 {
			return nil
		}
		return emit(lines)
	}
	first := true
	// catchUp emits what is stored, and tells whether that is all there will be.
	catchUp := func() (complete bool, version string, err error) {
		// The run is read before its log: if it has ended, its log is complete.
		ended, err := f.ended(ctx, run)
		if err != nil {
			return false, "", err
		}
		pieces, version, err := f.stored(ctx, run)
		if err != nil {
			return false, "", err
		}
		if first && o.TailLines != nil {
			skip = countLines(pieces, run, o.Step) - *o.TailLines
		}
		for i := range pieces {
			if err := emitPiece(&pieces[i]); err != nil {
				return false, "", err
			}
		}
		first = false
		return ended || !o.Follow, version, nil
	}
	for {
		complete, version, err := catchUp()
		if err == nil && complete {
			return nil
		}
		if err == nil {
			err = f.until(ctx, run, version, emitPiece)
		}
		if apierrors.IsTooManyRequests(err) {
			// the server has just started, and its watch caches are not filled yet
			err = f.pause(ctx)
		}
		if err != nil {
			return err
		}
	}
}

// pause waits before something is tried again.
func (f *follower) pause(ctx context.Context) error {
	timer := time.NewTimer(100 * time.Millisecond)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-f.stop:
		return errStopping
	case <-timer.C:
		return nil
	}
}

// ended tells whether the run has ended, or is gone.
func (f *follower) ended(ctx context.Context, run *ci.PipelineRun) (bool, error) {
	obj, err := f.runs.Get(aboutRuns(ctx, "get", run), run.Name, &metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	now := obj.(*ci.PipelineRun)
	return now.UID != run.UID || now.Status.Phase.Finished(), nil
}

// stored lists the pieces, in order, and the version of the list.
func (f *follower) stored(ctx context.Context, run *ci.PipelineRun) ([]ci.LogChunk, string, error) {
	obj, err := f.logs.List(aboutLogs(ctx, "list", run),
		&metainternalversion.ListOptions{FieldSelector: ofRun(run)})
	if err != nil {
		return nil, "", err
	}
	list := obj.(*ci.LogChunkList)
	slices.SortFunc(list.Items, func(a, b ci.LogChunk) int {
		return cmp.Or(cmp.Compare(a.Spec.Sequence, b.Spec.Sequence), cmp.Compare(a.Name, b.Name))
	})
	return list.Items, list.ResourceVersion, nil
}

// until emits pieces as they are written, until the run has ended or is gone, or a watch has ended
// and has to be begun again.
func (f *follower) until(ctx context.Context, run *ci.PipelineRun, version string,
	emitPiece func(*ci.LogChunk) error) error {
	logs, err := f.logs.Watch(aboutLogs(ctx, "watch", run),
		&metainternalversion.ListOptions{FieldSelector: ofRun(run), ResourceVersion: version})
	if err != nil {
		return err
	}
	defer logs.Stop()
	runs, err := f.runs.Watch(aboutRuns(ctx, "watch", run),
		&metainternalversion.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name",
			run.Name), ResourceVersion: version})
	if err != nil {
		return err
	}
	defer runs.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-f.stop:
			return errStopping
		case e, ok := <-logs.ResultChan():
			if !ok || e.Type == watch.Error {
				return nil
			}
			l, isPiece := delegate.Object(e).(*ci.LogChunk)
			if e.Type != watch.Added || !isPiece {
				continue
			}
			if err := emitPiece(l); err != nil {
				return err
			}
		case e, ok := <-runs.ResultChan():
			if !ok || e.Type == watch.Error || e.Type == watch.Deleted {
				return nil
			}
			if r, isRun := delegate.Object(e).(*ci.PipelineRun); isRun &&
				(r.UID != run.UID || r.Status.Phase.Finished()) {
				return nil
			}
		}
	}
}

var errStopping = fmt.Errorf("the server is stopping: ask again, with skipLines for the lines " +
	"that you have")

func aboutRuns(ctx context.Context, verb string, run *ci.PipelineRun) context.Context {
	return delegate.Request(ctx, verb, v1.SchemeGroupVersion.WithResource("pipelineruns"),
		run.Namespace)
}

func aboutLogs(ctx context.Context, verb string, run *ci.PipelineRun) context.Context {
	return delegate.Request(ctx, verb, v1.SchemeGroupVersion.WithResource("logchunks"), run.Namespace)
}

func ofRun(run *ci.PipelineRun) fields.Selector {
	return fields.OneTermEqualSelector("spec.runName", run.Name)
}

func countLines(pieces []ci.LogChunk, run *ci.PipelineRun, step string) int64 {
	n := 0
	for i := range pieces {
		if s := &pieces[i].Spec; s.RunUID == run.UID && (step == "" || s.Step == step) {
			n += len(s.Lines)
		}
	}
	return int64(n)
}
