package ui

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/rest"
)

const (
	// keyHeader is the header with the key of a session.
	keyHeader = "Rowkeeper-Key"
	// serverPrefix is what comes before a path of the server.
	serverPrefix = "/server"
	// maxBody is the most bytes of a request: more than an API server takes.
	maxBody = 4 << 20

	policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; " +
		"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; " +
		"require-trusted-types-for 'script'; trusted-types 'none'"
)

// files are the page, and their media types.
var files = map[string]string{
	"index.html": "text/html; charset=utf-8", "app.js": "text/javascript; charset=utf-8",
	"app.css": "text/css; charset=utf-8", "icon.svg": "image/svg+xml",
	"LICENSES.txt": "text/plain; charset=utf-8",
}

//go:embed dist
var dist embed.FS

// Listen listens at an address of the loopback: 127.0.0.1, ::1, localhost. Port 0 is any free one.
func Listen(ctx context.Context, address string, port int) (net.Listener, error) {
	if address == "localhost" {
		address = "127.0.0.1"
	}
	if ip := net.ParseIP(address); ip == nil || !ip.IsLoopback() {
		return nil, fmt.Errorf("--address %q is not an address of the loopback; use 127.0.0.1 or "+
			"::1, and a tunnel of SSH from another machine", address)
	}
	var config net.ListenConfig
	return config.Listen(ctx, "tcp", net.JoinHostPort(address, strconv.Itoa(port)))
}

// About says what the page shows.
type About struct {
	Context string `json:"context"` // name of the kubeconfig's context
	Server  string `json:"server"`  // URL of the server
	User    string `json:"user"`    // name of the kubeconfig's user
}

// Page is the handler of the page and of its requests. It serves one origin and one user.
type Page struct {
	about  About
	hosts  []string // as Host may name this origin
	cookie string   // its name: a page at another port has another one
	proxy  *httputil.ReverseProxy

	mu       sync.Mutex
	token    string // "" if it was used
	sessions map[string]string
}

// New returns the page for a listener's address. It forwards to the server of the config.
func New(config *rest.Config, about About, listener net.Addr) (*Page, error) {
	address, ok := listener.(*net.TCPAddr)
	if !ok || !address.IP.IsLoopback() {
		return nil, fmt.Errorf("%s is not an address of the loopback", listener)
	}
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, err
	}
	transport, err := rest.TransportFor(config)
	if err != nil {
		return nil, err
	}
	port := strconv.Itoa(address.Port)
	about.Server = base.Redacted()
	p := &Page{
		about: about, cookie: "rowkeeper-ui-" + port,
		hosts: []string{net.JoinHostPort(address.IP.String(), port), "localhost:" + port},
		token: rand.Text(), sessions: map[string]string{},
	}
	p.proxy = &httputil.ReverseProxy{
		Transport:      transport,
		FlushInterval:  -1, // events of a watch come as they are
		Rewrite:        func(r *httputil.ProxyRequest) { rewrite(r, base) },
		ModifyResponse: modify,
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if r.Context().Err() == nil {
				refuse(w, http.StatusBadGateway, "the server cannot be reached: "+err.Error())
			}
		},
	}
	return p, nil
}

// URL is the page's address, with a token that is valid once.
func (p *Page) URL() string {
	return (&url.URL{Scheme: "http", Host: p.hosts[0], Path: "/", Fragment: "token=" + p.token}).
		String()
}

// ServeHTTP answers the browser.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Content-Security-Policy", policy)
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("X-Frame-Options", "DENY")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Cross-Origin-Opener-Policy", "same-origin")
	header.Set("Cross-Origin-Resource-Policy", "same-origin")
	if err := p.sameOrigin(r); err != nil {
		refuse(w, http.StatusForbidden, err.Error())
		return
	}
	switch name := strings.TrimPrefix(r.URL.Path, "/"); {
	case r.URL.Path == "/session":
		p.begin(w, r)
	case r.URL.Path == "/about" || strings.HasPrefix(r.URL.Path, serverPrefix+"/"):
		switch err := allowed(r); {
		case !p.known(r):
			refuse(w, http.StatusUnauthorized,
				"this browser has no session; open the URL that rowkeeper ui has printed, or start it again")
		case r.URL.Path == "/about":
			answer(w, http.StatusOK, p.about)
		case err != nil:
			refuse(w, http.StatusForbidden, err.Error())
		default:
			r.Body = http.MaxBytesReader(w, r.Body, maxBody)
			p.proxy.ServeHTTP(w, r)
		}
	case r.Method != http.MethodGet:
		refuse(w, http.StatusMethodNotAllowed, "the files of the page can only be read")
	default:
		if name == "" {
			name = "index.html"
		}
		kind := files[name]
		if content, err := dist.ReadFile("dist/" + name); err == nil && kind != "" {
			header.Set("Content-Type", kind)
			_, _ = w.Write(content) // the browser is gone if it fails
			return
		}
		refuse(w, http.StatusNotFound, "the page has no such file")
	}
}

// sameOrigin refuses what another origin has made the browser ask.
func (p *Page) sameOrigin(r *http.Request) error {
	if !slices.Contains(p.hosts, r.Host) {
		return fmt.Errorf("the host %q is not that of this page", r.Host)
	}
	if origin, given := r.Header["Origin"]; given && !slices.Equal(origin, []string{"http://" + r.Host}) {
		return fmt.Errorf("the origin %q is not that of this page", origin)
	}
	// A link in another program or site may lead to the page, and not to data.
	switch site := r.Header.Get("Sec-Fetch-Site"); {
	case site == "", site == "same-origin", site == "none":
	case r.Method == http.MethodGet && r.URL.Path == "/" && r.Header.Get("Sec-Fetch-Mode") == "navigate":
	default:
		return errors.New("another site has asked for this")
	}
	return nil
}

// begin exchanges the token for a session: a cookie, and a key for the page's storage.
func (p *Page) begin(w http.ResponseWriter, r *http.Request) {
	var given struct {
		Token string `json:"token"`
	}
	if r.Method != http.MethodPost ||
		json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<10)).Decode(&given) != nil {
		refuse(w, http.StatusBadRequest, "a session begins with a POST of a token")
		return
	}
	p.mu.Lock()
	valid := p.token != "" && subtle.ConstantTimeCompare([]byte(given.Token), []byte(p.token)) == 1
	id, key := rand.Text(), rand.Text()
	if valid {
		p.token = ""
		p.sessions[id] = key
	}
	p.mu.Unlock()
	if !valid {
		refuse(w, http.StatusUnauthorized,
			"this URL was used before, or is wrong; start rowkeeper ui again for a new one")
		return
	}
	http.SetCookie(w, &http.Cookie{
		Name: p.cookie, Value: id, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode,
	})
	answer(w, http.StatusOK, map[string]string{"key": key})
}

// known tells whether a request belongs to a session.
func (p *Page) known(r *http.Request) bool {
	cookie, err := r.Cookie(p.cookie)
	if err != nil {
		return false
	}
	p.mu.Lock()
	key, ok := p.sessions[cookie.Value]
	p.mu.Unlock()
	return ok && subtle.ConstantTimeCompare([]byte(r.Header.Get(keyHeader)), []byte(key)) == 1
}

var (
	paths = request.RequestInfoFactory{
		APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api"),
	}
	errWrites = errors.New("the page writes objects as an undo does, and nothing else")
	errReads  = errors.New("the page reads objects, history, discovery and metrics, and nothing else")
)

// allowed refuses what the page does not need, whatever the user may do.
func allowed(r *http.Request) error {
	asked := *r
	asked.URL = &url.URL{Path: strings.TrimPrefix(r.URL.Path, serverPrefix), RawQuery: r.URL.RawQuery}
	if path.Clean(asked.URL.Path) != asked.URL.Path {
		return errReads
	}
	info, err := paths.NewRequestInfo(&asked)
	if err != nil {
		return errReads
	}
	switch {
	case r.Method == http.MethodGet && !info.IsResourceRequest:
		for _, pattern := range []string{"/about", "/version", "/metrics", "/api", "/api/*", "/apis",
			"/apis/*", "/apis/*/*"} {
			if ok, _ := path.Match(pattern, asked.URL.Path); ok {
				return nil
			}
		}
	case r.Method == http.MethodGet:
		if slices.Contains([]string{"get", "list", "watch"}, info.Verb) && (info.Subresource == "" ||
			info.Subresource == "history" && len(info.Parts) == 3) {
			return nil
		}
	case !info.IsResourceRequest || info.Subresource != "":
		return errWrites
	case info.APIGroup == "authorization.k8s.io":
		if info.Verb == "create" && (info.Resource == "selfsubjectaccessreviews" ||
			info.Resource == "selfsubjectrulesreviews") {
			return nil
		}
		return errWrites
	case info.APIGroup == "authentication.k8s.io":
		return errWrites // its objects are questions and tokens
	case r.Method == http.MethodPost && info.Name == "",
		r.Method == http.MethodPut && info.Name != "":
		return nil
	default:
		return errWrites
	}
	return errReads
}

// rewrite makes the request to the server, with those of the browser's headers that it needs.
// Cookies, keys, upgrades and impersonation stay here.
func rewrite(r *httputil.ProxyRequest, base *url.URL) {
	r.Out.URL = &url.URL{
		Scheme: base.Scheme, Host: base.Host,
		Path: strings.TrimSuffix(base.Path, "/") +
			strings.TrimPrefix(r.In.URL.Path, serverPrefix),
		RawQuery: r.In.URL.RawQuery,
	}
	r.Out.Host = ""
	r.Out.Header = keep(r.In.Header, "Accept", "Content-Type")
	r.Out.Header.Set("User-Agent", rest.DefaultKubernetesUserAgent()+" ui")
}

// modify leaves those of the server's headers that the page reads.
func modify(r *http.Response) error {
	if r.StatusCode == http.StatusSwitchingProtocols {
		return errors.New("it answers in another protocol")
	}
	r.Header = keep(r.Header, "Content-Type", "Content-Length", "Audit-Id", "Retry-After", "Warning")
	return nil
}

func keep(from http.Header, names ...string) http.Header {
	kept := http.Header{}
	for _, name := range names {
		if values := from.Values(name); len(values) > 0 {
			kept[name] = values
		}
	}
	return kept
}

// refuse answers as an API server does, so that the page shows all refusals alike.
func refuse(w http.ResponseWriter, code int, message string) {
	answer(w, code, metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure, Code: int32(code), Message: message,
	})
}

func answer(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // the browser is gone if it fails
}

// Serve serves the page until ctx ends. Watches end with it.
func (p *Page) Serve(ctx context.Context, listener net.Listener) error {
	server := &http.Server{
		Handler: p, ReadHeaderTimeout: 10 * time.Second,
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
