package history

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/rowkeeper/rowkeeper/pkg/history/v1alpha1"
	"github.com/rowkeeper/rowkeeper/storage"
)

// The names of the subresources. The second one is a right only.
const (
	Subresource = "history"
	Earlier     = "earlierhistory"
)

// All stands for the name of an object in requests for the changes of all objects.
const All = "-"

// defaultLimit is how many changes a page has if the request does not say.
const defaultLimit = 50

// mostAtOnce is how many histories a server puts together at a time. Each may hold what the storage
// reads at once, decoded.
const mostAtOnce = 4

// errEnded is for requests that nobody waits for any more.
var errEnded = apierrors.NewTimeoutError("the request ended before the history was complete", 0)

// Serve makes a server answer requests for histories. Call it before the server is made.
func Serve(c *genericapiserver.Config) {
	build := c.BuildHandlerChainFunc
	c.BuildHandlerChainFunc = func(handler http.Handler, c *genericapiserver.Config) http.Handler {
		c.RequestInfoResolver = ofNamespaces{c.RequestInfoResolver}
		return build(&server{handler, c, make(chan struct{}, mostAtOnce)}, c)
	}
}

// ofNamespaces knows that history is a subresource of namespaces. Without it, the path would be
// that of a resource "history" in a namespace.
type ofNamespaces struct{ request.RequestInfoResolver }

func (r ofNamespaces) NewRequestInfo(req *http.Request) (*request.RequestInfo, error) {
	info, err := r.RequestInfoResolver.NewRequestInfo(req)
	if err == nil && info.IsResourceRequest && info.APIGroup == "" && info.Verb == "list" &&
		info.Resource == Subresource && len(info.Parts) == 1 && info.Namespace != "" {
		info.Verb, info.Resource, info.Subresource = "get", "namespaces", Subresource
		info.Name, info.Parts = info.Namespace, []string{"namespaces", info.Namespace, Subresource}
		info.FieldSelector, info.LabelSelector = "", ""
	}
	return info, err
}

// server answers requests for histories, and leaves all others to the next handler.
type server struct {
	next   http.Handler
	config *genericapiserver.Config
	// slots are those of the histories that are put together.
	slots chan struct{}
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	info, ok := request.RequestInfoFrom(r.Context())
	if !ok || !info.IsResourceRequest || info.Verb != "get" || info.Subresource != Subresource ||
		len(info.Parts) != 3 {
		s.next.ServeHTTP(w, r)
		return
	}
	q := &query{server: s, request: r, info: info}
	data, err := q.answer()
	switch {
	case err != nil:
		responsewriters.ErrorNegotiated(err, s.config.Serializer,
			schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}, w, r)
	case q.refused != nil:
		q.refused.send(w)
	case data == nil: // no storage of ours has the resource, and it may have such a subresource itself
		s.next.ServeHTTP(w, r)
	default:
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-cache, private")
		_, _ = w.Write(append(data, '\n')) // nobody is there if it fails
	}
}

// query is a request for a history.
type query struct {
	*server
	request *http.Request
	info    *request.RequestInfo

	// page is what the storage has told, nil if it was not asked.
	page *storage.HistoryPage
	// refused is what the registry has answered in place of a list.
	refused *recorder
}

func (q *query) resource() schema.GroupResource {
	return schema.GroupResource{Group: q.info.APIGroup, Resource: q.info.Resource}
}

func (q *query) all() bool { return q.info.Name == All }

// answer asks for the list of the resource, of which the storage makes a history. It returns this
// encoded, or nothing if no storage was asked.
func (q *query) answer() ([]byte, error) {
	h, objects, err := q.parse()
	if err != nil {
		return nil, err
	}
	name, verb := q.info.Name, "get"
	if q.all() {
		name, verb = "", "list"
	}
	for _, right := range []authorizer.AttributesRecord{q.right("get", Subresource, name),
		q.right(verb, "", name)} {
		if allowed, reason, err := q.may(right); err != nil {
			return nil, err
		} else if !allowed {
			return nil, responsewriters.ForbiddenStatusError(right, reason)
		}
	}
	earlier := q.right("get", Earlier, name)
	h.Earlier, _, err = q.may(earlier)
	if err != nil {
		return nil, err
	}
	select {
	case q.slots <- struct{}{}:
		defer func() { <-q.slots }()
	case <-q.request.Context().Done():
		return nil, errEnded
	}
	list, err := q.list(h)
	switch {
	case err != nil || q.refused != nil || q.page == nil:
		return nil, err
	case h.At != nil && q.page.Omitted:
		return nil, responsewriters.ForbiddenStatusError(earlier,
			"the object at that time is not the one that has the name now")
	case h.At != nil && len(q.page.Changes) == 0:
		none := apierrors.NewNotFound(q.resource(), name)
		none.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: v1alpha1.NoState,
			Message: "the object did not exist then"}}
		return nil, none
	}
	history, err := q.history(list, objects)
	if err != nil {
		return nil, err
	}
	return json.Marshal(history)
}

// right is what a user needs.
func (q *query) right(verb, subresource, name string) authorizer.AttributesRecord {
	user, _ := request.UserFrom(q.request.Context())
	return authorizer.AttributesRecord{User: user, Verb: verb, APIGroup: q.info.APIGroup,
		APIVersion: q.info.APIVersion, Namespace: q.namespace(), Resource: q.info.Resource,
		Subresource: subresource, Name: name, ResourceRequest: true, Path: q.info.Path}
}

// namespace is that of the request. A namespace is in itself, as everywhere, but all of them are in
// none.
func (q *query) namespace() string {
	if q.all() && q.info.APIGroup == "" && q.info.Resource == "namespaces" {
		return ""
	}
	return q.info.Namespace
}

func (q *query) may(right authorizer.AttributesRecord) (allowed bool, reason string, err error) {
	a := q.config.Authorization.Authorizer
	if a == nil { // whoever serves so lets everybody do everything
		return true, "", nil
	}
	decision, reason, err := a.Authorize(q.request.Context(), right)
	if decision == authorizer.DecisionAllow {
		return true, reason, nil
	}
	if err != nil {
		return false, "", apierrors.NewInternalError(err)
	}
	return false, reason, nil
}

// parse reads the parameters.
func (q *query) parse() (h *storage.History, objects bool, err error) {
	h = &storage.History{Resource: q.info.Resource, Limit: defaultLimit, Tell: func(p storage.HistoryPage) { q.page = &p }}
	objects = !q.all()
	if !q.all() {
		if wrong := content.IsPathSegmentName(q.info.Name); len(wrong) > 0 {
			return nil, false, apierrors.NewBadRequest(fmt.Sprintf("no object has the name %q: %s",
				q.info.Name, strings.Join(wrong, "; ")))
		}
		h.Name = q.info.Name
	}
	moments := map[string]**storage.Moment{"at": &h.At}
	if q.all() {
		moments = map[string]**storage.Moment{"since": &h.Since, "until": &h.Until}
	}
	for name, values := range q.request.URL.Query() {
		value := values[0]
		moment := moments[name]
		switch {
		case moment != nil:
			*moment, err = momentOf(value)
		case name == "limit":
			h.Limit, err = strconv.Atoi(value)
			if err != nil || h.Limit < 1 {
				err = fmt.Errorf("%q is no number above 0", value)
			}
			h.Limit = min(h.Limit, storage.MaxHistory)
		case name == "continue":
			h.Continue = value
		case name == "objects" && q.all():
			objects, err = strconv.ParseBool(value)
		case name == "pretty" || name == "timeout":
			// those of other requests, which clients send by themselves
		default:
			err = fmt.Errorf("this request has no such parameter")
		}
		if err != nil {
			return nil, false, apierrors.NewBadRequest(fmt.Sprintf("%s: %v", name, err))
		}
	}
	if h.At != nil && h.Continue != "" {
		return nil, false, apierrors.NewBadRequest("at asks for one state: leave continue out")
	}
	return h, objects, nil
}

// momentOf reads a T.
func momentOf(value string) (*storage.Moment, error) {
	n, err := strconv.ParseInt(value, 10, 64)
	if err == nil && n > 0 {
		return &storage.Moment{Revision: n}, nil
	}
	if d, late := time.ParseDuration(value); late == nil && d >= 0 && err != nil {
		return &storage.Moment{Ago: d}, nil
	}
	if t, err := time.Parse(time.RFC3339Nano, value); err == nil && !t.IsZero() {
		return &storage.Moment{Time: t}, nil
	}
	return nil, fmt.Errorf("%q is no revision, no time such as 2006-01-02T15:04:05Z, and no duration "+
		"such as 10m", value)
}

// list gives the request for the list to the next handler. The limit is for lists of resources that
// are not in a storage of ours.
func (q *query) list(h *storage.History) (*objects, error) {
	info := *q.info
	info.Verb, info.Subresource, info.Name = "list", "", ""
	info.Namespace, info.Parts = q.namespace(), []string{info.Resource}
	if info.Resource == "namespaces" && info.APIGroup == "" {
		info.Namespace = ""
	}
	info.Path = strings.TrimSuffix(info.Path, "/"+q.info.Name+"/"+Subresource)
	ctx := storage.WithHistory(request.WithRequestInfo(unaudited{q.request.Context()}, &info), h)
	r := q.request.Clone(ctx)
	r.Method, r.URL = http.MethodGet, &url.URL{Path: info.Path, RawQuery: "limit=1"}
	r.RequestURI = r.URL.RequestURI()
	r.Header = http.Header{"Accept": {"application/json"}}
	w := &recorder{header: http.Header{}}
	q.next.ServeHTTP(w, r)
	switch {
	case q.page == nil && (w.status == http.StatusNotFound || w.status == http.StatusMethodNotAllowed):
		return nil, nil // nobody lists it, so the storage was not asked
	case w.status >= 300:
		q.refused = w
		return nil, nil
	case q.page == nil:
		return nil, nil
	}
	list := &objects{}
	if err := json.Unmarshal(w.body.Bytes(), list); err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	return list, nil
}

// unaudited is a request that leaves nothing in the audit log. The event of the request for the
// history is there without it. The handler of the list would add the objects to that event where a
// policy asks for answers. A policy that leaves out those of Secrets need not know of their
// history.
type unaudited struct{ context.Context }

func (c unaudited) Value(key any) any {
	v := c.Context.Value(key)
	if _, ok := v.(*audit.AuditContext); ok {
		return nil
	}
	return v
}

// recorder is an answer that is not sent yet.
type recorder struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (w *recorder) Header() http.Header { return w.header }

func (w *recorder) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
}

func (w *recorder) Write(data []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.body.Write(data)
}

// Flush implements [http.Flusher], which lists that are sent in pieces ask for.
func (w *recorder) Flush() {}

func (w *recorder) send(to http.ResponseWriter) {
	for name, values := range w.header {
		to.Header()[name] = values
	}
	to.WriteHeader(w.status)
	_, _ = to.Write(w.body.Bytes()) // nobody is there if it fails
}
