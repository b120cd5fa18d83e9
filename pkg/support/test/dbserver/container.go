package dbserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/rpc"
	"net/rpc/jsonrpc"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"github.com/rowkeeper/rowkeeper/pkg/support/test/programs"
)

// images are the default images of each kind, the preferred first: the ones that hack/testbed
// builds, which nobody can pull, and the official ones.
var images = map[Kind][]string{
	Postgres: {"localhost/rowkeeper/postgres:17", "postgres:17"},
	MariaDB:  {"localhost/rowkeeper/mariadb:11.8", "mariadb:11.8"},
	MySQL:    {"localhost/rowkeeper/mysql:9.7", "mysql:9.7"},
}

// containerHost is a container. The program dbcontainer runs it: it is in a module of its own, so
// that the library's module does not need the container library. It removes the container when its
// standard input ends, that is, also when this process ends.
type containerHost struct {
	client *rpc.Client
	// end ends the program, and returns what it has complained about.
	end func() error
}

// newContainerHost starts the program.
func newContainerHost(ctx context.Context) (*containerHost, error) {
	// Tests run in the directory of their package, which may be one of another module.
	list := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}",
		"github.com/rowkeeper/rowkeeper")
	dir, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("find the module that starts containers, by go list: %w", err)
	}
	program := exec.Command("go", "run", "./dbcontainer")
	program.Dir = filepath.Join(strings.TrimSpace(string(dir)), "pkg", "testkit", "containers")
	program.Env = append(program.Environ(), "GOWORK=off")
	var complaints bytes.Buffer
	program.Stderr = &complaints
	stdout, err := program.StdoutPipe()
	if err != nil {
		return nil, err
	}
	stdin, err := startLeashed(program)
	if err != nil {
		return nil, fmt.Errorf("start the program of a container: %w", err)
	}
	client := jsonrpc.NewClient(struct {
		io.Reader
		io.WriteCloser
	}{stdout, stdin})
	return &containerHost{client: client, end: sync.OnceValue(func() error {
		_ = client.Close() // it is closed already if the program has ended
		if err := program.Wait(); err != nil {
			return fmt.Errorf("%w: %s", err, programs.Tail(complaints.String()))
		}
		return nil
	})}, nil
}

// request and started are those of the program dbcontainer, which says more about them.
type request struct {
	Images          []string
	Entrypoint, Cmd []string
	Env             map[string]string
	Files           map[string][]byte
	Tmpfs           []string
	Port            string
	HostPort        int
}

type started struct{ Image, Address string }

// none is what calls without arguments or without results have.
type none struct{}

// call calls the program.
func (h *containerHost) call(ctx context.Context, method string, args, reply any) error {
	call := h.client.Go("Container."+method, args, reply, nil)
	select {
	case <-call.Done:
	case <-ctx.Done():
		return ctx.Err()
	}
	if errors.Is(call.Error, io.ErrUnexpectedEOF) || errors.Is(call.Error, rpc.ErrShutdown) {
		return errors.Join(call.Error, h.end())
	}
	return call.Error
}

// startContainer starts a server in a container.
func startContainer(ctx context.Context, kind Kind, opts Options) (*Server, error) {
	r, err := containerRequest(kind, opts)
	if err != nil {
		return nil, err
	}
	h, err := newContainerHost(ctx)
	if err != nil {
		return nil, err
	}
	var s started
	if err := h.call(ctx, "Run", r, &s); err != nil {
		return nil, errors.Join(err, h.remove(ctx))
	}
	url := fmt.Sprintf("mysql://root:%s@%s/?tls=preferred", adminPassword, s.Address)
	if kind == Postgres {
		url = fmt.Sprintf("postgres://%s:%s@%s/postgres?sslmode=%s", adminUser, adminPassword,
			s.Address, sslmode(opts))
	}
	return &Server{Kind: kind, Source: "image " + s.Image, URL: url, host: h}, nil
}

// containerRequest asks for a container of an image that honours the environment variables of the
// official ones. Whether its server is ready, is asked of the server: each image and version logs
// it in its own words.
func containerRequest(kind Kind, opts Options) (r request, err error) {
	r.Images = images[kind]
	if name := os.Getenv(kind.ImageEnv()); name != "" {
		r.Images = []string{name}
	}
	if r.HostPort, err = programs.FreePort(); err != nil {
		return r, err
	}
	// Files come into the container as root's; the entrypoint below hands them to the server before
	// it goes on with the image's own.
	const incoming, files = "/rowkeeper/incoming/", "/rowkeeper/files/"
	r.Files = map[string][]byte{}
	write := func(name string, data []byte) (string, error) {
		r.Files[incoming+name] = data
		return files + name, nil
	}
	var settings map[string]string
	owner, data := "mysql", "/var/lib/mysql"
	if kind == Postgres {
		owner, data = "postgres", "/var/lib/postgresql"
		if settings, err = postgresSettings(opts, write); err != nil {
			return r, err
		}
		r.Port, r.Cmd = "5432/tcp", []string{"postgres"}
		for _, name := range sortedKeys(settings) {
			r.Cmd = append(r.Cmd, "-c", name+"="+settings[name])
		}
		r.Env = map[string]string{"POSTGRES_USER": adminUser, "POSTGRES_PASSWORD": adminPassword,
			"POSTGRES_DB": "postgres", "PGDATA": data + "/rowkeeper"}
	} else {
		if settings, err = mysqlSettings(opts, kind == MySQL, write); err != nil {
			return r, err
		}
		r.Port = "3306/tcp"
		r.Cmd = []string{map[Kind]string{MariaDB: "mariadbd", MySQL: "mysqld"}[kind]}
		for _, name := range sortedKeys(settings) {
			r.Cmd = append(r.Cmd, "--"+name+"="+settings[name])
		}
		r.Env = map[string]string{strings.ToUpper(string(kind)) + "_ROOT_PASSWORD": adminPassword}
	}
	if !opts.Durable {
		r.Tmpfs = []string{data}
		if kind == Postgres {
			// The image's own volume would lie upon a directory above it.
			r.Env["PGDATA"] = "/rowkeeper/data/cluster"
			r.Tmpfs = []string{"/rowkeeper/data"}
		}
	}
	if len(r.Files) > 0 {
		r.Entrypoint = []string{"sh", "-c",
			fmt.Sprintf(`install -d -o %[1]s %[3]s && install -o %[1]s -m 600 %[2]s* %[3]s && exec docker-entrypoint.sh "$@"`,
				owner, incoming, files), "sh"}
	}
	return r, nil
}

func (h *containerHost) start(ctx context.Context) error {
	return h.call(ctx, "Start", none{}, &none{})
}

func (h *containerHost) stop(ctx context.Context) error {
	return h.call(ctx, "Stop", none{}, &none{})
}

func (h *containerHost) kill(ctx context.Context) error {
	return h.call(ctx, "Kill", none{}, &none{})
}

func (h *containerHost) pause(ctx context.Context) error {
	return h.call(ctx, "Pause", none{}, &none{})
}

func (h *containerHost) resume(ctx context.Context) error {
	return h.call(ctx, "Resume", none{}, &none{})
}

func (h *containerHost) running(ctx context.Context) (running bool) {
	err := h.call(ctx, "Running", none{}, &running)
	return err == nil && running
}

func (h *containerHost) remove(context.Context) error { return h.end() }

func (h *containerHost) logs(ctx context.Context) (text string) {
	if err := h.call(ctx, "Logs", none{}, &text); err != nil {
		return err.Error()
	}
	return programs.Tail(text)
}

// startLeashed starts a program that outlives this process, but not its end of the returned pipe to
// the program's standard input.
func startLeashed(program *exec.Cmd) (io.WriteCloser, error) {
	// A process group of its own, so that an interrupt on the terminal does not end it.
	program.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	leash, err := program.StdinPipe()
	if err == nil {
		err = program.Start()
	}
	return leash, err
}
