// Package api speaks HTTP to servers: each method is one request, which is never repeated, and its
// answer.
package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"k8s.io/client-go/rest"

	"github.com/rowkeeper/rowkeeper/hack/torture/internal/history"
	"github.com/rowkeeper/rowkeeper/hack/torture/internal/rows"
)

// The resources. Pipelines are the example API's richest kind; pieces of logs are a kind with
// nothing but data.
const (
	Pipelines = "pipelines"
	Chunks    = "logchunks"
)

// Endpoint is a server as clients find it.
type Endpoint struct {
	// URL has no slash at its end.
	URL string
	// HTTP is for requests, Watch for watches, so that a burst of the former does not wait for the
	// latter's streams.
	HTTP, Watch *http.Client
}

// Dial makes the clients of a server. url replaces the configuration's if it is not empty.
func Dial(config *rest.Config, override string) (*Endpoint, error) {
	tlsConfig, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, err
	}
	e := &Endpoint{URL: config.Host}
	if override != "" {
		e.URL = override
	}
	for _, client := range []**http.Client{&e.HTTP, &e.Watch} {
		*client = &http.Client{Transport: &http.Transport{
			TLSClientConfig:   tlsConfig,
			ForceAttemptHTTP2: true,
			// A server that does not answer is found out, so that clients connect anew when it is
			// back.
			HTTP2: &http.HTTP2Config{SendPingTimeout: 5 * time.Second,
				PingTimeout: 5 * time.Second},
			MaxIdleConnsPerHost: 64,
		}}
	}
	return e, nil
}

// Close closes idle connections.
func (e *Endpoint) Close() {
	e.HTTP.CloseIdleConnections()
	e.Watch.CloseIdleConnections()
}

// StatusError is an answer that is no success.
type StatusError struct {
	Code       int
	Reason     string
	Message    string
	RetryAfter bool
}

func (e *StatusError) Error() string {
	return fmt.Sprintf("%d %s: %s", e.Code, e.Reason, e.Message)
}

// Classify says what an error leaves known. A request without an answer is unknown.
func Classify(err error) (history.Outcome, int) {
	var status *StatusError
	switch {
	case err == nil:
		return history.Done, http.StatusOK
	case !errors.As(err, &status):
		return history.Unknown, 0
	case status.Code == http.StatusConflict, status.Code == http.StatusNotFound:
		return history.Refused, status.Code
	case status.RetryAfter, status.Code == http.StatusInsufficientStorage,
		status.Code == http.StatusTooManyRequests:
		return history.NotDone, status.Code
	}
	return history.Unknown, status.Code
}

// Path is that of a resource in a namespace, or in all if it is empty.
func Path(resource, namespace, name string) string {
	path := "/apis/ci.rowkeeper.dev/v1/"
	if namespace != "" {
		path += "namespaces/" + namespace + "/"
	}
	path += resource
	if name != "" {
		path += "/" + name
	}
	return path
}

// do sends a request and returns the body of a successful answer.
func (e *Endpoint) do(ctx context.Context, method, path, contentType string,
	body []byte) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, method, e.URL+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if contentType != "" {
		request.Header.Set("Content-Type", contentType)
	}
	response, err := e.HTTP.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if response.StatusCode >= 300 {
		return nil, statusError(response, content)
	}
	return content, err
}

func statusError(response *http.Response, content []byte) error {
	e := &StatusError{Code: response.StatusCode,
		RetryAfter: response.Header.Get("Retry-After") != ""}
	var status struct {
		Reason, Message string
		Details         struct{ RetryAfterSeconds int }
	}
	if json.Unmarshal(content, &status) == nil {
		e.Reason, e.Message = status.Reason, status.Message
		e.RetryAfter = e.RetryAfter || status.Details.RetryAfterSeconds > 0
	} else {
		e.Message = string(content[:min(len(content), 200)])
	}
	return e
}

func object(resource string, content []byte) (*history.Object, error) {
	var s rows.Stored
	if err := json.Unmarshal(content, &s); err != nil {
		return nil, err
	}
	o, err := s.Object(resource)
	return &o, err
}

// Body is the JSON of an object. A resourceVersion of 0 is left out.
func Body(o history.Object) []byte {
	resource, namespace, name := history.Split(o.Key)
	metadata := map[string]any{
		"name": name, "namespace": namespace,
		"labels":      map[string]string{rows.ColourLabel: o.Colour},
		"annotations": map[string]string{rows.ValueAnnotation: o.Value},
	}
	if o.RV != 0 {
		metadata["resourceVersion"] = strconv.FormatInt(o.RV, 10)
	}
	body := map[string]any{"apiVersion": "ci.rowkeeper.dev/v1", "metadata": metadata}
	if resource == Pipelines {
		body["kind"] = "Pipeline"
		body["spec"] = map[string]any{"image": o.Image,
			"steps": []any{map[string]any{"name": "main", "command": []string{"make"}}}}
	} else {
		body["kind"] = "LogChunk"
		body["spec"] = map[string]any{"runName": "torture",
			"runUID": "5f0e0f5c-6e1f-4f43-9a39-0d9d3c1f6f11", "lines": []string{"a line"}}
	}
	content, err := json.Marshal(body)
	if err != nil {
		panic(err) // it holds nothing but strings
	}
	return content
}

// Create creates an object.
func (e *Endpoint) Create(ctx context.Context, o history.Object) (*history.Object, error) {
	resource, namespace, _ := history.Split(o.Key)
	content, err := e.do(ctx, http.MethodPost, Path(resource, namespace, ""), "application/json",
		Body(o))
	if err != nil {
		return nil, err
	}
	return object(resource, content)
}

// Update replaces the object of the resourceVersion.
func (e *Endpoint) Update(ctx context.Context, o history.Object) (*history.Object, error) {
	resource, namespace, name := history.Split(o.Key)
	content, err := e.do(ctx, http.MethodPut, Path(resource, namespace, name), "application/json",
		Body(o))
	if err != nil {
		return nil, err
	}
	return object(resource, content)
}

// Patch changes value and colour, whatever the resourceVersion is.
func (e *Endpoint) Patch(ctx context.Context, o history.Object) (*history.Object, error) {
	resource, namespace, name := history.Split(o.Key)
	content, err := e.do(ctx, http.MethodPatch, Path(resource, namespace, name),
		"application/merge-patch+json",
		fmt.Appendf(nil, `{"metadata":{"labels":{%q:%q},"annotations":{%q:%q}}}`, rows.ColourLabel,
			o.Colour, rows.ValueAnnotation, o.Value))
	if err != nil {
		return nil, err
	}
	return object(resource, content)
}

// Delete deletes the object of the resourceVersion.
func (e *Endpoint) Delete(ctx context.Context, key string, rv int64) error {
	resource, namespace, name := history.Split(key)
	_, err := e.do(ctx, http.MethodDelete, Path(resource, namespace, name), "application/json",
		fmt.Appendf(nil,
			`{"apiVersion":"v1","kind":"DeleteOptions","preconditions":{"resourceVersion":"%d"}}`,
			rv))
	return err
}

// Remove deletes whatever has the key, and returns the answer.
func (e *Endpoint) Remove(ctx context.Context, key string) ([]byte, error) {
	resource, namespace, name := history.Split(key)
	return e.do(ctx, http.MethodDelete, Path(resource, namespace, name), "", nil)
}

// Get reads an object.
func (e *Endpoint) Get(ctx context.Context, key string) (*history.Object, error) {
	resource, namespace, name := history.Split(key)
	content, err := e.do(ctx, http.MethodGet, Path(resource, namespace, name), "", nil)
	if err != nil {
		return nil, err
	}
	return object(resource, content)
}

// Query is the query of a selector.
func Query(s history.Selector) url.Values {
	q := url.Values{}
	if s.Colour != "" {
		q.Set("labelSelector", rows.ColourLabel+"="+s.Colour)
	}
	switch {
	case s.Image != "":
		q.Set("fieldSelector", "spec.image="+s.Image)
	case s.Name != "":
		q.Set("fieldSelector", "metadata.name="+s.Name)
	}
	return q
}

// Page is a page of a list.
type Page struct {
	RV       int64
	Items    []history.Object
	Continue string
}

// List reads a page.
func (e *Endpoint) List(ctx context.Context, s history.Selector, q url.Values) (*Page, error) {
	content, err := e.do(ctx, http.MethodGet, Path(s.Resource, s.Namespace, "")+"?"+q.Encode(), "",
		nil)
	if err != nil {
		return nil, err
	}
	var list struct {
		Metadata struct{ ResourceVersion, Continue string }
		Items    []rows.Stored
	}
	if err := json.Unmarshal(content, &list); err != nil {
		return nil, err
	}
	p := &Page{Continue: list.Metadata.Continue}
	if p.RV, err = strconv.ParseInt(list.Metadata.ResourceVersion, 10, 64); err != nil {
		return nil, err
	}
	for i := range list.Items {
		o, err := list.Items[i].Object(s.Resource)
		if err != nil {
			return nil, err
		}
		p.Items = append(p.Items, o)
	}
	return p, nil
}

// InitialEventsEnd is the annotation of the bookmark after the initial events.
const InitialEventsEnd = "k8s.io/initial-events-end"

// Follow sends a watch and calls each for every event until the stream ends. It returns why,
// *StatusError if the server says so.
func (e *Endpoint) Follow(ctx context.Context, s history.Selector, q url.Values,
	each func(history.Event)) error {
	q.Set("watch", "true")
	request, err := http.NewRequestWithContext(ctx, http.MethodGet,
		e.URL+Path(s.Resource, s.Namespace, "")+"?"+q.Encode(), nil)
	if err != nil {
		return err
	}
	response, err := e.Watch.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		content, err := io.ReadAll(response.Body)
		if err != nil {
			return err
		}
		return statusError(response, content)
	}
	in := json.NewDecoder(response.Body)
	for {
		var event struct {
			Type   string
			Object json.RawMessage
		}
		if err := in.Decode(&event); err != nil {
			return err
		}
		if event.Type == "ERROR" {
			var status struct {
				Code            int
				Reason, Message string
			}
			if err := json.Unmarshal(event.Object, &status); err != nil {
				return err
			}
			return &StatusError{Code: status.Code, Reason: status.Reason, Message: status.Message}
		}
		var stored rows.Stored
		if err := json.Unmarshal(event.Object, &stored); err != nil {
			return err
		}
		o, err := stored.Object(s.Resource)
		if err != nil {
			return err
		}
		ev := history.Event{Type: history.EventType(event.Type), Object: o}
		if ev.Type == history.Bookmark {
			ev.Object = history.Object{RV: o.RV}
			ev.InitialEnd = stored.Metadata.Annotations[InitialEventsEnd] == "true"
		}
		each(ev)
	}
}

// Ready implements load.Endpoint.
func (e *Endpoint) Ready(ctx context.Context) error { return e.Check(ctx, "/readyz") }

// Check asks for one of the server's health checks, such as /readyz.
func (e *Endpoint) Check(ctx context.Context, path string) error {
	_, err := e.do(ctx, http.MethodGet, path, "", nil)
	return err
}

// Read reads a path.
func (e *Endpoint) Read(ctx context.Context, path string) ([]byte, error) {
	return e.do(ctx, http.MethodGet, path, "", nil)
}

// Metrics reads /metrics.
func (e *Endpoint) Metrics(ctx context.Context) ([]byte, error) {
	return e.do(ctx, http.MethodGet, "/metrics", "", nil)
}
