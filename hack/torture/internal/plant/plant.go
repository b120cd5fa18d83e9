// Package plant falsifies a server's answers, to test that the checker finds it. It is a proxy that
// is wrong in the ways in which stores are wrong.
package plant

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rowkeeper/rowkeeper/hack/torture/internal/api"
)

// Bug is what the proxy does wrong.
type Bug string

// The bugs.
const (
	// DropEvent leaves out one event in 500, ReorderEvents exchanges two neighbours as often,
	// RepeatEvent sends one twice.
	DropEvent     Bug = "drop one event in 500"
	ReorderEvents Bug = "reorder two events in 500"
	RepeatEvent   Bug = "send one event in 500 twice"
	// BookmarkAhead puts a bookmark before the event that it covers, once in 100.
	BookmarkAhead Bug = "bookmark ahead of one event in 100"
	// StaleList answers one list in 20 as the one before it was answered, StaleGet one get in 20.
	StaleList Bug = "serve a stale list"
	StaleGet  Bug = "serve a stale object"
	// ListHole leaves an object out of one list in 20.
	ListHole Bug = "leave an object out of a list"
	// NeverWritten answers one creation in 50 with 201 and forwards it never, WrittenLater a moment
	// after the answer.
	NeverWritten Bug = "acknowledge a write and drop it"
	WrittenLater Bug = "acknowledge a write before it is committed"
	// RefusedButWritten answers one update in 50 that nothing was written, though it was.
	RefusedButWritten Bug = "refuse a write that is committed"
)

// Bugs are all bugs.
func Bugs() []Bug {
	return []Bug{DropEvent, ReorderEvents, RepeatEvent, BookmarkAhead, StaleList, StaleGet,
		ListHole, NeverWritten, WrittenLater, RefusedButWritten}
}

// Proxy is a proxy with a bug.
type Proxy struct {
	URL string

	bug    Bug
	server http.Server
	target *api.Endpoint

	events, lists, gets, creations, updates, newest atomic.Int64

	mu    sync.Mutex
	stale map[string]saved
}

type saved struct {
	header http.Header
	body   []byte
}

// New starts a proxy to a server.
func New(target *api.Endpoint, bug Bug) (*Proxy, error) {
	u, err := url.Parse(target.URL)
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{URL: "http://" + listener.Addr().String(), bug: bug, target: target,
		stale: map[string]saved{}}
	p.server.Handler = &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(u) },
		Transport:     p,
		FlushInterval: -1,
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) {
			w.WriteHeader(http.StatusBadGateway)
		},
	}
	go func() { _ = p.server.Serve(listener) }() // until Close
	return p, nil
}

// Close ends the proxy.
func (p *Proxy) Close() error { return p.server.Close() }

// RoundTrip implements http.RoundTripper.
func (p *Proxy) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.URL.Query().Get("watch") == "true" {
		response, err := p.target.Watch.Do(clean(request))
		if err == nil && response.StatusCode == http.StatusOK {
			response.Body = p.changed(response.Body)
			response.Header.Del("Content-Length")
		}
		return response, err
	}
	switch {
	case (p.bug == NeverWritten || p.bug == WrittenLater) && request.Method == http.MethodPost &&
		p.creations.Add(1)%50 == 0:
		return p.acknowledge(request)
	case p.bug == RefusedButWritten && request.Method == http.MethodPut && p.updates.Add(1)%50 == 0:
		response, err := p.target.HTTP.Do(clean(request))
		if err != nil || response.StatusCode >= 300 {
			return response, err
		}
		_ = response.Body.Close()
		return answer(request, http.StatusServiceUnavailable, http.Header{"Retry-After": {"1"}},
			[]byte("{}")), nil
	}
	response, err := p.target.HTTP.Do(clean(request))
	if err != nil || response.StatusCode >= 300 {
		return response, err
	}
	body, err := io.ReadAll(response.Body)
	_ = response.Body.Close()
	if err != nil {
		return nil, err
	}
	response.Header.Del("Content-Length")
	body = p.change(request, response.Header, body)
	return answer(request, response.StatusCode, response.Header, body), nil
}

// clean makes a request of a client of the one that the proxy was asked.
func clean(request *http.Request) *http.Request {
	out := request.Clone(request.Context())
	out.RequestURI = ""
	out.Header.Del("Accept-Encoding")
	return out
}

func answer(request *http.Request, code int, header http.Header, body []byte) *http.Response {
	if header.Get("Content-Type") == "" {
		header.Set("Content-Type", "application/json")
	}
	return &http.Response{StatusCode: code, Header: header,
		Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)),
		Request: request,
		Proto:   "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1}
}

// change changes a successful answer.
func (p *Proxy) change(request *http.Request, header http.Header, body []byte) []byte {
	var o struct {
		Metadata struct{ ResourceVersion string }
		Items    []json.RawMessage
	}
	if json.Unmarshal(body, &o) != nil {
		return body
	}
	if rv, err := strconv.ParseInt(o.Metadata.ResourceVersion, 10, 64); err == nil &&
		rv > p.newest.Load() {
		p.newest.Store(rv)
	}
	if request.Method != http.MethodGet {
		return body
	}
	isList := o.Items != nil || strings.HasSuffix(request.URL.Path, api.Pipelines) ||
		strings.HasSuffix(request.URL.Path, api.Chunks)
	count := &p.gets
	if isList {
		count = &p.lists
	}
	switch {
	case p.bug == StaleList && isList, p.bug == StaleGet && !isList:
		key := request.URL.String()
		p.mu.Lock()
		defer p.mu.Unlock()
		if old, ok := p.stale[key]; ok && count.Add(1)%20 == 0 {
			return old.body
		}
		p.stale[key] = saved{header, body}
	case p.bug == ListHole && len(o.Items) > 0 && count.Add(1)%20 == 0:
		var whole map[string]any
		if json.Unmarshal(body, &whole) != nil {
			return body
		}
		whole["items"] = whole["items"].([]any)[1:]
		if changed, err := json.Marshal(whole); err == nil {
			return changed
		}
	}
	return body
}

// acknowledge answers a creation that has not been done.
func (p *Proxy) acknowledge(request *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(request.Body)
	if err != nil {
		return nil, err
	}
	var o map[string]any
	if err := json.Unmarshal(body, &o); err != nil {
		return nil, err
	}
	metadata, ok := o["metadata"].(map[string]any)
	if !ok {
		return nil, errors.New("the object has no metadata")
	}
	metadata["resourceVersion"] = strconv.FormatInt(p.newest.Load()+1, 10)
	content, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	if p.bug == WrittenLater {
		later, err := http.NewRequest(http.MethodPost, request.URL.String(), bytes.NewReader(body))
		if err != nil {
			return nil, err
		}
		later.Header = request.Header.Clone()
		later.Header.Del("Content-Length")
		time.AfterFunc(200*time.Millisecond, func() {
			if response, err := p.target.HTTP.Do(later); err == nil {
				_ = response.Body.Close()
			}
		})
	}
	return answer(request, http.StatusCreated, http.Header{}, content), nil
}

// changed changes the lines of a watch.
func (p *Proxy) changed(in io.ReadCloser) io.ReadCloser {
	out, w := io.Pipe()
	go func() {
		defer in.Close()
		lines := bufio.NewReader(in)
		var held []byte
		for {
			line, err := lines.ReadBytes('\n')
			if err != nil {
				w.CloseWithError(err)
				return
			}
			if _, err := w.Write(p.event(line, &held)); err != nil {
				return
			}
		}
	}()
	return &piped{out, in}
}

// piped closes both ends of a changed body.
type piped struct {
	*io.PipeReader
	in io.Closer
}

func (b *piped) Close() error { return errors.Join(b.PipeReader.Close(), b.in.Close()) }

// event returns what is sent in the place of a line.
func (p *Proxy) event(line []byte, held *[]byte) []byte {
	if bytes.HasPrefix(line, []byte(`{"type":"BOOKMARK"`)) ||
		bytes.HasPrefix(line, []byte(`{"type":"ERROR"`)) {
		return line
	}
	if *held != nil {
		line, *held = append(line, *held...), nil
		return line
	}
	n := p.events.Add(1)
	switch {
	case p.bug == DropEvent && n%500 == 0:
		return nil
	case p.bug == ReorderEvents && n%500 == 0:
		*held = bytes.Clone(line)
		return nil
	case p.bug == RepeatEvent && n%500 == 0:
		return append(bytes.Clone(line), line...)
	case p.bug == BookmarkAhead && n%100 == 0:
		var e struct {
			Object struct {
				Kind     string
				Metadata struct{ ResourceVersion string }
			}
		}
		if json.Unmarshal(line, &e) != nil {
			return line
		}
		return fmt.Appendf(nil,
			`{"type":"BOOKMARK","object":{"kind":%q,"apiVersion":"ci.rowkeeper.dev/v1","metadata":{"resourceVersion":%q}}}`+"\n%s",
			e.Object.Kind, e.Object.Metadata.ResourceVersion, line)
	}
	return line
}
